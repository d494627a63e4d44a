"""What there is to score: a folder of images, a list of them, or Parquet files, as parts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count as numbers

from outfield.cluster.parquet import count
from outfield.cluster.parts import Part, rows_of_a_part
from outfield.cluster.places import Place, digest, stamp
from outfield.config import require_number
from outfield.errors import InputError, OutfieldError, StorageError
from outfield.images.folders import ENDINGS, image_names
from outfield.images.skipped import Skipped

TABLES = ".parquet"
LISTS = (".txt", ".lst")
"""Endings of lists of images, an address or a path in each line."""
AT_ONCE = 16
"""Files that are looked at at the same time."""
KNOWN = (
    "a folder of images, an image, a list of them (.txt, one address or path in each line), a Parquet file, a folder of these, "
    "or a pattern such as s3://bucket/part-*.parquet"
)


@dataclass(frozen=True)
class Stretch:
    """Rows that lie together: image files under one root, or all rows of a Parquet file.

    Attributes:
        root: see :class:`Part`.
        prefix: see :class:`Part`.
        names: of image files; None of a Parquet file.
        rows: how many.
        stamp: see :class:`Part`.
    """

    root: str
    prefix: str
    names: tuple[str, ...] | None
    rows: int
    stamp: str = ""


@dataclass(frozen=True)
class Listing:
    """All rows of a source.

    Attributes:
        stretches: where they lie.
        digest: of their names, sizes and times of change: another one where the source was changed.
        tables: whether they are rows of Parquet files.
    """

    stretches: tuple[Stretch, ...]
    digest: str
    tables: bool

    def __len__(self) -> int:
        return sum(one.rows for one in self.stretches)

    def parts(self, rows: int | None = None) -> list[Part]:
        """All rows in parts of ``rows`` at most; none of them reaches from one Parquet file into another.

        Raises:
            InputError: ``rows`` is no positive number.
        """
        if rows is not None:
            require_number("part_rows", rows, least=1, whole=True)
        return [*self._cut(rows_of_a_part(len(self)) if rows is None else rows)]

    def _cut(self, size: int) -> Iterator[Part]:
        number = numbers()
        for one in self.stretches:
            for start in range(0, one.rows, size):
                stop = min(start + size, one.rows)
                names = () if one.names is None else one.names[start:stop]
                yield Part(next(number), stop - start, one.root, one.prefix, names, start, one.stamp)


def listing(source: str) -> Listing:
    """What there is at an address.

    Raises:
        InputError: there is nothing that can be scored.
        StorageError: there is nothing, or it cannot be read.
    """
    place = Place.of(source)
    if "*" in source:
        found = place.matches()
        return _tables([one for one in found if one.suffix == TABLES], source)
    if place.is_folder():
        return _folder(place)
    if not place.exists():
        raise StorageError(f"cannot read {source}: there is no such file or folder")
    if place.suffix == TABLES:
        return _tables([place], source)
    if place.suffix in LISTS:
        return _list(place)
    if place.suffix in ENDINGS:
        folder, _, name = place.address.rpartition("/")
        prefix = source[: len(source) - len(name)]
        return Listing((Stretch(folder, prefix, (name,), 1),), digest(source, place.stamp()), False)
    raise InputError(f"{source} is nothing that can be scored; pass {KNOWN}")


def _folder(place: Place) -> Listing:
    """Image files or Parquet files, at any depth, hidden ones left out."""
    stamps = _files_of_this_machine(place) if place.local else {n: stamp(told) for n, told in place.files().items()}
    names = sorted((name for name in stamps if not _hidden(name)), key=lambda name: name.split("/"))
    tables = [name for name in names if name.lower().endswith(TABLES)]
    images = [name for name in names if name.lower().endswith(ENDINGS)]
    if tables and images:
        raise InputError(
            f"{place.shown} holds both images, such as {images[0]}, and {tables[0]}; name one kind of them"
        )
    if tables:
        return _tables([place.under(name) for name in tables], place.shown)
    if not images:
        raise InputError(f"there is nothing in {place.shown} that can be scored; pass {KNOWN}")
    prefix = f"{place.shown.rstrip('/')}/"
    told = [text for name in images for text in (name, stamps[name])]
    return Listing((Stretch(place.address, prefix, tuple(images), len(images)),), digest(prefix, *told), False)


def _files_of_this_machine(place: Place) -> dict[str, str]:
    """Images, through links too but never round in circles, and Parquet files; each with what tells that it was changed.

    What is named like an image and cannot be opened is told when it is read.
    """
    refused: list[Skipped] = []
    found = [*image_names(place.path, refused), *(one.name for one in refused if one.name.lower().endswith(ENDINGS))]
    for folder, _, names in os.walk(place.path):
        inner = os.path.relpath(folder, place.path)
        found += [os.path.normpath(f"{inner}/{name}") for name in names if name.lower().endswith(TABLES)]
    return {name: _stamp_here(f"{place.path}/{name}") for name in found}


def _stamp_here(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return stamp({"size": status.st_size, "mtime": status.st_mtime_ns})


def _hidden(name: str) -> bool:
    return any(piece.startswith(".") for piece in name.split("/"))


def _list(place: Place) -> Listing:
    try:
        lines = place.read().decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{place.shown} is no list of images: it is not text in UTF-8") from error
    names = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not names:
        raise InputError(f"there is no image in the list {place.shown}; write an address or a path in each line")
    folder = place.address.rpartition("/")[0]
    return Listing((Stretch(folder, "", names, len(names)),), digest(place.shown, *names), False)


def _tables(places: Sequence[Place], shown: str) -> Listing:
    if not places:
        raise InputError(f"there is no Parquet file at {shown}; pass {KNOWN}")

    def looked_at(place: Place) -> tuple[int, str] | OutfieldError:
        try:
            return count(place), place.stamp()
        except OutfieldError as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = [*pool.map(looked_at, places)]
    stretches, told = [], []
    for place, seen in zip(places, found, strict=True):
        if isinstance(seen, OutfieldError):
            raise seen
        told += [place.shown, seen[1]]
        stretches += [Stretch(place.address, place.shown, None, *seen)] if seen[0] else []
    if not stretches:
        raise InputError(f"the Parquet files at {shown} have no rows; at least one is needed")
    return Listing(tuple(stretches), digest(*told), True)
