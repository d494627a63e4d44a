"""Make the pack that ships with the package: features of CIFAR-10 and its OOD sets, and the correction, fitted on it.

    python benchmarks/make_pack.py --data FOLDER --backbone cifar10.safetensors --out packages/outfield-demo/src/outfield_demo

Rows are chosen by a fixed seed and by nothing else: 350 training images of each class, 500 held-out and 1,000 other test images,
700 images of every OOD set. Their features and logits are rounded to bfloat16's eight significant bits and kept as float16, which
compresses well; training rows go without ODIN's logits, which no fit reads. EnergyCorrected is fitted on the rounded rows with
the paper's settings, and its weights are saved rounded to float16. EBM, as large again, would not fit beside it into 20 MB.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from outfield.backbone import Backbone, Odin, accuracy
from outfield.benchmark import PROTOCOLS, paper_detectors
from outfield.benchmark.provenance import about_this_run
from outfield.features import FeatureSet
from outfield.files import make_folder, write_atomically, write_bytes
from outfield.images import ImageArray, ImageSource, find

PROTOCOL = PROTOCOLS["cifar10"]
IDS = ("train", "held_out", "test")
KEPT = ("features", "labels", "logits", "odin_logits")
FITTED = "EnergyCorrected"
EACH_CLASS = 350
HELD_OUT = 500
TEST = 1000
EACH_OOD = 700


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--extracted", type=Path, help="folder that keeps each set's features; those there are taken")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    make_folder(options.out)
    this_run = about_this_run(options.device)
    backbone = Backbone.open(options.backbone, options.device)
    images = chosen(options.data)
    sets = {name: rounded(extracted(backbone, name, images[name], options.extracted)) for name in images}
    arrays = {
        f"{name}_{field}": value.numpy() for name, data in sets.items() for field, value in data.tensors().items()
    }
    path = options.out / "cifar10_resnet34.npz"
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    detector = paper_detectors(PROTOCOL)[FITTED].to(options.device).fit(sets["train"])
    detector.save(options.out / f"{FITTED}.safetensors", float16=True)
    about = {
        "rows": {name: len(data) for name, data in sets.items()},
        "accuracy": accuracy(sets["test"]),
        "backbone": {"sha256": backbone.fingerprint()},
        "fitted": this_run,
    }
    write_bytes(options.out / "cifar10_resnet34.json", (json.dumps(about, indent=2) + "\n").encode())
    for file in sorted(options.out.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")


def chosen(folder: Path) -> dict[str, ImageArray]:
    """The images of every set of the pack, drawn by one seed."""
    rng = np.random.default_rng(0)
    train, test = (find(PROTOCOL.id, split, folder) for split in ("train", "test"))
    images = {"train": rows(train, balanced(train, EACH_CLASS, rng))}
    order = rng.permutation(len(test))
    images["held_out"] = rows(test, np.sort(order[:HELD_OUT]))
    images["test"] = rows(test, np.sort(order[HELD_OUT : HELD_OUT + TEST]))
    for name in PROTOCOL.ood:
        source = find(name, "test", folder)
        images[name] = rows(source, np.sort(rng.permutation(len(source))[:EACH_OOD]))
    return images


def balanced(source: ImageSource, each: int, rng: np.random.Generator) -> np.ndarray:
    """Rows with ``each`` images of every class, ascending."""
    assert source.labels is not None
    return np.sort(
        np.concatenate([rng.permutation(np.flatnonzero(source.labels == c))[:each] for c in np.unique(source.labels)])
    )


def rows(source: ImageSource, index: np.ndarray) -> ImageArray:
    images = np.stack([source[int(i)] for i in index])
    return ImageArray(images, None if source.labels is None else source.labels[index], source.name)


def extracted(backbone: Backbone, name: str, images: ImageArray, folder: Path | None) -> FeatureSet:
    """One set's features: those that the folder has, or new ones, which it then keeps."""
    path = None if folder is None else folder / f"{name}.safetensors"
    if path is not None and path.exists():
        return FeatureSet.load(path)
    data = backbone.extract(images, odin=None if name == "train" else Odin(), labels=name in IDS)
    if path is not None:
        make_folder(path.parent)
        data.save(path)
    return data


def rounded(data: FeatureSet) -> FeatureSet:
    """The fields that a detector of the demo reads, in eight significant bits."""
    kept = {name: value for name, value in data.tensors().items() if name in KEPT}
    return FeatureSet(
        **{name: value.bfloat16().half() if value.is_floating_point() else value for name, value in kept.items()}
    )


if __name__ == "__main__":
    main()
