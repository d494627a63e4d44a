"""Standard output that is full, closed or ASCII, names that look like markup or are no text, Ctrl-C, and progress."""

import contextlib
import io
import os
import re
import subprocess
import sys

import pytest
from tests.helpers.program import outfield
from tests.helpers.samples import make_set
from tests.helpers.terminal import on_terminal

import outfield as of
from outfield.progress import is_shown

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")

PROGRAM = f"{sys.executable} -m outfield"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    train = make_set(n=80)
    train.save(folder / "train.npz")
    make_set(n=40, seed=3, shift=1.0).save(folder / "noise.npz")
    of.SSD().fit(train).save(folder / "ssd.safetensors")
    return folder


def shell(line: str, cwd, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line.replace("outfield", PROGRAM)], cwd=cwd, env={**os.environ, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="surrogateescape", timeout=300,
    )  # fmt: skip


FULL = (">/dev/full", 3, "cannot write to standard output: No space left on device")
GONE = ("| true; exit ${PIPESTATUS[0]}", 141, "")


@pytest.mark.parametrize(
    ("arguments", "where", "code", "said"),
    [(arguments, *where) for arguments in ("--help", "--version") for where in (FULL, GONE)]
    + [("score ssd.safetensors train.npz", *FULL)],
)
def test_output_that_cannot_be_written(files, arguments, where, code, said):
    slowly = "sleep 0.3; " if "|" in where else ""  # until the reader is gone
    done = shell(f"( {slowly}outfield {arguments} ) {where}", files)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_closed_streams_do_not_matter(files, tmp_path):
    done = shell(f"outfield fit SSD train.npz -o {tmp_path}/d.safetensors <&- >&- 2>&-", files)
    assert done.returncode == 0
    assert (tmp_path / "d.safetensors").read_bytes() == (files / "ssd.safetensors").read_bytes()
    assert shell("outfield detectors >&-", files).returncode == 0


def test_an_ascii_terminal_loses_nothing(files, tmp_path):
    (tmp_path / "été.npz").write_bytes((files / "noise.npz").read_bytes())
    arguments = ("evaluate", files / "ssd.safetensors", "--id", files / "train.npz", "--ood", tmp_path / "été.npz")
    full, plain = outfield(*arguments), outfield(*arguments, encoding="ascii")
    assert full.returncode == plain.returncode == 0
    assert "été" in full.stdout
    assert r"\xe9t\xe9" in plain.stdout
    assert re.findall(r"\d+\.\d", plain.stdout) == re.findall(r"\d+\.\d", full.stdout)
    assert outfield("detectors", "EnergyCorrected", encoding="ascii").returncode == 0
    fitted = outfield("fit", "SSD", files / "train.npz", "-o", tmp_path / "d.safetensors", encoding="ascii")
    assert f"-> {tmp_path / 'd.safetensors'}" in fitted.stderr


def test_help_on_an_ascii_terminal(tmp_path):
    for command in ("", "train"):
        done = shell(f"outfield {command} --help", tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()


@pytest.mark.parametrize("name", ["[red]x", "[/]", "[bold]", ":smile:", "a\\[b", "[link]y"])
def test_names_that_look_like_markup_are_printed_as_they_are(files, tmp_path, name):
    folder = tmp_path / name.replace("/", "_")
    folder.mkdir()
    (folder / "set.npz").write_bytes((files / "noise.npz").read_bytes())
    done = outfield("fit", "SSD", files / "train.npz", "-o", folder / "d.safetensors")
    assert f"→ {folder / 'd.safetensors'}" in done.stderr
    done = outfield(
        "evaluate", files / "ssd.safetensors", "--id", files / "train.npz", "--ood", f"{name}={folder}/set.npz"
    )
    assert name in done.stdout
    done = outfield("score", files / "ssd.safetensors", folder / "missing.npz", code=3)
    assert str(folder / "missing.npz") in done.stderr
    assert name in outfield("fit", name, files / "train.npz", "-o", "d.safetensors").said.replace("\\\\", "\\")


def test_names_that_are_no_text_are_printed_as_they_are(files, tmp_path):
    name = os.fsdecode(b"caf\xe9.npz")
    (tmp_path / name).write_bytes((files / "noise.npz").read_bytes())
    sets = ("--id", files / "train.npz", "--ood", tmp_path / name)
    done = outfield("evaluate", files / "ssd.safetensors", *sets, code=0)
    assert os.fsdecode(b"caf\xe9") in done.stdout
    assert name in outfield("score", tmp_path / name, files / "train.npz").stderr


def test_help_shows_every_word(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    said = " ".join(outfield("extract", "-h").stdout.split())
    assert (
        "timm:NAME[@WEIGHTS.safetensors], torchvision:NAME[@…], hf:FOLDER, FILE.onnx or FILE.pt2 (with --trust)."
        in said
    )
    assert outfield("extract", "-h").stdout == outfield("extract", "--help").stdout


def test_options_are_called_by_their_names(tmp_path):
    done = outfield("train", "svhn", "--data", tmp_path, "-o", tmp_path / "n.safetensors", code=3)
    assert "--download" in done.said
    assert "=True" not in done.said
    assert "in Python" not in done.said


@pytest.mark.parametrize("goes_on", [False, True])
def test_ctrl_c_promises_only_what_is_kept(files, tmp_path, monkeypatch, goes_on):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(of.EBM, "fit_seeds", interrupted)
    monkeypatch.setattr(of.SSD, "score", interrupted)
    fit = ("fit", "EBM", files / "train.npz", "-o", "d.safetensors", "--checkpoint", "c.safetensors")
    words = fit if goes_on else ("score", files / "ssd.safetensors", files / "train.npz")
    done = outfield(*words, cwd=tmp_path, code=130)
    assert done.stderr.endswith("interrupted\n")
    assert ("goes on from c.safetensors" in done.stderr) == goes_on
    assert "Traceback" not in done.stderr


SLOW = """
import sys, time
import outfield.detectors.distance.ssd_mixture_rmds as module
from outfield.cli import main
score = module.SSD.score
def slow(self, data):
    time.sleep(3)
    return score(self, data)
module.SSD.score = slow
sys.argv = ["outfield", "score", "ssd.safetensors", "train.npz"]
main()
"""


def test_a_command_is_never_silent_on_a_terminal_and_its_output_is_whole(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    target = tmp_path / "scores.csv"
    with target.open("wb") as file:
        session = on_terminal([sys.executable, "-c", SLOW], stdout=file.fileno())
    assert session.code == 0
    assert session.pieces[-1][0] - session.pieces[0][0] > 2
    assert session.usual_silence() < 2
    assert "outfield score" in session.text
    assert session.left() == []
    assert len(target.read_text().splitlines()) == 81


def test_the_bar_of_a_command_has_its_name(monkeypatch):
    titles = []
    monkeypatch.setattr(
        sys.modules["outfield.cli.app"], "bar", lambda title: titles.append(title) or contextlib.nullcontext()
    )
    outfield("detectors", "SSD", code=0)
    outfield("guard", "show", "none.guard", code=3)
    assert titles == ["outfield detectors", "outfield guard show"]


def test_progress_can_be_switched_off(monkeypatch):
    monkeypatch.delenv("OUTFIELD_PROGRESS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for option, drawn in (("--no-progress", False), ("--quiet", False), ("--verbose", True)):
        outfield("detectors", option, code=0)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", io.StringIO())
            sys.stderr.isatty = lambda: True
            assert is_shown() == drawn
