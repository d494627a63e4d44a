"""The main job on real features that ship with the repository: CIFAR-10 and the paper's OOD sets through a ResNet-34 of ours.

The pack holds 350 training images of each class, held-out and test images, and 700 of each OOD set, as features. Most detectors
are fitted while one waits. Training takes long on a CPU: EnergyCorrected comes fitted on the same rows with the paper's settings,
and EBM, whose network is as large again, is left out. ``live`` fits both.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from typing import Any

from outfield.benchmark import PROTOCOLS, BenchmarkRun, Key, benchmark_features, default_detectors
from outfield.detectors import Detector, load
from outfield.errors import StorageError
from outfield.features import FeatureSet
from outfield.images import DATASETS
from outfield.percent import percent
from outfield.scores import Threshold

log = logging.getLogger(__name__)

PROTOCOL = PROTOCOLS["cifar10"]
BACKBONE = "ResNet-34"
PACK = "cifar10_resnet34"
PACKAGE = "outfield_demo"
SETS = ("train", "held_out", "test", *PROTOCOL.ood)
FITTED = ("EnergyCorrected",)  # detectors that the pack has fitted


@dataclass(frozen=True)
class DemoRun:
    """A run, the pack's features, fitted detectors, thresholds; the detectors fitted live and left out; the pack in words."""

    run: BenchmarkRun
    sets: dict[str, FeatureSet]
    detectors: dict[str, Detector]
    thresholds: dict[str, Threshold]
    live: tuple[str, ...]
    left_out: tuple[str, ...]
    about: str


def pack_file(name: str) -> Traversable:
    """A file of the pack, which is a package of its own, ``outfield-demo``."""
    if find_spec(PACKAGE) is None:
        what = f"{name} is not there: the demo's data is the package outfield-demo"
        raise StorageError(f"{what}; in a clone of the repository: pip install ./packages/outfield-demo")
    return resources.files(PACKAGE) / name


def pack_sets() -> dict[str, FeatureSet]:
    """The features of the pack, by set: train, held_out and test of CIFAR-10, and six OOD sets."""
    with resources.as_file(pack_file(f"{PACK}.npz")) as path:
        return {name: FeatureSet.load(path, part=name) for name in SETS}


def about_pack() -> dict[str, Any]:
    """Rows, the network's accuracy, and where the pack comes from."""
    about: dict[str, Any] = json.loads(pack_file(f"{PACK}.json").read_text())
    return about


def pack_detector(name: str) -> Detector:
    """A learned detector that was fitted on the pack's training rows beforehand."""
    with resources.as_file(pack_file(f"{name}.safetensors")) as path:
        return load(path)


def run_demo(live: bool = False, device: str = "auto", say: Callable[[str], None] = log.info) -> DemoRun:
    """Fit, score and evaluate every detector on the pack, except those whose training one would wait for, unless ``live``."""
    sets = pack_sets()
    detectors = default_detectors(PROTOCOL)
    trained = [] if live else [name for name, detector in detectors.items() if detector.trained]
    waiting = {name: pack_detector(name) for name in trained if name in FITTED}
    left_out = tuple(name for name in trained if name not in FITTED)
    detectors = {name: detector for name, detector in detectors.items() if name not in left_out}
    say(f"fitting {', '.join(name for name in detectors if name not in waiting)} on {len(sets['train']):,} rows")
    if waiting:
        say(f"{', '.join(waiting)}: fitted beforehand on the same rows")
    fitted: dict[str, Detector] = {}
    seconds: dict[str, float] = {}
    for name, detector in detectors.items():
        fitted[name] = waiting.get(name, detector).to(device)
        if name not in waiting:
            began = time.monotonic()
            detector.fit(sets["train"], held_out=sets["held_out"])
            seconds[name] = round(time.monotonic() - began, 3)
    thresholds = {name: _threshold(detector, sets["held_out"]) for name, detector in fitted.items()}
    keys = {Key(BACKBONE, n, getattr(d, "seed", None) if d.trained else None): d for n, d in fitted.items()}
    used = {name: data for name, data in sets.items() if name != "held_out"}
    given: dict[str, Any] = {"detectors": detectors, "fitted": keys, "classes": DATASETS[PROTOCOL.id].classes}
    run = benchmark_features(PROTOCOL, {BACKBONE: used}, **given, seeds=1, device=device, say=say)
    _tell_origin(run, seconds)
    return DemoRun(run, sets, fitted, thresholds, tuple(seconds), left_out, _in_words(run, sets))


def _threshold(detector: Detector, held_out: FeatureSet) -> Threshold:
    """Of a detector that calibrated itself on the held-out rows, its own."""
    if detector.uses_held_out:
        return detector.threshold()  # type: ignore[attr-defined, no-any-return]
    return Threshold.fit(detector.score(held_out), source=detector.fingerprint())


def _tell_origin(run: BenchmarkRun, seconds: Mapping[str, float]) -> None:
    """Put into the provenance where the pack comes from, and which detectors were fitted just now, in how many seconds."""
    pack = about_pack()
    run.provenance["backbones"][BACKBONE] |= pack["backbone"]
    run.provenance["pack"] = {"rows": pack["rows"], "fitted": pack["fitted"]}
    for name in seconds:
        run.provenance["detectors"][name]["given"] = []
    stages = [
        {"what": "detector", "backbone": BACKBONE, "detector": name, "seed": None, "seconds": taken, "found": False}
        for name, taken in seconds.items()
    ]
    run.provenance["stages"] = [*stages, *run.provenance["stages"]]


def _in_words(run: BenchmarkRun, sets: Mapping[str, FeatureSet]) -> str:
    return (
        f"Features of a {BACKBONE} of ours ({percent(run.accuracies[BACKBONE])} of these test images right): "
        f"{len(sets['train']):,} training images, {len(sets['test']):,} test images and {len(sets['svhn']):,} of each OOD set. "
        "That is 7 % of the paper's training images, and three of the sets are parts of the paper's: LSUN's bedrooms, "
        "MiniPlaces for Places365, and ten of the 47 Textures. OOD images were shrunk with the bilinear filter. Full runs on "
        "several backbones, of which this is the first, are in the documentation's results."
    )
