"""What every command has: -h, completion in the shell, --quiet and --verbose; which stand first, and outfield doctor."""

import importlib.metadata
import os
import re
import subprocess
import sys

import pytest
from tests.helpers.program import outfield
from tests.helpers.samples import make_set

from outfield.cli import app
from outfield.version import __version__


def commands(typer_app, before=()):
    """Every command and group, as words."""
    for each in typer_app.registered_commands:
        yield (*before, each.name or each.callback.__name__.replace("_", "-"))
    for group in typer_app.registered_groups:
        yield (*before, group.name)
        yield from commands(group.typer_instance, (*before, group.name))


@pytest.mark.parametrize("words", list(commands(app)), ids=" ".join)
def test_every_command_tells_what_it_does(words):
    short, long = outfield(*words, "-h"), outfield(*words, "--help")
    assert short.returncode == long.returncode == 0
    assert short.stdout == long.stdout
    assert f"outfield {' '.join(words)} [OPTIONS]" in short.stdout
    if "COMMAND [ARGS]" not in short.stdout:
        for option in ("Example", "--quiet", "--verbose", "--no-progress"):
            assert option in short.stdout


ENTRY = "import sys; sys.argv = ['outfield', *sys.argv[1:]]; from outfield.cli import main; main()"


def run(*arguments, **variables):
    settings = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", **variables}
    words = [sys.executable, "-c", ENTRY, *arguments]
    return subprocess.run(words, env=settings, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("line", "expected"), [("outfield dri", {"drift"}), ("outfield drift --fail", {"--fail-on-drift"}),
                                                ("outfield guard ", {"build", "check"})])  # fmt: skip
def test_words_are_completed(line, expected):
    done = run(_OUTFIELD_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1))
    assert expected <= set(done.stdout.split()), done.stderr


def test_completion_loads_no_torch():
    code = (
        "import atexit, sys; atexit.register(lambda: sys.stderr.write(f\"torch={'torch' in sys.modules}\")); " + ENTRY
    )
    settings = {**os.environ, "_OUTFIELD_COMPLETE": "complete_bash", "COMP_WORDS": "outfield dri", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=300)
    assert "torch=False" in done.stderr


@pytest.fixture
def folder(tmp_path):
    make_set(n=60).save(tmp_path / "train.npz")
    return tmp_path


def test_what_is_said_and_how_much(folder):
    line = ("fit", "SSD", "train.npz", "-o", "ssd.safetensors")
    said = outfield(*line, cwd=folder)
    assert "ssd.safetensors" in said.stderr
    assert outfield(*line, "--quiet", cwd=folder).stderr == ""
    assert "fitted" in outfield(*line, "--verbose", cwd=folder).stderr
    warned = outfield("fit", "KNN", "train.npz", "-o", "d.safetensors", "--set", "k=50", "--quiet", cwd=folder).stderr
    assert warned.startswith("warning: k = 50 exceeds the smallest class")
    wrong = ("fit", "nope", "train.npz", "-o", "x.safetensors")
    assert "error: there is no detector" in outfield(*wrong, "--quiet", cwd=folder).stderr
    assert "Traceback" not in outfield(*wrong, cwd=folder).stderr
    assert "Traceback" in outfield(*wrong, "-v", cwd=folder).stderr


def test_files_that_are_read_and_written_are_told_with_verbose(folder):
    line = ("fit", "SSD", "train.npz", "-o", "ssd.safetensors")
    assert "arrays" not in outfield(*line, cwd=folder).stderr
    assert "wrote a detector of 6 arrays to ssd.safetensors" in outfield(*line, "--verbose", cwd=folder).stderr
    again = outfield("score", "ssd.safetensors", "train.npz", "-v", "-o", "scores.csv", cwd=folder)
    assert "read a detector of 6 arrays from ssd.safetensors" in again.stderr


def test_it_names_versions_and_what_is_installed():
    said = outfield("doctor").stdout
    assert f"Outfield {__version__}" in said
    assert f"PyTorch {importlib.metadata.version('torch')}" in said
    assert f"timm {importlib.metadata.version('timm')}" in said
    assert "missing" not in said  # all extras are installed where the tests run


def test_what_is_missing_and_how_to_install_it(monkeypatch, capsys):
    found = importlib.metadata.version

    def version(name):
        if name == "timm":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setenv("COLUMNS", "200")
    from outfield.cli import app

    app(["doctor"], standalone_mode=False)
    assert "missing timm: pip install 'outfield[images]'" in capsys.readouterr().out


def test_every_extra_that_a_user_installs_is_told_of():
    from outfield.cli.commands.doctor import libraries

    groups = {"all", "dev", "docs", "bench"}
    declared = set(importlib.metadata.metadata("outfield").get_all("Provides-Extra"))
    assert set(libraries()) == declared - groups


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_six_commands_come_first(option):
    said = outfield(option).stdout
    first = said.partition("Start here")[2].partition("More commands")[0]
    named = re.findall(r"^\W+(\w+)  ", first, re.MULTILINE)
    assert named == ["guard", "serve", "drift", "benchmark", "demo", "doctor"]
