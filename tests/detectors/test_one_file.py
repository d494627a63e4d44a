"""A detector is one file: that of CONTRIBUTING.md, put into a copy of the package, is found and tested and disturbs nobody."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.benchmark import ROWS
from outfield.features import normalise

ROOT = Path(__file__).parents[2]
NAME = "MeanDistance"
WALKING = (
    "detectors/test_contract.py", "detectors/test_crafted_files.py", "detectors/test_registry.py",
    "detectors/test_settings.py", "features/test_stream.py", "energy/test_modes.py", "cli/test_features.py",
    "benchmark/test_runs.py",
)  # fmt: skip
"""Where tests walk the registry: one by one, their names saying which detector, and these, all at once:"""
AT_ONCE = "test_registry or lists_all or paper_s_settings or given_as_text"


@pytest.fixture(scope="module")
def example():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.search(r"## Add a detector.*?```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.fixture(scope="module")
def run(example, tmp_path_factory):
    """Run Python where the copy with one more file is the package."""
    sources = tmp_path_factory.mktemp("copy")
    shutil.copytree(Path(of.__file__).parent, sources / "outfield", ignore=shutil.ignore_patterns("__pycache__"))
    (sources / "outfield" / "detectors" / "distance" / "some_name.py").write_text(example, encoding="utf-8")
    search = os.pathsep.join([str(sources), os.environ.get("PYTHONPATH", "")])

    def python(*arguments):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": search},
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    return python


def test_it_is_found_and_disturbs_nobody(run, tmp_path):
    make_set().save(tmp_path / "train.npz")
    make_set(seed=1).save(tmp_path / "test.npz")
    script = f"""
import contextlib, io, json, sys, outfield as of, outfield.detectors as detectors
from outfield.benchmark import PROTOCOLS
from outfield.cli import app
from outfield.detectors import describe
from outfield.studies import demo
def printed(*command):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        app(list(command), standalone_mode=False)
    return out.getvalue().split()
folder = sys.argv[1]
printed("fit", "{NAME}", folder + "/train.npz", "-o", folder + "/d.safetensors")
print(json.dumps({{
    "found": of.{NAME} is detectors.{NAME} is of.DETECTORS["{NAME}"] and "{NAME}" in dir(of),
    "names": list(of.DETECTORS),
    "listed": [one.name for one in describe.entries()],
    "printed": printed("detectors"),
    "scores": [float(score) for score in printed("score", folder + "/d.safetensors", folder + "/test.npz")[1:]],
    "paper": list(of.paper_detectors(PROTOCOLS["cifar10"])),
    "demo": list(demo.default_detectors(demo.PROTOCOL)),
}}))
"""
    told = json.loads(run("-c", script, tmp_path))
    assert told["found"]
    assert told["names"] == told["listed"] == sorted([*of.DETECTORS, NAME], key=str.casefold)
    assert NAME in told["printed"]
    z, new = (normalise(make_set(seed=seed).features) for seed in (0, 1))
    assert told["scores"] == pytest.approx((new - z.mean(0)).norm(dim=1).tolist(), rel=1e-5)
    assert told["paper"] == list(ROWS)
    assert told["demo"] == ["Auto", *ROWS]


def test_tests_that_walk_the_registry_test_it(run):
    files = [f"tests/{name}" for name in WALKING]
    told = run("-m", "pytest", "-p", "no:cacheprovider", "-vv", *files, "-k", f"{NAME} or {AT_ONCE}")
    passed = [line for line in told.splitlines() if "PASSED" in line]
    assert sum(NAME in line for line in passed) >= 45
    for file in ("test_contract", "test_settings", "test_crafted_files", "test_registry", "test_stream", "test_modes"):
        assert any(file in line and NAME in line for line in passed), file
    assert quick("MSP").fit(make_set())  # and this process knows nothing of it
    assert NAME not in of.DETECTORS
