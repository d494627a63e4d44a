"""Published image sets as they lie on disk: a reader for each layout, from the path that shows it is there to the images."""

from __future__ import annotations

import hashlib
import os
import pickletools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from outfield.errors import FileFormatError
from outfield.extras import library
from outfield.files import check_readable
from outfield.images.folder import EncodedImages, ImageFiles
from outfield.images.image_source import ImageArray, ImageSource

# MD5 of the files of CIFAR's Python versions, which is all that is published of them; the last names the classes
CIFAR10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
CIFAR100 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
# The entry with the names of the classes, by that with the labels
CLASS_NAMES = {"labels": "label_names", "fine_labels": "fine_label_names"}
SVHN = {  # SHA-256 of the published files
    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}
LMDB_IN_USE = threading.Lock()  # Held while one is open: a second thread must not open it too


@dataclass(frozen=True)
class Layout:
    """One way in which a set may lie in a folder: what, by split the path that shows it is there, and who reads that path."""

    what: str
    places: Mapping[str, str]
    read: Callable[[Path], ImageSource]


def cifar_binary(place: Path, label_bytes: int, classes: int, names: str) -> ImageArray:
    """The binary version of CIFAR-10 or CIFAR-100, from the split's first file: records of labels, the last of which counts,
    and 3072 bytes, channel by channel; ``names`` is the file with the names of the classes.
    """
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] if place.name == "data_batch_1.bin" else [place.name]
    records = np.concatenate([_records(place.parent / file, label_bytes + 3072) for file in files])
    labels, listed = records[:, label_bytes - 1], place.parent / names
    if labels.max() >= classes:
        raise FileFormatError(f"{place.parent} holds a label {labels.max()}; expected 0 to {classes - 1}")
    return _cifar(records[:, label_bytes:], labels, _lines(listed) if listed.exists() else None)


cifar10_binary = partial(cifar_binary, label_bytes=1, classes=10, names="batches.meta.txt")
cifar100_binary = partial(cifar_binary, label_bytes=2, classes=100, names="fine_label_names.txt")


def _records(path: Path, length: int) -> np.ndarray:
    """Records of ``length`` bytes (n, length)."""
    _check_there(path)
    content = np.fromfile(path, np.uint8)
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
    _, names = _pickled(place.parent / meta, checksums[meta], CLASS_NAMES[labels])
    pixels = np.concatenate([np.frombuffer(data, np.uint8).reshape(-1, 3072) for data, _ in batches])
    targets = np.concatenate([np.asarray(numbers, np.int64) for _, numbers in batches])
    return _cifar(pixels, targets, [str(name) for name in names])


cifar10_python = partial(cifar_python, checksums=CIFAR10, labels="labels")
cifar100_python = partial(cifar_python, checksums=CIFAR100, labels="fine_labels")


def _pickled(path: Path, md5: str, entry: str) -> tuple[bytes, list[Any]]:
    """The longest text of a published pickle, which are its pixels, and the list behind an entry's name.

    It is never unpickled, since whoever chooses two files can give them one MD5; the steps of its program are looked through.
    """
    _check_digest(path, "MD5", md5)
    longest, name, last, found, inside = "", "", None, None, False
    lists: dict[str, list[Any]] = {}
    memory: dict[Any, Any] = {}
    for step, argument, _ in pickletools.genops(path.read_bytes()):
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
    _check_digest(place, "SHA-256", SVHN[place.name])
    arrays = library("scipy.io", extra="images").loadmat(place)
    images = np.ascontiguousarray(arrays["X"].transpose(3, 0, 1, 2))
    labels = arrays["y"].ravel().astype(np.int64) % 10  # where 10 stands for the digit 0
    return ImageArray(images, labels, classes=tuple("0123456789"))


def textures(place: Path) -> ImageFiles:
    """A split of the Describable Textures Dataset, from its list, ``labels/test1.txt``, of CLASS/FILE."""
    names = _lines(place)
    owners = [name.partition("/")[0] for name in names]
    classes = sorted(set(owners))
    return _listed(place, place.parent.parent / "images", names, [classes.index(owner) for owner in owners], classes)


def places365(place: Path) -> ImageFiles:
    """A split of Places365, small images, from their folder (``val_256``) and the list beside it, of FILE LABEL."""
    listing = "places365_val.txt" if place.name.startswith("val") else "places365_train_standard.txt"
    classes = [name for _, name in sorted(_numbered(place.parent / "categories_places365.txt"))]
    listed = _numbered(place.parent / listing)
    names, labels = [name for _, name in listed], [label for label, _ in listed]
    return _listed(place.parent / listing, place, names, labels, classes)


def _numbered(path: Path) -> list[tuple[int, str]]:
    """Lines of NAME NUMBER, where a slash may precede the name, as (number, name)."""
    try:
        return [(int(number), name.removeprefix("/")) for name, number in _pairs(path)]
    except ValueError as error:
        raise FileFormatError(f"{path} should hold lines of a name and a number ({error})") from error


def tiny_imagenet_val(place: Path) -> ImageFiles:
    """TinyImageNet's validation images, from ``val/val_annotations.txt``: FILE, class, and a box that is not used."""
    lines = _pairs(place)
    classes = sorted({owner for _, owner in lines})
    labels = [classes.index(owner) for _, owner in lines]
    return _listed(place, place.parent / "images", [name for name, _ in lines], labels, classes)


def _listed(listing: Path, folder: Path, names: list[str], labels: list[int], classes: Sequence[str]) -> ImageFiles:
    """Files that a list names, which must all be there."""
    found = ImageFiles(folder, names, labels, classes=classes)
    for name in names:
        if not os.path.exists(folder / name):
            raise FileFormatError(f"{folder / name} is missing; {listing} lists it")
    return found


class LmdbImages(EncodedImages):
    """Encoded images in an LMDB, by key, as LSUN is published.

    An LMDB may be opened only once in a process, and a handle is of no use to a forked one; so it is opened for each image,
    which takes a small part of the time of decoding, and nothing has to be shared with the workers of a DataLoader.
    """

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


@contextmanager
def _reading_lmdb(folder: Path) -> Iterator[Any]:
    lmdb = library("lmdb", extra="lsun")
    check_readable(folder / "data.mdb")
    try:
        with (
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
    except lmdb.Error as error:
        raise FileFormatError(f"{folder} is truncated, or is not an LMDB ({error})") from error


def _lines(path: Path) -> list[str]:
    """Lines of a text file that are not blank."""
    _check_there(path)
    try:
        found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not a text file ({error})") from error
    if not found:
        raise FileFormatError(f"{path} is empty")
    return found


def _pairs(path: Path) -> list[list[str]]:
    """The first two words of each line."""
    found = [line.split()[:2] for line in _lines(path)]
    for number, words in enumerate(found, 1):
        if len(words) < 2:
            raise FileFormatError(f"{path} is truncated in line {number}: expected at least 2 words, got {words}")
    return found


def _check_there(path: Path) -> None:
    if not path.exists():
        raise FileFormatError(f"{path} is missing; the other files of the set are there")
    check_readable(path)


def _check_digest(path: Path, kind: str, expected: str) -> None:
    """Refuse a file that is not the published one, byte for byte."""
    _check_there(path)
    with open(path, "rb") as file:
        make = hashlib.sha256 if kind == "SHA-256" else lambda: hashlib.md5(usedforsecurity=False)
        found = hashlib.file_digest(file, make).hexdigest()
    if found != expected:
        both = f"its {kind} is {found}, that of the published file {expected}"
        raise FileFormatError(f"{path} is truncated or changed: {both}; get it again")
