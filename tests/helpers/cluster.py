"""A guard of a small network that has learned nothing, which is enough to compare engines, and what folders of results hold."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from PIL import Image
from pyarrow import parquet
from tests.helpers.guards import NAMES, noise, small_guard

import outfield as of
from outfield.backbone import Classifier


def untrained(path: Path) -> Path:
    """A file such as ``outfield train`` writes, of a tiny ResNet with random weights."""
    classifier = Classifier("test_resnet", len(NAMES), True, (16, 16), names=NAMES)
    of.save_classifier(path, classifier, classifier.build(0).state_dict())
    return path


def write_guard(folder: Path, name: str = "my.guard", detector: str = "SSD") -> Path:
    """A guard of an untrained network."""
    small_guard(untrained(folder / f"{name}.safetensors"), detector=detector).save(folder / name)
    return folder / name


def rows_of(out: Path) -> list[dict[str, Any]]:
    """All rows of a folder of results, in the order of parts, as plain data."""
    rows: list[dict[str, Any]] = parquet.read_table(out).to_pylist()
    return rows


def write_slow_images(folder: Path, n: int) -> Path:
    """Images that take a tenth of a second or so each to be decoded."""
    folder.mkdir()
    Image.fromarray(noise(1, size=1400)[0]).save(folder / "0000.png", compress_level=1)
    for i in range(1, n):
        os.link(folder / "0000.png", folder / f"{i:04d}.png")
    return folder


def scoring_processes() -> list[psutil.Process]:
    """The workers of Ray Data that score, of the cluster that this process started."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if _is_scoring(one)]


def _is_scoring(process: psutil.Process) -> bool:
    try:
        return "ScoringActor" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def wait_for(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """What ``condition`` gives as soon as that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
    return found
