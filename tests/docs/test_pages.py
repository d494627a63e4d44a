"""Pages of the documentation run as they are written: each block of Python in order, each line of a shell, on small data."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from tests.helpers.guards import labelled, noise, trained, write_folder
from tests.helpers.program import outfield
from tests.helpers.samples import make_set

import outfield as of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    "../README",
    "start",
    "drift",
    "choosing",
    "adapters",
    "tutorials/tables",
    "tutorials/text",
    "tutorials/compare",
    "tutorials/numbers",
    "guard",
)


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


MADE = {
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
    if page == "../README":  # its commands are run by test_readme_guard.py
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
