"""What is loaded to start, and what that costs beside ``import torch``. Measured for docs by benchmarks/startup.py."""

import json
import subprocess
import sys

import pytest
from tests.helpers.samples import make_set

import outfield as of

HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "networkx", "pyarrow", "matplotlib", "jinja2", "timm", "torchvision", "PIL",
         "scipy", "sklearn", "pandas", "faiss", "lmdb", "outfield.report", "outfield.benchmark", "outfield.images",
         "outfield.backbone", "outfield.classifier", "outfield.energy.engine")  # fmt: skip

MEASURED = """
import json, sys, time
if {first!r}:
    import torch
before, began = set(sys.modules), time.process_time()
from outfield.cli import main
loaded, seconds = [], []
for arguments in {commands!r}:
    sys.argv = ["outfield", *arguments]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code
    seconds.append(time.process_time())
    loaded.append(sorted(set(sys.modules) - before))
json.dump({{"loaded": loaded, "began": began, "seconds": seconds}}, open("measured.json", "w"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, train = tmp_path_factory.mktemp("startup"), make_set(n=60)
    of.SSD().fit(train).save(folder / "ssd.safetensors")
    train.save(folder / "new.npz")
    return folder


def measured(folder, *commands, first=False):
    """The modules that commands load in a new process, perhaps after torch, and its processor seconds before and after each."""
    code = MEASURED.format(commands=commands, first=first)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "measured.json").read_text())


@pytest.fixture(scope="module")
def help_of(folder):
    return measured(folder, ("--help",), ("--version",), ("benchmark", "--help"))


@pytest.fixture(scope="module")
def score(folder):
    return measured(folder, ("score", "ssd.safetensors", "new.npz", "--out", "scores.csv"), first=True)


def test_help_loads_neither_torch_nor_numpy(help_of):
    first, *_, last = help_of["loaded"]
    assert not {"torch", "numpy", "safetensors", "multiprocessing"} & set(last)
    assert "importlib.metadata" not in first


def test_score_loads_little_beside_torch(score):
    (found,) = score["loaded"]
    assert [name for name in found for heavy in HEAVY if name == heavy or name.startswith(f"{heavy}.")] == []


def test_starting_costs_little_beside_torch(help_of, score):
    """The aims are 0.3 s for help and 1.3 times import torch for a small score; the limits here leave room for a busy machine."""
    torch_alone = score["began"]
    assert score["seconds"][0] < 1.6 * torch_alone
    assert help_of["seconds"][0] < 0.5 * torch_alone
