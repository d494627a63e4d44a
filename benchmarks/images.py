"""How fast images become features, and features a table: extraction and the detectors, on one device.

    python benchmarks/images.py                                        # a ResNet-34 and 50,000 images, on a GPU
    python benchmarks/images.py --images 200 --architecture test_resnet --device cpu --extraction-only

Images are random: the time does not depend on what they show. "of limit" compares with the bare network on batches that lie
on the device already. The detectors are the paper's, with one seed, fitted on all features and scored on the test set and six
OOD sets of a fifth of the size.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from outfield.backbone import Backbone, Classifier, Odin
from outfield.benchmark import PROTOCOLS, benchmark_features
from outfield.features import FeatureSet
from outfield.images import ImageArray
from outfield.modes import resolve_device
from outfield.percent import percent

PROTOCOL = PROTOCOLS["cifar10"]
BATCH = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--architecture", default="resnet34")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--extraction-only", action="store_true")
    options = parser.parse_args()
    device = resolve_device(options.device)
    classifier = Classifier(architecture=options.architecture)
    network = classifier.build().to(device).to(memory_format=torch.channels_last).eval()
    backbone = Backbone(network, size=32, mean=classifier.mean, std=classifier.std, classes=10)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (options.images, 32, 32, 3), dtype=np.uint8)
    train = ImageArray(pixels, rng.integers(0, 10, options.images), name="random images")
    few = ImageArray(pixels[: max(1, options.images // 5)], name="fewer")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{options.architecture}, 32 × 32, batches of {BATCH}, {name}, torch {torch.__version__}")
    backbone.extract(few, odin=Odin())  # libraries choose their algorithms
    bare = rate(lambda: run_bare(network, options.images, device), options.images)
    print(f"bare network         {bare:10,.0f} images/s")
    found = rate(lambda: backbone.extract(train), options.images)
    print(f"extraction           {found:10,.0f} images/s   {percent(found / bare, 0)} of limit")
    odin = rate(lambda: backbone.extract(few, odin=Odin()), len(few))
    print(f"extraction with ODIN {odin:10,.0f} images/s")
    if options.extraction_only:
        return
    features, other = backbone.extract(train), backbone.extract(few, odin=Odin())
    test = FeatureSet(**other.tensors(), labels=train.labels[: len(few)] if train.labels is not None else None)
    sets = {"train": features, "test": test} | dict.fromkeys(PROTOCOL.ood, other)
    began = time.perf_counter()
    benchmark_features(PROTOCOL, {"random": sets}, seeds=1, device=options.device, layout=False)
    print(f"all detectors, one seed, {len(features):,} training rows, seven sets of {len(few):,}: "
          f"{time.perf_counter() - began:.1f} s")  # fmt: skip


def rate(work: Callable[[], object], images: int) -> float:
    """Images per second, the better of two goes."""
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return images / min(seconds)


def run_bare(network: torch.nn.Module, images: int, device: torch.device) -> None:
    """The network alone, in the precision that extraction uses."""
    batch = torch.rand(BATCH, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    with torch.no_grad(), torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
        for _ in range(max(1, round(images / BATCH))):
            network(batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
