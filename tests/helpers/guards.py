"""A small classifier that has learned striped pictures, and guards of it."""

import copy
import functools
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image
from tests.helpers.pictures import make_pictures

import outfield as of
from outfield.classifier.recipe import Augmentation
from outfield.guard import Guard, build

NAMES = ("across", "down", "left", "right")


def trained(path: Path) -> Path:
    """A file of ``outfield train``: a tiny ResNet of four classes of 16 × 16 pictures."""
    path.write_bytes(_trained())
    return path


@functools.cache
def _trained() -> bytes:
    """That file's content: trained once by a process, however many tests want it."""
    pictures = make_pictures(320, seed=11)
    images = of.ImageArray(pictures.images, pictures.labels, "pictures", NAMES)
    classifier, pixels = of.classifier_for(images, "test_resnet")
    recipe = of.Recipe(epochs=6, batch_size=32, augmentation=Augmentation(scale=(0.6, 1.0)), compile=False)
    found = of.train_classifier(pixels, None, classifier, recipe, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.safetensors"
        of.save_classifier(path, classifier, found.network.state_dict())
        return path.read_bytes()


def labelled(n: int, seed: int, classes: int = 4) -> of.ImageArray:
    """Pictures with the names of their classes."""
    pictures = make_pictures(n, classes=classes, seed=seed)
    return of.ImageArray(pictures.images, pictures.labels, "pictures", NAMES[:classes])


def write_folder(folder: Path, images: of.ImageArray, size: int = 16) -> Path:
    """Images as PNG files in a folder for each class; enlarged if wanted."""
    for number, image in enumerate(images.images):
        label = "images" if images.labels is None else NAMES[images.labels[number]]
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((size, size), Image.Resampling.NEAREST).save(folder / label / f"{number:04d}.png")
    return folder


def small_guard(network: Path | of.Backbone, held: of.ImageArray | None = None, **settings: object) -> Guard:
    """A guard of 200 pictures and 160 held-out ones, on the CPU."""
    backbone = network if isinstance(network, of.Backbone) else str(network)
    given = {"detector": None, "device": "cpu", **settings}
    with mock.patch.object(build, "JUDGED", 10):  # stand-ins of a kind: what is caught of them takes most of the time
        return Guard.build(backbone, labelled(200, 1), held or labelled(160, 2), **given)  # type: ignore[arg-type]


@functools.cache
def _ssd() -> Guard:
    with tempfile.TemporaryDirectory() as folder:
        return small_guard(trained(Path(folder) / "net.safetensors"), detector="SSD")


def ssd_guard() -> Guard:
    """Such a guard of SSD: built once by a process, each time another copy."""
    return copy.deepcopy(_ssd())


def same(one: object, other: object) -> bool:
    """Whether two verdicts are equal to the bit, whatever file they name."""
    return {**one.to_dict(), "file": None} == {**other.to_dict(), "file": None}  # type: ignore[attr-defined]


def noise(n: int, seed: int = 0, size: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)
