"""The images of a part, each decoded when the guard asks for it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from outfield.cluster.parquet import encoded_images
from outfield.cluster.parts import Part
from outfield.cluster.places import Place
from outfield.errors import FileFormatError, OutfieldError, StorageError
from outfield.files.opened import open_to_read
from outfield.images.decoding import BYTES_AT_MOST, decode
from outfield.images.source import ImageSource

WINDOW = 64
"""Files that are asked for together: object stores take long to begin an answer, and send many at once."""

MAGIC = re.compile(r"[*?\[]")
"""What makes a name a pattern."""


class PartImages(ImageSource):
    """The images of a part.

    Args:
        part: of image files, or of rows of a Parquet file that holds images.
        names: what its rows are called.
    """

    def __init__(self, part: Part, names: Sequence[str]) -> None:
        self.part, self.files, self.name = part, tuple(names), part.file
        self.names = self.files
        self.labels, self.classes = None, None
        self._first = 0
        self._window: list[Any] = []
        if not part.names:
            self._window = [*encoded_images(part.place(), part.start, part.stop)]

    def __len__(self) -> int:
        return self.part.rows

    @property
    def size(self) -> None:
        return None

    def fingerprint(self) -> str:
        return hashlib.sha256(self.part.to_text().encode()).hexdigest()

    def __getitem__(self, index: int) -> np.ndarray:
        where = self.files[index]
        if not self._first <= index < self._first + len(self._window):
            self._first = index
            self._window = _read(self.part.addresses()[index : index + WINDOW])
        content = self._window[index - self._first]
        if content is None:
            raise FileFormatError(f"{where} is empty")
        if isinstance(content, OutfieldError):
            raise content
        if not isinstance(content, bytes):
            why = "there is no such file" if isinstance(content, FileNotFoundError) else content
            raise StorageError(f"cannot read {where}: {why}")
        return decode(content, where)


def _read(addresses: Sequence[str]) -> list[bytes | Exception]:
    """The contents of files, or why there is none; those of one file system are asked for together.

    An address that leads nowhere, such as one of a kind that nobody knows, is the error of its own row alone.
    """
    places = [_place(address) for address in addresses]
    known = [place for place in places if isinstance(place, Place)]
    contents: dict[tuple[int, str], bytes | Exception] = {}
    for system in {id(place.system): place.system for place in known}.values():
        own = [place for place in known if place.system is system]
        for path, content in _contents(own).items():
            contents[id(system), path] = content
    return [contents[id(place.system), place.path] if isinstance(place, Place) else place for place in places]


def _place(address: str) -> Place | OutfieldError:
    try:
        return Place.of(address)
    except OutfieldError as error:
        return error


def _contents(places: Sequence[Place]) -> dict[str, bytes | Exception]:
    """What files of one file system hold, by their paths."""
    system, paths = places[0].system, list(dict.fromkeys(place.path for place in places))
    if places[0].local:
        return {path: _of_this_machine(path) for path in paths}
    single = [path for path in paths if MAGIC.search(path)]  # fsspec would take such names for patterns
    found: dict[str, bytes | Exception] = {path: _alone(system, path) for path in single}
    many = [path for path in paths if path not in found]
    try:
        found |= dict(system.cat(many, on_error="return")) if len(many) > 1 else {}
    except Exception as error:  # clients of object stores raise nearly anything
        found |= dict.fromkeys(many, error)
    return found | {path: _alone(system, path) for path in many if path not in found}


def _alone(system: Any, path: str) -> bytes | Exception:
    try:
        return bytes(system.cat_file(path))
    except Exception as error:  # clients of object stores raise nearly anything
        return error


def _of_this_machine(path: str) -> bytes | Exception:
    """An ordinary file; a pipe, whose end would never come, is none."""
    try:
        with open_to_read(path) as file:
            content = file.read(BYTES_AT_MOST + 1)
    except (OSError, OutfieldError) as error:
        return OSError(str(error).partition(f"{path}: ")[2] or str(error))
    if len(content) > BYTES_AT_MOST:
        return OSError(f"an image may have {BYTES_AT_MOST:,} bytes")
    return content
