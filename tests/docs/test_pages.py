"""Pages of the documentation run as they are written, on small data: blocks of Python, lines of a shell, the README's guard."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest
from tests.helpers.guards import NAMES, labelled, noise, trained, write_folder
from tests.helpers.program import outfield
from tests.helpers.samples import make_set
from tests.helpers.texts import folder_of_topics
from tests.helpers.texts import labelled as labelled_texts

import outfield as of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("../README", "start", "drift", "choosing", "adapters", "guard")
PAGES += tuple(f"tutorials/{name}" for name in ("tables", "text", "compare", "numbers"))


def features(folder, ending="npz"):
    sets = {
        "train": make_set(n=200),
        "test": make_set(n=80, seed=1),
        "held_out": make_set(n=80, seed=2),
        "svhn": make_set(n=60, seed=3, shift=1.0),
        "textures": make_set(n=60, seed=4, shift=0.3),
    }
    for name, data in sets.items():
        data.save(folder / f"{name}.{ending}")


def photographs(folder):
    trained(folder / "network.safetensors")
    write_folder(folder / "photos/train", labelled(200, 1))
    write_folder(folder / "photos/val", labelled(160, 2))
    write_folder(folder / "photos/new", labelled(12, 3))
    write_folder(folder / "photos/new", of.ImageArray(noise(4)))


def left_by_the_demo(folder):
    (folder / "demo").mkdir()
    features(folder / "demo", "safetensors")


def texts(folder):
    shutil.copytree(folder_of_topics(), folder / "topics")
    for seed, name in enumerate(("train", "val", "new")):
        pandas.DataFrame(labelled_texts(100, seed)).to_csv(folder / f"{name}.csv", index=False)


MADE = {
    "tutorials/text": texts,
    "../README": left_by_the_demo,
    "start": left_by_the_demo,
    "choosing": left_by_the_demo,
    "tutorials/compare": features,
    "guard": photographs,
}


def steps(text):
    """The blocks of a page in their order: ("python", code) or ("console", line)."""
    for kind, block in re.findall(r"^```(python|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if kind == "python":
            yield kind, block
        else:
            lines = block.replace("\\\n", "").splitlines()
            yield from (("console", line[2:]) for line in lines if line.startswith("$ "))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_it_is_written(page, tmp_path, monkeypatch):
    MADE.get(page, lambda folder: None)(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page}
    found = list(steps((DOCS / f"{page}.md").read_text(encoding="utf-8")))
    if page == "../README":  # its commands are run below
        found = [step for step in found if step[0] == "python"]
    assert found
    for kind, step in found:
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(step, f"{page}.md", "exec"), names)
        else:
            program, *arguments = shlex.split(step)
            assert program == "outfield"
            done = outfield(*arguments, "--quiet")
            assert done.returncode == 0, f"{step}\n{done.stderr}"


def test_drift_is_found_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(next(step for kind, step in steps((DOCS / "drift.md").read_text()) if kind == "python"), names)
    assert "no drift found" in printed.getvalue()
    assert "drift found after" in printed.getvalue().splitlines()[-1]
    assert names["drift"].alarm


def test_a_wrong_page_is_noticed():
    assert list(steps("```console\n$ outfield x \\\n--y\nprinted\n```\n```python\n1\n```\n")) == [
        ("console", "outfield x --y"),
        ("python", "1\n"),
    ]


README = Path(__file__).parents[2] / "README.md"


def commands() -> list[str]:
    section = README.read_text().partition("## Guard a model, in three commands")[2]
    return re.findall(r"^    (\S.*)$", section.partition("\n## ")[0], flags=re.MULTILINE)


def test_three_commands_lead_to_a_verdict(tmp_path):
    build, serve, ask = commands()
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8000)) == 0:
            pytest.skip("something else listens on port 8000 of this machine")
    shutil.copy(trained(tmp_path / "trained.safetensors"), tmp_path / "network.safetensors")
    write_folder(tmp_path / "photos" / "train", labelled(240, 5), size=32)
    write_folder(tmp_path / "photos" / "val", labelled(80, 6), size=32)
    shutil.copy(next((tmp_path / "photos" / "train" / NAMES[2]).iterdir()), tmp_path / "photo.jpg")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "outfield"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m outfield "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "OUTFIELD_PROGRESS": "0"}

    def begun(command, **streams):
        return subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=tmp_path, env=environment, **streams)

    assert begun(build).wait() == 0
    with (tmp_path / "said").open("w") as said:
        server = begun(serve.removesuffix(" &"), stderr=said)
    client = begun(ask, stdout=subprocess.PIPE, text=True)
    try:
        while client.poll() is None:  # a client would ask a server that has died again and again
            assert server.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.1)
        server.terminate()
        assert (client.returncode, server.wait()) == (0, 0)
    finally:
        for one in (client, server):
            one.kill()
            one.wait()
    (verdict,) = json.loads(client.stdout.read())
    assert (verdict["file"], verdict["class_name"]) == ("photo.jpg", NAMES[2])
    assert not verdict["is_ood"]
    assert 0 < verdict["p_value"] <= 1
