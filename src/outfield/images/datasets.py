"""Image data sets by name: how each published one lies on disk, how many images it has, where people get it; and finding them."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from outfield.config import require
from outfield.errors import FileFormatError, InputError, StorageError, UnknownNameError
from outfield.files import PathLike, as_path, make_folder, reason, sha256_of
from outfield.files import download_file as download
from outfield.images import layouts
from outfield.images.folder import NPZ_ARRAYS, ImageFiles, image_names, open_images
from outfield.images.image_source import ImageSource
from outfield.images.layouts import Layout
from outfield.progress import bar

SPLITS = ("train", "test")
CIFAR10_FILES = ("data_batch_1", "test_batch")  # The first of each split


@dataclass(frozen=True)
class Download:
    """A file of a published set: a tar archive or not, which goes ``into`` a folder inside of that in which sets are kept."""

    url: str
    size: int
    sha256: str
    into: str = ""

    def fetch(self, folder: Path) -> None:
        """Get the file, and unpack it if it is an archive; one that is there already is not got again."""
        place = folder / self.into
        make_folder(place)
        file = place / PurePosixPath(self.url).name
        kept = file.is_file() and sha256_of(file).startswith(self.sha256)
        if not kept:
            download(self.url, file, self.sha256, self.size)
        if ".tar" in file.suffixes:
            unpack(file, place)
            if not kept:
                file.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of a tar archive into a folder, over those that are there; none may lie, or lead, outside."""
    try:
        with tarfile.open(archive) as members, bar(f"unpacking {archive.name}", unit="files") as advance:
            for number, member in enumerate(members):
                members.extract(member, folder, filter="data")
                advance(number + 1)
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise FileFormatError(f"{archive} is truncated, or is not a tar archive of plain files ({error})") from error
    except OSError as error:
        raise StorageError(f"cannot unpack {archive}: {reason(error)}") from error


@dataclass(frozen=True)
class NamedSet:
    """What is known of a published set: a row of :data:`DATASETS`.

    ``layouts`` are how it lies in a folder once unpacked, the most trusted first, and ``counts`` how many images they must yield;
    ``folders`` what the folder of its images may be called besides the name of the row; ``downloads`` the files that make it up,
    where they can be had without asking; ``classes`` what its labels mean, unless that would be too many to draw.
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


KRIZ, PLACES = "https://www.cs.toronto.edu/~kriz", "http://data.csail.mit.edu/places/places365"
SVHN, TEXTURES = "http://ufldl.stanford.edu/housenumbers", "https://www.robots.ox.ac.uk/~vgg/data/dtd"
CIFAR10_BINARY = Download(
    KRIZ + "/cifar-10-binary.tar.gz", 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
)
CIFAR100_BINARY = Download(
    KRIZ + "/cifar-100-binary.tar.gz", 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
)
PLACES_LISTS = Download(
    f"{PLACES}/filelist_places365-standard.tar",
    67_498_496,
    "520699e00d69b63ddc29fac54645aa00ce1c10ca42e288960aa1cf791d6e9aa9",
)
PLACES_TRAIN = Download(
    f"{PLACES}/train_256_places365standard.tar",
    26_103_685_120,
    "0ade5d7d38c682aa0203014a2b99ad3bf608bf1de0f151dc0d80efba54660a0a",
)
PLACES_VAL = Download(
    PLACES + "/val_256.tar", 525_158_400, "24b4e639ef12a0012af525bc4cb443e4ab4aaea8369a1fb009b70e4a4aad5d48"
)
DTD = Download(
    TEXTURES + "/download/dtd-r1.0.1.tar.gz",
    625_239_812,
    "e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
    into="dtd",
)
SVHN_TRAIN = Download(SVHN + "/train_32x32.mat", 182_040_794, layouts.SVHN["train_32x32.mat"])
SVHN_TEST = Download(SVHN + "/test_32x32.mat", 64_275_384, layouts.SVHN["test_32x32.mat"])


# To add a set that lies in its own way, write a function from the path that shows it is there to an ImageSource, and a row:
# "mine": NamedSet("My set", (Layout("its index", {"test": "mine/index.txt"}, read_mine),))
DATASETS: dict[str, NamedSet] = {
    "cifar10": NamedSet(
        "CIFAR-10",
        (
            Layout("binary version", _both("cifar-10-batches-bin/*.bin", *CIFAR10_FILES), layouts.cifar10_binary),
            Layout("Python version", _both("cifar-10-batches-py/*", *CIFAR10_FILES), layouts.cifar10_python),
        ),
        counts={"train": 50_000, "test": 10_000},
        downloads=dict.fromkeys(SPLITS, (CIFAR10_BINARY,)),
        home=KRIZ + "/cifar.html",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": NamedSet(
        "CIFAR-100",
        (
            Layout("binary version", _both("cifar-100-binary/*.bin"), layouts.cifar100_binary),
            Layout("Python version", _both("cifar-100-python/*"), layouts.cifar100_python),
        ),
        counts={"train": 50_000, "test": 10_000},
        downloads=dict.fromkeys(SPLITS, (CIFAR100_BINARY,)),
        home=KRIZ + "/cifar.html",
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
        (Layout("LMDB of the test images", {"test": "test_lmdb"}, layouts.LmdbImages),),
        counts={"test": 10_000},
        home="https://www.yf.io/p/lsun",
    ),
    "places365": NamedSet(
        "Places365",
        (  # the test images have no public labels, so the validation images are what people test with
            Layout("small validation images beside their list", {"test": "val_256"}, layouts.places365),
            Layout(
                "small training images as torchvision calls them", {"train": "data_256_standard"}, layouts.places365
            ),
            Layout("small training images as unpacked", {"train": "data_256"}, layouts.places365),
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
        downloads=dict.fromkeys(SPLITS, (DTD,)),
        home=TEXTURES,
    ),
    "svhn": NamedSet(
        "SVHN",
        (Layout("cropped digits", _both("*_32x32.mat"), layouts.svhn),),
        counts={"train": 73_257, "test": 26_032},
        downloads={"train": (SVHN_TRAIN,), "test": (SVHN_TEST,)},
        home=SVHN,
    ),
}


def title(name: str) -> str:
    """How a set is called in tables; its own name where there is no better one."""
    return DATASETS[name].title if name in DATASETS else name


@dataclass(frozen=True)
class _Place:
    """A path where a set may lie, how it is then read, and whether that is how the set is published."""

    path: Path
    what: str
    read: Callable[[Path], ImageSource]
    there: Callable[[Path], bool] = os.path.exists
    published: bool = False


def find(name: str, split: str, folder: PathLike, download: bool = False) -> ImageSource:
    """The images of a set, from wherever it lies in a folder.

    Looked for, in this order: ``NAME_SPLIT.npz``; ``NAME.npz`` (test only); the published set as its archive unpacks or as
    torchvision lays it out, in the folder or in its sub-folder ``NAME``; images in ``NAME/SPLIT/``; images in ``NAME/`` (test
    only, and only if no split has a folder of its own there). The same data is so never taken for both splits.

    Args:
        name: a row of :data:`DATASETS`, or any name whose ``.npz`` or folder of images is there.
        split: "train" or "test".
        folder: where sets are kept.
        download: get the set, where its publisher offers it to everyone, if it is not in the folder or is damaged.

    Raises:
        UnknownNameError: neither a known set nor one that is there.
        StorageError: the set is not there (the message lists each place and what is expected there), or cannot be downloaded.
        FileFormatError: a file of it is missing, truncated or changed.
    """
    require(isinstance(split, str) and split in SPLITS, "split", split, " or ".join(SPLITS))
    plain = isinstance(name, str) and Path(name).name == name and name not in ("", "..") and "\0" not in name
    require(plain, "name", name, "the name of a set, without folders")
    folder = as_path(folder, "folder")
    if not download and not os.path.isdir(folder):
        raise StorageError(f"cannot look for {name} in {folder}: there is no such folder")
    places = list(_places(name, split, folder))
    can_download = download and name in DATASETS and split in DATASETS[name].downloads
    source = _first(places, skip_damaged=can_download)
    if source is None and can_download:
        _download(name, split, folder)
        source = _first(places)
    if source is None:
        raise _nowhere(name, split, folder, places)
    source.name = name
    return source


def _first(places: list[_Place], skip_damaged: bool = False) -> ImageSource | None:
    """What lies at the first place where something is; None also for a damaged published set, if that may be skipped."""
    for place in places:
        if place.there(place.path):
            try:
                return place.read(place.path)
            except FileFormatError:
                if not (skip_damaged and place.published):
                    raise
                return None
    return None


def _places(name: str, split: str, folder: Path) -> Iterator[_Place]:
    """Where to look, in order."""
    row = DATASETS.get(name, NamedSet(name))
    archives = [f"{name}_{split}.npz"] + [f"{name}.npz"] * (split == "test")
    for archive in archives:
        yield _Place(folder / archive, f"an .npz of {NPZ_ARRAYS}", open_images)
    for root in (folder, folder / name):
        for layout in row.layouts:
            if split in layout.places:
                read = partial(_read_whole, layout=layout, expected=row.counts.get(split))
                yield _Place(root / layout.places[split], f"{row.title}, {layout.what}", read, published=True)
    for owner in (name, *row.folders):
        yield _Place(folder / owner / split, "a folder of images", ImageFiles.of, _has_images)
        if split == "test":
            yield _Place(
                folder / owner, "a folder of images, not divided into splits", ImageFiles.of, _has_undivided_images
            )


def _read_whole(path: Path, layout: Layout, expected: int | None) -> ImageSource:
    """What a layout reads, if it is as many images as were published."""
    try:
        source = layout.read(path)
    except InputError as error:
        raise FileFormatError(f"{path} does not lead to the published set: {error}") from error
    if expected is not None and len(source) != expected:
        raise FileFormatError(f"{path} leads to {len(source):,} images, but the published set has {expected:,}")
    return source


def _has_images(path: Path) -> bool:
    return os.path.isdir(path) and next(image_names(path), None) is not None


def _has_undivided_images(path: Path) -> bool:
    return not any(os.path.isdir(path / split) for split in (*SPLITS, "val")) and _has_images(path)


def _nowhere(name: str, split: str, folder: Path, places: list[_Place]) -> InputError | StorageError:
    looked = "".join(f"\n  {place.path}: {place.what}" for place in places)
    if name not in DATASETS:
        known = ", ".join(DATASETS)
        return UnknownNameError(f"unknown set {name!r}; known: {known}. A set of your own ({split}) may lie at{looked}")
    row = DATASETS[name]
    hint = "download=True gets it" if split in row.downloads else "it has to be got by hand"
    return StorageError(f"{row.title} ({split}) is not in {folder}; looked for{looked}\n{hint}; its home is {row.home}")


def _download(name: str, split: str, folder: Path) -> None:
    row = DATASETS[name]
    try:
        for part in row.downloads[split]:
            part.fetch(folder)
    except (StorageError, FileFormatError) as error:
        raise type(error)(f"cannot get {row.title}: {error}; its home is {row.home}") from error
