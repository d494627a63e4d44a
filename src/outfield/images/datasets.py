"""Image data sets by name: how each published one lies on disk and is read, where people get it; and finding them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickletools
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from outfield.config import require
from outfield.errors import FileFormatError, InputError, StorageError, UnknownNameError, as_ours
from outfield.extras import library
from outfield.files import PathLike, as_path, check_readable, make_folder, open_to_read, sha256_of
from outfield.files import download_file as download
from outfield.images.folder import NPZ_ARRAYS, EncodedImages, ImageFiles, image_names, open_images
from outfield.images.image_source import ImageArray, ImageSource
from outfield.progress import bar

SPLITS = ("train", "test")
CIFAR10_FILES = ("data_batch_1", "test_batch")  # The first of each split
# MD5 of the files of CIFAR's Python versions, which is all that is published of them; the last names the classes
CIFAR10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f", "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751", "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb", "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}  # fmt: skip
CIFAR100 = {
    "train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}  # fmt: skip
SHA256 = {  # of published files
    "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    "filelist_places365-standard.tar": "520699e00d69b63ddc29fac54645aa00ce1c10ca42e288960aa1cf791d6e9aa9",
    "train_256_places365standard.tar": "0ade5d7d38c682aa0203014a2b99ad3bf608bf1de0f151dc0d80efba54660a0a",
    "val_256.tar": "24b4e639ef12a0012af525bc4cb443e4ab4aaea8369a1fb009b70e4a4aad5d48",
    "dtd-r1.0.1.tar.gz": "e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}
LMDB_IN_USE = threading.Lock()  # held while one is open: a second thread must not open it too


# Readers of a layout, from the path that shows that a set is there to its images


@dataclass(frozen=True)
class Layout:
    """One way in which a set may lie in a folder: what, by split the path that shows it is there, and who reads that path."""

    what: str
    places: Mapping[str, str]
    read: Callable[[Path], ImageSource]


def cifar_binary(place: Path, label_bytes: int, names: str) -> ImageArray:
    """The binary version of CIFAR, from the split's first file: records of labels, the last of which counts, and 3072 bytes."""
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] if place.name == "data_batch_1.bin" else [place.name]
    records = np.concatenate([_records(place.parent / file, label_bytes + 3072) for file in files])
    labels, listed = records[:, label_bytes - 1], place.parent / names
    return _cifar(records[:, label_bytes:], labels, _lines(listed) if listed.exists() else None)


cifar10_binary = partial(cifar_binary, label_bytes=1, names="batches.meta.txt")
cifar100_binary = partial(cifar_binary, label_bytes=2, names="fine_label_names.txt")


def _records(path: Path, length: int) -> np.ndarray:
    """Records of ``length`` bytes (n, length)."""
    content = np.frombuffer(_content(path), np.uint8)
    if not len(content) or len(content) % length:
        what = f"{path} is truncated, or is not of the binary version"
        raise FileFormatError(f"{what}: it has {len(content):,} bytes, not records of {length:,}")
    return content.reshape(-1, length)


def _cifar(pixels: np.ndarray, labels: np.ndarray, classes: list[str] | None) -> ImageArray:
    """Of pixels channel by channel."""
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return ImageArray(np.ascontiguousarray(images), labels, classes=classes)


def cifar_python(place: Path, checksums: Mapping[str, str], labels: str) -> ImageArray:
    """The Python version of CIFAR-10 or CIFAR-100, from the split's first file; ``labels`` is the entry that holds them."""
    *_, meta = checksums
    training = [name for name in checksums if name.startswith("data_batch")]
    files = training if place.name in training else [place.name]
    batches = [_pickled(place.parent / name, checksums[name], labels) for name in files]
    _, names = _pickled(place.parent / meta, checksums[meta], labels.removesuffix("s") + "_names")
    pixels = np.concatenate([np.frombuffer(data, np.uint8).reshape(-1, 3072) for data, _ in batches])
    targets = np.concatenate([np.asarray(numbers, np.int64) for _, numbers in batches])
    return _cifar(pixels, targets, [str(name) for name in names])


cifar10_python = partial(cifar_python, checksums=CIFAR10, labels="labels")
cifar100_python = partial(cifar_python, checksums=CIFAR100, labels="fine_labels")


def _pickled(path: Path, md5: str, entry: str) -> tuple[bytes, list[Any]]:
    """The longest text of a published pickle, which are its pixels, and the list behind an entry's name; nothing is unpickled."""
    content = _published(path, "MD5", md5)
    longest, name, last, found, inside = "", "", None, None, False
    lists: dict[str, list[Any]] = {}
    memory: dict[Any, Any] = {}
    for step, argument, _ in pickletools.genops(content):
        if step.name == "EMPTY_LIST":
            found = lists[name] = []
        elif step.name in ("MARK", "APPENDS"):
            inside = step.name == "MARK" and found is not None
        elif "PUT" in step.name:
            memory[argument] = last  # what the program has just made, under a number of its own
        else:
            last = memory.get(argument) if "GET" in step.name else argument
            if inside and found is not None:
                found.append(last)
            elif isinstance(last, str):
                longest, name, found = max(longest, last, key=len), last, None
    if entry not in lists:
        raise FileFormatError(f"{path} has no list {entry!r}")
    return longest.encode("latin-1", "replace"), lists[entry]


def svhn(place: Path) -> ImageArray:
    """SVHN's cropped digits, from ``test_32x32.mat`` or ``train_32x32.mat``; digit 0 has label 0."""
    content = _published(place, "SHA256", SHA256[place.name])
    arrays = library("scipy.io", extra="images").loadmat(io.BytesIO(content))
    images = np.ascontiguousarray(arrays["X"].transpose(3, 0, 1, 2))
    labels = arrays["y"].ravel().astype(np.int64) % 10  # where 10 stands for the digit 0
    return ImageArray(images, labels, classes=tuple("0123456789"))


def textures(place: Path) -> ImageFiles:
    """A split of the Describable Textures Dataset, from its list, ``labels/test1.txt``, of CLASS/FILE."""
    names = _lines(place)
    return _by_class(place, place.parent.parent / "images", names, [name.partition("/")[0] for name in names])


def places365(place: Path) -> ImageFiles:
    """A split of Places365, small images, from their folder (``val_256``) and the list beside it, of FILE LABEL."""
    listing = place.parent / ("places365_val.txt" if place.name.startswith("val") else "places365_train_standard.txt")
    classes = [name for _, name in sorted(_numbered(place.parent / "categories_places365.txt"))]
    labels, names = zip(*_numbered(listing), strict=True)
    return _listed(listing, place, names, labels, classes)


def _numbered(path: Path) -> list[tuple[int, str]]:
    """Lines of NAME NUMBER, where a slash may precede the name, as (number, name)."""
    pairs = _pairs(path)
    with as_ours(f"{path} should hold lines of a name and a number", FileFormatError, ValueError):
        return [(int(number), name.removeprefix("/")) for name, number in pairs]


def tiny_imagenet_val(place: Path) -> ImageFiles:
    """TinyImageNet's validation images, from ``val/val_annotations.txt``: FILE, class, and a box that is not used."""
    names, owners = zip(*_pairs(place), strict=True)
    return _by_class(place, place.parent / "images", names, owners)


def _by_class(listing: Path, folder: Path, names: Sequence[str], owners: Sequence[str]) -> ImageFiles:
    """Files that a list names with their classes, which are counted in alphabetical order."""
    classes = sorted(set(owners))
    return _listed(listing, folder, names, [classes.index(owner) for owner in owners], classes)


def _listed(listing: Path, folder: Path, names: Sequence[str], labels: Sequence[int], classes: list[str]) -> ImageFiles:
    """Files that a list names, which must all be there."""
    found = ImageFiles(folder, names, labels, classes=classes)
    for name in names:
        if not os.path.exists(folder / name):
            raise FileFormatError(f"{folder / name} is missing; {listing} lists it")
    return found


class LmdbImages(EncodedImages):
    """Encoded images in an LMDB, by key, as LSUN is published; opened for each image, since a forked process needs its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with _reading_lmdb(folder) as transaction:
            keys = [key.hex() for key in transaction.cursor().iternext(keys=True, values=False)]
        super().__init__(keys, None, "images", None)

    def where(self, index: int) -> str:
        return f"{self.folder}, key {bytes.fromhex(self.names[index])!r},"

    def content(self, index: int) -> bytes:
        with _reading_lmdb(self.folder) as transaction:
            return bytes(transaction.get(bytes.fromhex(self.names[index]), default=b""))


@contextlib.contextmanager
def _reading_lmdb(folder: Path) -> Iterator[Any]:
    lmdb = library("lmdb", extra="lsun")
    check_readable(folder / "data.mdb")
    with (
        as_ours(f"{folder} is truncated, or is not an LMDB", FileFormatError, lmdb.Error),
        LMDB_IN_USE,
        lmdb.open(str(folder), readonly=True, lock=False, readahead=False, create=False) as database,
        database.begin() as transaction,
    ):
        # It is mapped into memory: a look behind the end of one that was cut short would end the process.
        needed = (database.info()["last_pgno"] + 1) * database.stat()["psize"]
        size = (folder / "data.mdb").stat().st_size
        if size < needed:
            raise FileFormatError(f"{folder} is truncated: it has {size:,} of {needed:,} bytes")
        yield transaction


def _lines(path: Path) -> list[str]:
    """Lines of a text file that are not blank."""
    with as_ours(f"{path} is not a text file", FileFormatError, UnicodeDecodeError):
        found = [line.strip() for line in _content(path).decode().splitlines() if line.strip()]
    if not found:
        raise FileFormatError(f"{path} is empty")
    return found


def _pairs(path: Path) -> list[tuple[str, str]]:
    """The first two words of each line."""
    with as_ours(f"{path} is truncated: each line has two words at least", FileFormatError, ValueError):
        return [(first, second) for first, second, *_ in map(str.split, _lines(path))]


def _content(path: Path) -> bytes:
    with open_to_read(path) as file:
        return file.read()


def _published(path: Path, kind: str, expected: str) -> bytes:
    """The content of a file that must be the published one, byte for byte."""
    content = _content(path)
    found = hashlib.new(kind, content).hexdigest()
    if found != expected:
        both = f"its {kind} is {found}, that of the published file {expected}"
        raise FileFormatError(f"{path} is truncated or changed: {both}; download it again")
    return content


# The sets


def fetch(url: str, folder: Path) -> None:
    """Get a published file, and unpack it if it is an archive; one that is there already is not got again."""
    make_folder(folder)
    file = folder / PurePosixPath(url).name
    kept = file.is_file() and sha256_of(file) == SHA256[file.name]
    if not kept:
        download(url, file, SHA256[file.name])
    if ".tar" in file.suffixes:
        unpack(file, folder)
        if not kept:
            file.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of a tar archive into a folder, over those that are there; none may lie, or lead, outside."""
    with (
        as_ours(f"{archive} is truncated, or is not a tar archive of plain files"),
        as_ours(f"cannot unpack {archive}", StorageError, OSError),
        tarfile.open(archive) as members,
        bar(f"unpacking {archive.name}", unit="files") as advance,
    ):
        for number, member in enumerate(members):
            members.extract(member, folder, filter="data")
            advance(number + 1)


@dataclass(frozen=True)
class NamedSet:
    """What is known of a published set: a row of :data:`DATASETS`."""

    title: str
    layouts: tuple[Layout, ...] = ()  # how it lies in a folder once unpacked, the most trusted first
    counts: Mapping[str, int] = field(default_factory=dict)  # how many images they must yield
    folders: tuple[str, ...] = ()  # what the folder of its images may be called besides the name of the row
    downloads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # where to have it without asking, by split
    into: str = ""  # the folder for these, inside of that in which sets are kept
    home: str = ""
    classes: tuple[str, ...] = ()  # what its labels mean, unless that would be too many to draw


def _both(pattern: str, train: str = "train", test: str = "test") -> dict[str, str]:
    """A path by split; the star stands for the split's own part."""
    return {"train": pattern.replace("*", train), "test": pattern.replace("*", test)}


KRIZ, PLACES = "https://www.cs.toronto.edu/~kriz", "http://data.csail.mit.edu/places/places365"
PLACES_LISTS = PLACES + "/filelist_places365-standard.tar"
SVHN_URL, TEXTURES = "http://ufldl.stanford.edu/housenumbers", "https://www.robots.ox.ac.uk/~vgg/data/dtd"
# To add a set that lies in its own way, write a function from the path that shows it is there to an ImageSource, and a row:
# "mine": NamedSet("My set", (Layout("its index", {"test": "mine/index.txt"}, read_mine),))
DATASETS: dict[str, NamedSet] = {
    "cifar10": NamedSet(
        "CIFAR-10",
        (
            Layout("binary version", _both("cifar-10-batches-bin/*.bin", *CIFAR10_FILES), cifar10_binary),
            Layout("Python version", _both("cifar-10-batches-py/*", *CIFAR10_FILES), cifar10_python),
        ),
        counts={"train": 50_000, "test": 10_000},
        downloads=dict.fromkeys(SPLITS, (KRIZ + "/cifar-10-binary.tar.gz",)),
        home=KRIZ + "/cifar.html",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": NamedSet(
        "CIFAR-100",
        (
            Layout("binary version", _both("cifar-100-binary/*.bin"), cifar100_binary),
            Layout("Python version", _both("cifar-100-python/*"), cifar100_python),
        ),
        counts={"train": 50_000, "test": 10_000},
        downloads=dict.fromkeys(SPLITS, (KRIZ + "/cifar-100-binary.tar.gz",)),
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
                tiny_imagenet_val,
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
            Layout("small validation images beside their list", {"test": "val_256"}, places365),
            Layout("small training images as torchvision calls them", {"train": "data_256_standard"}, places365),
            Layout("small training images as unpacked", {"train": "data_256"}, places365),
        ),
        counts={"train": 1_803_460, "test": 36_500},
        folders=("places",),
        downloads={
            "train": (PLACES_LISTS, PLACES + "/train_256_places365standard.tar"),
            "test": (PLACES_LISTS, PLACES + "/val_256.tar"),
        },
        home="http://places2.csail.mit.edu",
    ),
    "textures": NamedSet(
        "Textures",
        (
            Layout("DTD as torchvision unpacks it", _both("dtd/dtd/labels/*1.txt"), textures),
            Layout("DTD's unpacked archive", _both("dtd/labels/*1.txt"), textures),
        ),
        counts={"train": 1_880, "test": 1_880},
        folders=("dtd",),
        downloads=dict.fromkeys(SPLITS, (TEXTURES + "/download/dtd-r1.0.1.tar.gz",)),
        into="dtd",
        home=TEXTURES,
    ),
    "svhn": NamedSet(
        "SVHN",
        (Layout("cropped digits", _both("*_32x32.mat"), svhn),),
        counts={"train": 73_257, "test": 26_032},
        downloads={split: (f"{SVHN_URL}/{split}_32x32.mat",) for split in SPLITS},
        home=SVHN_URL,
    ),
}


# Finding them


def title(name: str) -> str:
    """How a set is called in tables; its own name where there is no better one."""
    return _row(name).title


def _row(name: str) -> NamedSet:
    return DATASETS.get(name, NamedSet(name))


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
    row, places = _row(name), list(_places(name, split, folder))
    can_download = download and split in row.downloads
    source = _first(places, skip_damaged=can_download)
    if source is None and can_download:
        told = f"cannot download {row.title}"
        with as_ours(told, None, StorageError, FileFormatError, after=f"; its home is {row.home}"):
            for url in row.downloads[split]:
                fetch(url, folder / row.into)
        source = _first(places)
    if source is None:
        raise _nowhere(name, split, folder, places)
    source.name = name
    return source


def _first(places: list[_Place], skip_damaged: bool = False) -> ImageSource | None:
    """What lies at the first place where something is; None also for a damaged published set, if that may be skipped."""
    place = next((place for place in places if place.there(place.path)), None)
    try:
        return None if place is None else place.read(place.path)
    except (FileFormatError, StorageError):
        if skip_damaged and place is not None and place.published:
            return None
        raise


def _places(name: str, split: str, folder: Path) -> Iterator[_Place]:
    """Where to look, in order."""
    row = _row(name)
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
            what = "a folder of images, not divided into splits"
            yield _Place(folder / owner, what, ImageFiles.of, _has_undivided_images)


def _read_whole(path: Path, layout: Layout, expected: int | None) -> ImageSource:
    """What a layout reads, if it is as many images as were published."""
    with as_ours(f"{path} does not lead to the published set", FileFormatError, InputError):
        source = layout.read(path)
    if expected is not None and len(source) != expected:
        raise FileFormatError(f"{path} leads to {len(source):,} images, but the published set has {expected:,}")
    return source


def _has_images(path: Path) -> bool:
    return os.path.isdir(path) and next(image_names(path), None) is not None


def _has_undivided_images(path: Path) -> bool:
    return _has_images(path) and not any(os.path.isdir(path / split) for split in (*SPLITS, "val"))


def _nowhere(name: str, split: str, folder: Path, places: list[_Place]) -> InputError | StorageError:
    looked = "".join(f"\n  {place.path}: {place.what}" for place in places)
    if name not in DATASETS:
        known = ", ".join(DATASETS)
        return UnknownNameError(f"unknown set {name!r}; known: {known}. A set of your own ({split}) may lie at{looked}")
    row = DATASETS[name]
    hint = "download=True gets it" if split in row.downloads else "it has to be downloaded by hand"
    return StorageError(f"{row.title} ({split}) is not in {folder}; looked for{looked}\n{hint}; its home is {row.home}")
