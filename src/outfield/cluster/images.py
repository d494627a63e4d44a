"""The images of a part, each decoded when the guard asks for it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from outfield.cluster.parquet import encoded_images
from outfield.cluster.parts import Part
from outfield.cluster.places import Place
from outfield.errors import FileFormatError, StorageError
from outfield.images.decoding import decode
from outfield.images.source import ImageSource

WINDOW = 64
"""Files that are asked for together: object stores take long to begin an answer, and send many at once."""


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
            self._window = [*encoded_images(Place.of(part.root), part.start, part.stop)]

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
        if not isinstance(content, bytes):
            why = "there is no such file" if isinstance(content, FileNotFoundError) else content
            raise StorageError(f"cannot read {where}: {why}")
        return decode(content, where)


def _read(addresses: Sequence[str]) -> list[bytes | Exception]:
    """The contents of files, or why there is none, those of one file system asked for together."""
    found: list[bytes | Exception] = []
    places = [Place.of(address) for address in addresses]
    while len(found) < len(places):
        system = places[len(found)].system
        same = []
        for place in places[len(found) :]:
            if place.system is not system:
                break
            same.append(place.path)
        try:
            contents = system.cat(list(dict.fromkeys(same)), on_error="return")
        except Exception as error:  # clients of object stores raise nearly anything
            contents = dict.fromkeys(same, error)
        if not isinstance(contents, dict):  # of a single path
            contents = {same[0]: contents}
        found += [contents[path] for path in same]
    return found
