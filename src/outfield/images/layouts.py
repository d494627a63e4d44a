"""Published image sets as they lie on disk: a reader for each layout, from the path that shows it is there to the images."""

from __future__ import annotations

import hashlib
import math
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
from outfield.files import check_readable, open_to_read
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


def cifar10_binary(place: Path) -> ImageArray:
    """CIFAR-10's binary version, from the split's first file: records of a label and 3072 bytes, channel by channel."""
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)]
    files = batches if place.name in batches else [place.name]
    records = np.concatenate([_records(place.parent / file, 1 + 3072) for file in files])
    return _binary(place.parent / "batches.meta.txt", records[:, 1:], records[:, 0], 10)


def cifar100_binary(place: Path) -> ImageArray:
    """CIFAR-100's binary version, from the split's file: records of a coarse label, a fine one and 3072 bytes."""
    records = _records(place, 2 + 3072)
    return _binary(place.parent / "fine_label_names.txt", records[:, 2:], records[:, 1], 100)


def _records(path: Path, length: int) -> np.ndarray:
    """Records of ``length`` bytes (n, length)."""
    _check_there(path)
    content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % length:
        what = f"{path} is truncated, or is not of the binary version"
        raise FileFormatError(f"{what}: it has {len(content):,} bytes, not records of {length:,}")
    return content.reshape(-1, length)


def _binary(names: Path, pixels: np.ndarray, labels: np.ndarray, classes: int) -> ImageArray:
    if labels.max() >= classes:
        raise FileFormatError(f"{names.parent} holds a label {labels.max()}; expected 0 to {classes - 1}")
    return _cifar(pixels, labels, _lines(names) if names.exists() else None)


def _cifar(pixels: np.ndarray, labels: np.ndarray, classes: list[str] | None) -> ImageArray:
    """Of pixels channel by channel."""
    return ImageArray(
        np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels, classes=classes
    )


def cifar_python(place: Path, checksums: Mapping[str, str], labels: str) -> ImageArray:
    """The Python version of CIFAR-10 or CIFAR-100, from the split's first file; ``labels`` is the entry that holds them.

    Its files are pickles, which run code when they are unpickled; here they are parsed instead. Their MD5 tells damage.
    """
    *_, meta = checksums
    training = [name for name in checksums if name.startswith("data_batch")]
    files = training if place.name in training else [place.name]
    batches = [_pickled(place.parent / name, checksums[name], "data", labels) for name in files]
    (names,) = _pickled(place.parent / meta, checksums[meta], CLASS_NAMES[labels])
    pixels = np.concatenate([np.asarray(data, np.uint8).reshape(-1, 3072) for data, _ in batches])
    targets = np.concatenate([np.asarray(numbers, np.int64) for _, numbers in batches])
    return _cifar(pixels, targets, [str(name) for name in names])


cifar10_python = partial(cifar_python, checksums=CIFAR10, labels="labels")
cifar100_python = partial(cifar_python, checksums=CIFAR100, labels="fine_labels")


def _pickled(path: Path, md5: str, *entries: str) -> list[Any]:
    """Entries of a published pickle."""
    _check_digest(path, "MD5", md5)
    found = read_plain_pickle(path)
    if missing := [entry for entry in entries if entry not in found]:
        raise FileFormatError(f"{path} has no entry {missing[0]!r}")
    return [found[entry] for entry in entries]


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
    columns = _columns(path, 2)
    try:
        return [(int(number), name.removeprefix("/")) for name, number in columns]
    except ValueError as error:
        raise FileFormatError(f"{path} should hold lines of a name and a number ({error})") from error


def tiny_imagenet_val(place: Path) -> ImageFiles:
    """TinyImageNet's validation images, from ``val/val_annotations.txt``: FILE, class, and a box that is not used."""
    lines = _columns(place, 2)
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
        super().__init__(keys)

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


def _columns(path: Path, count: int) -> list[list[str]]:
    """The first ``count`` words of each line."""
    found = [line.split()[:count] for line in _lines(path)]
    for number, words in enumerate(found, 1):
        if len(words) < count:
            raise FileFormatError(f"{path} is truncated in line {number}: expected at least {count} words, got {words}")
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


# CIFAR's pickles, read without unpickling. A pickle is a program for a small machine, one of whose instructions calls any
# function by its name. The machine here only has those that build plain values and numpy's arrays. A function that the program
# asks for is never looked up: its name is compared with those that numpy writes for an array, and what they do is done here.

DTYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8", "b1")  # Plain numbers, as numpy calls their types
BYTES_AT_MOST = 2**30  # Of a file; the largest published one has 155 megabytes
IGNORED = {"PROTO", "FRAME", "STOP"}
PUSHED = {  # Instructions that push their argument
    *("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary of text, numbers, lists and arrays that a pickle holds; text that Python 2 wrote is Latin-1."""
    with open_to_read(path) as file:
        content = file.read(BYTES_AT_MOST + 1)
    try:
        if len(content) > BYTES_AT_MOST:
            raise ValueError(f"it has more than {BYTES_AT_MOST:,} bytes")
        found = _run(content)
        if type(found) is not dict or not all(type(key) is str for key in found):
            raise ValueError("it is no dictionary")
        values = {key: value.value if isinstance(value, _Slot) else value for key, value in found.items()}
        if any(isinstance(value, _Name | np.dtype) for value in values.values()):
            raise ValueError("it holds a function or class")
        return values
    except Exception as error:  # a damaged program fails anywhere, also deep inside of pickletools
        raise FileFormatError(f"{path} is truncated, or is not a pickle of plain values ({error})") from error


class _Name(str):
    """A function or class that a pickle asks for; never looked up."""


class _Slot:
    """An array, or the type of one, whose content comes later."""

    def __init__(self, value: np.dtype[Any] | None) -> None:
        self.value: np.dtype[Any] | np.ndarray | None = value

    def set_state(self, state: Any) -> None:
        """Of a type (version, byte order, …); of an array (version, shape, type, whether columns go first, bytes)."""
        if isinstance(self.value, np.dtype):
            _, order, *inner = state
            if order not in ("<", ">", "|", "=") or any(part is not None for part in inner[:3]):
                raise ValueError("arrays of structured values are not read")
            self.value = self.value.newbyteorder(order)
            return
        _, shape, dtype, columns_first, content = state
        content = content.encode("latin-1") if isinstance(content, str) else bytes(content)
        if math.prod(shape) * dtype.value.itemsize != len(content):
            raise ValueError(f"an array of shape {shape} cannot have {len(content):,} bytes")
        self.value = np.frombuffer(content, dtype.value).reshape(shape, order="F" if columns_first else "C")


def _call(function: Any, arguments: tuple[Any, ...]) -> Any:
    """What numpy's own functions for an array would give."""
    name = str(function) if isinstance(function, _Name) else ""
    if name in ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"):
        if isinstance(arguments[0], _Name) and arguments[0] == "numpy.ndarray":
            return _Slot(None)
    elif name == "numpy.dtype":
        if arguments[0] not in DTYPES:
            raise ValueError(f"arrays of {arguments[0]!r} are not read")
        return _Slot(np.dtype(arguments[0]))
    elif name == "_codecs.encode" and arguments[1] == "latin1":
        return arguments[0].encode("latin-1")
    raise ValueError(f"it calls {function!r}, which is never done")


def _run(content: bytes) -> Any:
    """What the program leaves on the stack."""
    stack: list[Any] = []
    marks: list[int] = []
    memory: dict[int, Any] = {}

    def taken(start: int) -> list[Any]:
        if not 0 <= start <= len(stack):
            raise ValueError("it takes more than it made")
        values = stack[start:]
        del stack[start:]
        return values

    def last(kind: type) -> Any:
        if type(stack[-1]) is not kind:
            raise ValueError(f"it adds to what is no {kind.__name__.removeprefix('_')}")
        return stack[-1]

    argument: Any
    for operation, argument, _ in pickletools.genops(content):
        match operation.name:
            case name if name in PUSHED:
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[operation.name])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                stack.append({"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}[operation.name]())
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(taken(marks.pop())))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(taken(len(stack) - int(operation.name[-1]))))
            case "LIST":
                stack.append(taken(marks.pop()))
            case "DICT":
                values = taken(marks.pop())
                stack.append(dict(zip(values[::2], values[1::2], strict=True)))
            case "APPEND" | "APPENDS":
                values = taken(len(stack) - 1 if operation.name == "APPEND" else marks.pop())
                last(list).extend(values)
            case "SETITEM" | "SETITEMS":
                values = taken(len(stack) - 2 if operation.name == "SETITEM" else marks.pop())
                last(dict).update(zip(values[::2], values[1::2], strict=True))
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memory[len(memory) if argument is None else argument] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memory[argument])
            case "GLOBAL":
                stack.append(_Name(argument.replace(" ", ".")))
            case "STACK_GLOBAL":
                stack.append(_Name(".".join(taken(len(stack) - 2))))
            case "REDUCE":
                stack.append(_call(*taken(len(stack) - 2)))
            case "BUILD":
                (state,) = taken(len(stack) - 1)
                last(_Slot).set_state(state)
            case name if name not in IGNORED:
                raise ValueError(f"it has the instruction {name}, which plain values do not need")
    (result,) = stack
    return result
