"""The published sets that are known by name: how each lies on disk, how many images it has, where people get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from outfield.images import published as layouts
from outfield.images.downloads import Download
from outfield.images.files import ImageFiles
from outfield.images.lmdb import LmdbImages
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
        downloads: by split, the files that make it up, where they can be had without asking.
        home: where people get it.
        classes: what its labels mean, in their order; none where that would be too many to draw.
    """

    title: str
    layouts: tuple[Layout, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    downloads: Mapping[str, tuple[Download, ...]] = field(default_factory=dict)
    home: str = ""
    classes: tuple[str, ...] = ()


def _both(pattern: str, train: str = "train", test: str = "test") -> dict[str, str]:
    """A path by split; the star stands for the split's own part."""
    return {"train": pattern.replace("*", train), "test": pattern.replace("*", test)}


CIFAR10 = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR100 = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    168_513_733,
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)
PLACES_LISTS = Download(
    "http://data.csail.mit.edu/places/places365/filelist_places365-standard.tar",
    67_498_496,
    "520699e00d69b63ddc29fac54645aa00ce1c10ca42e288960aa1cf791d6e9aa9",
)
PLACES_TRAIN = Download(
    "http://data.csail.mit.edu/places/places365/train_256_places365standard.tar",
    26_103_685_120,
    "0ade5d7d38c682aa0203014a2b99ad3bf608bf1de0f151dc0d80efba54660a0a",
)
PLACES_VAL = Download(
    "http://data.csail.mit.edu/places/places365/val_256.tar",
    525_158_400,
    "24b4e639ef12a0012af525bc4cb443e4ab4aaea8369a1fb009b70e4a4aad5d48",
)
TEXTURES = Download(
    "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
    625_239_812,
    "e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
    into="dtd",
)
SVHN_TRAIN = Download(
    "http://ufldl.stanford.edu/housenumbers/train_32x32.mat", 182_040_794, layouts.SVHN["train_32x32.mat"]
)
SVHN_TEST = Download(
    "http://ufldl.stanford.edu/housenumbers/test_32x32.mat", 64_275_384, layouts.SVHN["test_32x32.mat"]
)


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
                partial(layouts.cifar_python, checksums=layouts.CIFAR10, labels="labels"),
            ),
        ),
        counts={"train": 50_000, "test": 10_000},
        downloads=dict.fromkeys(("train", "test"), (CIFAR10,)),
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": NamedSet(
        "CIFAR-100",
        (
            Layout("binary version", _both("cifar-100-binary/*.bin"), layouts.cifar100_binary),
            Layout(
                "Python version",
                _both("cifar-100-python/*"),
                partial(layouts.cifar_python, checksums=layouts.CIFAR100, labels="fine_labels"),
            ),
        ),
        counts={"train": 50_000, "test": 10_000},
        downloads=dict.fromkeys(("train", "test"), (CIFAR100,)),
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "mnist": NamedSet("MNIST", home="http://yann.lecun.com/exdb/mnist"),
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
        (Layout("LMDB of the test images", {"test": "test_lmdb"}, LmdbImages),),
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
            *(
                Layout(
                    f"small training images beside their list, {what}",
                    {"train": place},
                    partial(layouts.places365, listing="places365_train_standard.txt"),
                )
                for what, place in (("as torchvision calls them", "data_256_standard"), ("as unpacked", "data_256"))
            ),
        ),
        counts={"train": 1_803_460, "test": 36_500},
        folders=("places",),
        downloads={"train": (PLACES_LISTS, PLACES_TRAIN), "test": (PLACES_LISTS, PLACES_VAL)},
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
        downloads=dict.fromkeys(("train", "test"), (TEXTURES,)),
        home="https://www.robots.ox.ac.uk/~vgg/data/dtd",
    ),
    "svhn": NamedSet(
        "SVHN",
        (Layout("cropped digits", _both("*_32x32.mat"), layouts.svhn),),
        counts={"train": 73_257, "test": 26_032},
        downloads={"train": (SVHN_TRAIN,), "test": (SVHN_TEST,)},
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
