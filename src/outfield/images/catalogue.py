"""The published sets that are known by name: how each lies on disk, how many images it has, where people get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from outfield.images import published as layouts
from outfield.images.files import ImageFiles
from outfield.images.published import Layout


@dataclass(frozen=True)
class NamedSet:
    """What is known of a published set: a row of :data:`DATASETS`.

    Args:
        title: how it is called in tables.
        layouts: how it lies in a folder once unpacked, the most trusted first; none for a set that is only ever an ``.npz`` or
            a folder of images, which need no entry here.
        counts: images by split, compared with what the layouts yield; a user's own ``.npz`` or folder may hold a part.
        folders: what the folder of its images may be called besides the name of the row.
        torchvision: the class of torchvision that downloads it, if one does.
        options: what that class is given, by split.
        home: where people get it.
        classes: what its labels mean, in their order; none where that would be too many to draw.
    """

    title: str
    layouts: tuple[Layout, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    torchvision: str | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    home: str = ""
    classes: tuple[str, ...] = ()


def _both(pattern: str, train: str = "train", test: str = "test") -> dict[str, str]:
    """A path by split; the star stands for the split's own part."""
    return {"train": pattern.replace("*", train), "test": pattern.replace("*", test)}


DATASETS: dict[str, NamedSet] = {
    "cifar10": NamedSet(
        "CIFAR-10",
        (
            Layout(
                "binary version",
                _both("cifar-10-batches-bin/*.bin", "data_batch_1", "test_batch"),
                layouts.cifar10_binary,
            ),
            Layout(
                "Python version",
                _both("cifar-10-batches-py/*", "data_batch_1", "test_batch"),
                partial(layouts.cifar_python, dataset="CIFAR10"),
            ),
        ),
        counts={"train": 50_000, "test": 10_000},
        torchvision="CIFAR10",
        options={"train": {"train": True}, "test": {"train": False}},
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": NamedSet(
        "CIFAR-100",
        (
            Layout("binary version", _both("cifar-100-binary/*.bin"), layouts.cifar100_binary),
            Layout("Python version", _both("cifar-100-python/*"), partial(layouts.cifar_python, dataset="CIFAR100")),
        ),
        counts={"train": 50_000, "test": 10_000},
        torchvision="CIFAR100",
        options={"train": {"train": True}, "test": {"train": False}},
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "tinyimagenet": NamedSet(
        "TinyImageNet",
        (
            Layout("unpacked archive", _both("tiny-imagenet-200/*", test="test/images"), ImageFiles.of),
            Layout(
                "validation images where there are no test images",
                {"test": "tiny-imagenet-200/val/val_annotations.txt"},
                layouts.tiny_imagenet_val,
            ),
        ),
        counts={"train": 100_000, "test": 10_000},
        home="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ),
    "lsun": NamedSet(
        "LSUN",
        (Layout("LMDB of the test images", {"test": "test_lmdb"}, layouts.lsun),),
        counts={"test": 10_000},
        home="https://www.yf.io/p/lsun",
    ),
    "places365": NamedSet(
        "Places365",
        (  # the test images have no public labels, so the validation images are what people test with
            Layout(
                "small validation images beside their list",
                {"test": "val_256"},
                partial(layouts.places365, listing="places365_val.txt"),
            ),
            Layout(
                "small training images beside their list",
                {"train": "data_256_standard"},
                partial(layouts.places365, listing="places365_train_standard.txt"),
            ),
        ),
        counts={"train": 1_803_460, "test": 36_500},
        folders=("places",),
        torchvision="Places365",
        options={"train": {"split": "train-standard", "small": True}, "test": {"split": "val", "small": True}},
        home="http://places2.csail.mit.edu",
    ),
    "textures": NamedSet(
        "Textures",
        (
            Layout("DTD as torchvision unpacks it", _both("dtd/dtd/labels/*1.txt"), layouts.textures),
            Layout("DTD's unpacked archive", _both("dtd/labels/*1.txt"), layouts.textures),
        ),
        counts={"train": 1_880, "test": 1_880},
        folders=("dtd",),
        torchvision="DTD",
        options={"train": {"split": "train"}, "test": {"split": "test"}},
        home="https://www.robots.ox.ac.uk/~vgg/data/dtd",
    ),
    "svhn": NamedSet(
        "SVHN",
        (Layout("cropped digits", _both("*_32x32.mat"), layouts.svhn),),
        counts={"train": 73_257, "test": 26_032},
        torchvision="SVHN",
        options={"train": {"split": "train"}, "test": {"split": "test"}},
        home="http://ufldl.stanford.edu/housenumbers",
    ),
}
"""The sets that can be asked for by name, besides those a user brings.

To add one that lies in its own way, write a function from the path that shows it is there to an ImageSource, and a row:
``DATASETS["mine"] = NamedSet("My set", (Layout("its index", {"test": "mine/index.txt"}, read_mine),))``.
"""


def title(name: str) -> str:
    """How a set is called in tables; its own name where there is no better one."""
    return DATASETS[name].title if name in DATASETS else name


def class_title(name: str, label: int) -> str:
    """How a class of a set is called in figures; its number where there is no better name.

    >>> class_title("cifar10", 3), class_title("mine", 3)
    ('cat', '3')
    """
    classes = DATASETS[name].classes if name in DATASETS else ()
    return classes[label] if 0 <= label < len(classes) else str(label)
