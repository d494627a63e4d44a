"""Make the pack that ships with the package: features of CIFAR-10 and its OOD sets, and the two learned detectors, fitted on it.

    python benchmarks/make_pack.py --data FOLDER --backbone cifar10.safetensors --out packages/outfield-demo/src/outfield_demo

Rows are chosen by a fixed seed and by nothing else: 500 training images of each class, 500 held-out and 1,000 other test images,
1,000 images of every OOD set. Features and logits are rounded to float16; the detectors are fitted on the rounded rows with the
paper's settings, and their weights are saved rounded to float16.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from outfield.backbone.backbone import Backbone, accuracy
from outfield.backbone.odin import Odin
from outfield.benchmark import paper_detectors
from outfield.benchmark.protocol import PROTOCOLS
from outfield.benchmark.provenance import about_this_run
from outfield.detectors.learned import LearnedEnergy
from outfield.features.set import FeatureSet
from outfield.files.atomic import make_folder, write_atomically, write_bytes
from outfield.images.finding import find
from outfield.images.source import ImageArray, ImageSource

PROTOCOL = PROTOCOLS["cifar10"]
EACH = 1000
HELD_OUT = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--each-class", type=int, default=500, help="training images of a class")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    make_folder(options.out)
    backbone = Backbone.open(options.backbone, options.device)
    rng = np.random.default_rng(0)
    chosen: dict[str, ImageArray] = {}
    train = find(PROTOCOL.id, "train", options.data)
    chosen["train"] = rows(train, balanced(train, options.each_class, rng))
    test = find(PROTOCOL.id, "test", options.data)
    order = rng.permutation(len(test))
    chosen["held_out"] = rows(test, np.sort(order[:HELD_OUT]))
    chosen["test"] = rows(test, np.sort(order[HELD_OUT : HELD_OUT + EACH]))
    for name in PROTOCOL.ood:
        source = find(name, "test", options.data)
        chosen[name] = rows(source, np.sort(rng.permutation(len(source))[:EACH]))
    sets = {name: half(backbone.extract(images, odin=Odin(), labels=images.labels is not None and name in IDS))
            for name, images in chosen.items()}  # fmt: skip
    arrays = {
        f"{name}_{field}": value.numpy() for name, data in sets.items() for field, value in data.tensors().items()
    }
    path = options.out / "cifar10_resnet34.npz"
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    for name, detector in paper_detectors(PROTOCOL).items():
        if isinstance(detector, LearnedEnergy):
            detector.to(options.device).fit(sets["train"]).save(options.out / f"{name}.safetensors", half=True)
    about = {
        "rows": {name: len(data) for name, data in sets.items()},
        "accuracy": accuracy(sets["test"]),
        "backbone": {"sha256": backbone.fingerprint()},
        "fitted": about_this_run(options.device),
    }
    write_bytes(options.out / "cifar10_resnet34.json", (json.dumps(about, indent=2) + "\n").encode())
    for file in sorted(options.out.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")


IDS = ("train", "held_out", "test")


def balanced(source: ImageSource, each: int, rng: np.random.Generator) -> np.ndarray:
    """Rows with ``each`` images of every class, ascending."""
    assert source.labels is not None
    return np.sort(
        np.concatenate([rng.permutation(np.flatnonzero(source.labels == c))[:each] for c in np.unique(source.labels)])
    )


def rows(source: ImageSource, index: np.ndarray) -> ImageArray:
    images = np.stack([source[int(i)] for i in index])
    return ImageArray(images, None if source.labels is None else source.labels[index], source.name)


def half(data: FeatureSet) -> FeatureSet:
    """Without the spread, which no detector of the pack reads, and rounded."""
    kept = {name: value for name, value in data.tensors().items() if name != "spread"}
    return FeatureSet(**{name: value.half() if value.is_floating_point() else value for name, value in kept.items()})


if __name__ == "__main__":
    main()
