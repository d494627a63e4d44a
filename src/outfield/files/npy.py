"""The header of an ``.npy`` array: its type, shape and order, read without evaluating anything."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from outfield.errors import FileFormatError, InputError
from outfield.files.opened import Stamp, open_to_read, read_at
from outfield.files.paths import PathLike, as_path
from outfield.files.stored import ArrayOnDisk, StoredArray

MAGIC = b"\x93NUMPY"
NUMBERS = "fiubc"
"""The kinds of dtype that are numbers, as numpy abbreviates them."""
LENGTHS = {(1, 0): "<H", (2, 0): "<I", (3, 0): "<I"}
"""How the length of the header is written, by version."""
LONGEST = 10_000
"""Bytes of the longest header that is read, as in numpy."""
MOST_SIDES = 32
"""Dimensions of an array: as many as every numpy has."""
OTHERS = "SUVMm"
"""The kinds that are bytes, text, tables and times."""
ITEM = re.compile(
    r"""\s* (['"]) (?P<name>descr|fortran_order|shape) \1 \s* : \s*
    (?: (['"])(?P<text>[^'"]*)\3 | (?P<truth>True|False) | \((?P<tuple>[\d\sL,]*)\) | (?P<list>\[.*\]) )
    \s* (?:,\s*|$)""",
    re.DOTALL | re.VERBOSE,
)
"""One entry of the header."""
KINDS = {"descr": ("text", "list"), "fortran_order": ("truth",), "shape": ("tuple",)}
"""What each entry may be; a list describes the columns of a table."""


@dataclass(frozen=True)
class NpyHeader:
    """What stands before the bytes of an array.

    Attributes:
        dtype: of an entry.
        shape: of the array.
        columns_first: whether it is written column by column.
        raw: the header itself.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    columns_first: bool
    raw: bytes


def read_header(path: PathLike, read: Callable[[int], bytes], kinds: str = NUMBERS) -> NpyHeader:
    """The header that ``read`` gives, which is asked for so many bytes and gives fewer only where there are no more.

    Args:
        path: of the file, for messages.
        read: gives the next bytes.
        kinds: of dtype, as numpy abbreviates them, that are taken.

    Raises:
        FileFormatError: it is not such a header, or its array would have to be unpickled.
        InputError: it is an array of something else than numbers.
    """

    def exactly(count: int) -> bytes:
        content = read(count)
        if len(content) < count:
            raise _broken(path, "its header does not end")
        return content

    start = exactly(8)
    version = tuple(start[6:])
    if start[:6] != MAGIC or version not in LENGTHS:
        raise _broken(path, f"it begins with {start!r}")
    size = exactly(struct.calcsize(LENGTHS[version]))
    (length,) = struct.unpack(LENGTHS[version], size)
    if length > LONGEST:
        raise _broken(path, f"its header is said to have {length:,} bytes")
    text = exactly(length)
    entries = _entries(path, text.decode("latin1"))
    shape = _shape(path, entries["shape"])
    columns_first = entries["fortran_order"] == "True" and len(shape) > 1
    return NpyHeader(_dtype(path, entries["descr"], kinds), shape, columns_first, start + size + text)


def _entries(path: PathLike, text: str) -> dict[str, str]:
    """The three entries, each once."""
    inside = re.fullmatch(r"\s*\{(.*)\}\s*", text, re.DOTALL)
    found: dict[str, str] = {}
    at, content = 0, inside[1] if inside else ""
    while match := ITEM.match(content, at):
        at, name, kind = match.end(), match["name"], str(match.lastgroup)
        if kind not in KINDS[name] or name in found:
            raise _broken(path, f"its {name} is none, or stands twice")
        found[name] = match[kind]
    if at < len(content) or len(found) < len(KINDS):
        raise _broken(path, f"its header is {text[:100]!r}")
    return found


def _dtype(path: PathLike, described: str, kinds: str) -> np.dtype[Any]:
    match = re.fullmatch(r"[<>=|]?([a-zA-Z?])\d{0,9}(\[\w*\])?", described)
    if match and match[1] == "O":
        raise FileFormatError(f"{path} holds pickled objects, which are never unpickled; save plain arrays")
    if match and match[1] in kinds:
        with contextlib.suppress(TypeError, ValueError):
            dtype = np.dtype(described)
            if dtype.itemsize:
                return dtype
    if described.startswith("[") or (match and match[1] in OTHERS):
        raise InputError(f"{path} must hold an array of numbers; it holds {described}")
    raise _broken(path, f"it holds numbers of the type {described!r}")


def _shape(path: PathLike, text: str) -> tuple[int, ...]:
    sides = [side.strip().removesuffix("L") for side in text.split(",")]  # Python 2 wrote 3L
    if not sides[-1]:
        sides.pop()
    if len(sides) > MOST_SIDES or not all(re.fullmatch(r"\d{1,18}", side) for side in sides):
        raise _broken(path, f"its shape is ({text[:100]})")
    return tuple(int(side) for side in sides)


def find_npy(path: PathLike) -> ArrayOnDisk:
    """Where the array of an ``.npy`` file lies.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it is truncated, or not an ``.npy`` file.
        InputError: it holds something else than numbers.
    """
    path = as_path(path)
    with open_to_read(path) as file:
        stamp, at = Stamp.of_opened(path, file), 0

        def read(count: int) -> bytes:
            nonlocal at
            content = read_at(file, at, min(count, stamp.size - at), path)
            at += len(content)
            return content

        header = read_header(path, read)
    found = ArrayOnDisk(
        stamp=stamp, offset=at, dtype=header.dtype, shape=header.shape, columns_first=header.columns_first
    )
    check_size(found, stamp.size - at)
    return found


def check_size(array: StoredArray, there: int) -> None:
    """Refuse an array of which more or fewer bytes are there than its header says."""
    path = array.stamp.path
    if array.size > there or array.extent >= 2**63:
        raise FileFormatError(f"{path} is truncated: it should hold an array of shape {array.shape}")
    if array.size < there:
        raise FileFormatError(f"{path} holds {there - array.size:,} bytes more than an array of shape {array.shape}")


def _broken(path: PathLike, why: str) -> FileFormatError:
    return FileFormatError(f"{path} is truncated, or is not an .npy file ({why})")
