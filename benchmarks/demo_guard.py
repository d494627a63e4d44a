"""Builds the guard that ``outfield serve --demo`` serves: a small classifier of CIFAR-10 that Outfield trained, and its detector.

python benchmarks/demo_guard.py --network small.safetensors --train cifar10_train.npz --test cifar10_test.npz \
    --out packages/outfield-demo/src/outfield_demo/cifar10.guard

The network is a file of ``outfield train`` (timm's test_resnet with a stem for small images, 100 epochs). The detector is fitted
on the first training images; the first test images, of which the network has seen none, choose it and its threshold. The other
test images are counted only: how many the guard accepts, and how many it classifies rightly.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path

import numpy as np

import outfield as of

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def images(path: Path, start: int, stop: int | None) -> of.ImageArray:
    """Some images of an archive, with labels and names of classes."""
    with np.load(path) as data:
        return of.ImageArray(data["images"][start:stop], data["labels"][start:stop], "cifar10", NAMES)


def named(path: Path, folder: Path) -> Path:
    """The same network with names of classes."""
    network, classifier, notes = of.load_classifier(path)
    output = folder / "cifar10.safetensors"
    of.save_classifier(output, dataclasses.replace(classifier, names=NAMES), network.state_dict(), notes)
    return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", type=Path, required=True, help="file of outfield train")
    parser.add_argument("--train", type=Path, required=True, help=".npz with images and labels")
    parser.add_argument("--test", type=Path, required=True, help=".npz with images and labels")
    parser.add_argument("--fit", type=int, default=5000, help="training images that the detector is fitted on")
    parser.add_argument("--held-out", type=int, default=2000, help="test images that choose detector and threshold")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        network = named(given.network, Path(folder))
        guard = of.Guard.build(
            str(network),
            images(given.train, 0, given.fit),
            images(given.test, 0, given.held_out),
            half=True,
            device="cpu",
        )
    guard.save(given.out)
    print(guard)
    print(f"{given.out.stat().st_size:,} bytes; held-out accuracy {guard.provenance['accuracy']:.4f}")
    rest = images(given.test, given.held_out, None)
    found = of.Guard.load(given.out, device="cpu")(rest)
    assert isinstance(found, of.Verdicts)
    assert rest.labels is not None
    right = np.array([one.class_index for one in found]) == rest.labels
    print(
        f"{len(rest):,} other test images: {1 - found.is_ood.mean():.4f} accepted, {right.mean():.4f} classified rightly"
    )


if __name__ == "__main__":
    main()
