"""Fixtures that tests share."""

import os
import re
from collections import Counter
from pathlib import Path

if os.environ.get("OUTFIELD_TEST_GPU") != "1":
    # "auto" is then the CPU on every machine, and results are equal to the bit. Before torch looks for a GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest
import torch
from hypothesis import settings
from tests.helpers.samples import make_set

import outfield as of

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # the GPU's kernels then run on the CPU, for small tests

QUICK = os.environ.get("OUTFIELD_TEST_QUICK") == "1"
LONG = (
    "scale/test_on_ray", "serve/test_program", "adapters/", "guard/", "studies/", "cli/", "docs/", "packaging/", "energy/",
    "serve/",
)  # fmt: skip
"""Files that take long, the longest first: begun early, they leave no process alone with them at the end."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """With a GPU, files without a test for it: they may need libraries that such a machine lacks."""
    asked = os.environ.get("OUTFIELD_TEST_GPU") == "1" and collection_path.suffix == ".py"
    return True if asked and not re.search(r"mark\.gpu|import DEVICES", collection_path.read_text()) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; within them, and among the others, the order stays. Without a GPU, what needs one is skipped.

    For ``make quick``, two cases of each test.
    """
    if QUICK:
        seen: Counter[str] = Counter()
        for item in list(items):
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > 2:
                items.remove(item)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU: make test-gpu"))

    def place(item: pytest.Item) -> int:
        return next((number for number, name in enumerate(LONG) if f"tests/{name}" in item.nodeid), len(LONG))

    items.sort(key=place)


# A busy machine must not fail a property, and CI must fail on the same examples twice.
examples = {"max_examples": 5} if QUICK else {}
settings.register_profile("outfield", deadline=None, derandomize="CI" in os.environ, **examples)
settings.load_profile("outfield")


@pytest.fixture
def train_set() -> of.FeatureSet:
    return make_set()


@pytest.fixture
def test_set() -> of.FeatureSet:
    return make_set(n=50, seed=1)


@pytest.fixture
def ood_set() -> of.FeatureSet:
    return make_set(n=60, seed=2, shift=1.0)


torch.set_num_threads(1)  # for fixtures that are made before any test
os.fsync = lambda file: None  # no file of a test has to outlive the machine, and disks are slow


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small matrices run faster on one thread, and tests run side by side."""
    torch.set_num_threads(1)


@pytest.fixture
def count(monkeypatch):
    """How often the detectors of a small benchmark fit, score and step."""
    from tests.helpers.fake_benchmark import counting

    return counting(monkeypatch)
