"""What is loaded to start, and what that costs beside ``import torch``. Measured for docs by benchmarks/startup.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.helpers.samples import make_set

import outfield as of

HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "networkx", "pyarrow", "matplotlib", "jinja2", "timm", "torchvision", "PIL",
         "scipy", "sklearn", "pandas", "faiss", "lmdb", "outfield.report", "outfield.benchmark", "outfield.images",
         "outfield.backbone", "outfield.classifier", "outfield.energy.engine")  # fmt: skip

LOADED = """
import json, sys
if {first!r}:
    import torch
before = set(sys.modules)
from outfield.cli import main
sys.argv = ["outfield", *{arguments!r}]
try:
    main()
except SystemExit as stop:
    assert not stop.code
json.dump(sorted(set(sys.modules) - before), open("loaded.json", "w"))
"""


@pytest.fixture
def folder(tmp_path):
    train = make_set(n=60)
    of.SSD().fit(train).save(tmp_path / "ssd.safetensors")
    train.save(tmp_path / "new.npz")
    return tmp_path


def loaded(folder, *arguments: str, first: bool = False) -> list[str]:
    """The modules that a command loads, perhaps beside those of torch."""
    code = LOADED.format(arguments=arguments, first=first)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "loaded.json").read_text())


def processor_seconds(*words: str) -> float:
    running = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(running.pid, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("benchmark", "--help")])
def test_help_loads_neither_torch_nor_numpy(folder, arguments):
    found = loaded(folder, *arguments)
    assert not {"torch", "numpy", "safetensors", "multiprocessing"} & set(found)


def test_score_loads_little_beside_torch(folder):
    found = loaded(folder, "score", "ssd.safetensors", "new.npz", "--out", "scores.csv", first=True)
    assert [name for name in found for heavy in HEAVY if name == heavy or name.startswith(f"{heavy}.")] == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs wait4")
def test_starting_costs_little_beside_torch(folder):
    """The aims are 0.5 s for help and 1.3 times import torch for a small score; the limits here leave room for a busy machine."""
    score = (
        "-m",
        "outfield",
        "score",
        str(folder / "ssd.safetensors"),
        str(folder / "new.npz"),
        "-o",
        str(folder / "s.csv"),
    )
    commands = {"torch": ("-c", "import torch"), "score": score, "help": ("-m", "outfield", "-h")}
    rounds = [{name: processor_seconds(*words) for name, words in commands.items()} for _ in range(2)]
    least = {name: min(each[name] for each in rounds) for name in commands}
    assert least["score"] < 1.6 * least["torch"]
    assert least["help"] < 0.5 * least["torch"]
