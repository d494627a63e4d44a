"""What there is to score, cut into parts: image files of a folder or a list, or rows of Parquet files.

Where a part begins and ends depends on the source alone, not on who works on it: the network is given the same rows together
whichever engine runs it, which is what makes results equal to the bit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

from outfield.config import require_number
from outfield.errors import FileFormatError, InputError, OutfieldError, StorageError, as_ours
from outfield.features import FeatureSet, arrow, columns_by_field, parquet_file, readable, values_of
from outfield.images import IMAGE_ENDINGS, Skipped, image_names
from outfield.scale.storage import Place, digest, stamp

LEAST, MOST, PARTS = 64, 4096, 64  # rows of a part: at least, at most; and how many parts a source has in between
TABLES, LISTS = ".parquet", (".txt", ".lst")
NAMES = ("file", "path", "name", "key")  # columns that say what a row is called; the first of them that is there counts
IMAGES = ("image", "bytes", "content")  # encoded images: bytes, or structures with ``bytes``, as of Hugging Face
FILES_AT_ONCE = 16
KNOWN = (
    "a folder of images, an image, a list of them (.txt, one address or path in each line), a Parquet file, a folder of these, "
    "or a pattern such as s3://bucket/part-*.parquet"
)


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a source: image files ``names`` in the folder ``root``, or rows of the Parquet file ``root``."""

    rows: int
    root: str
    prefix: str  # of a name in results
    names: tuple[str, ...] = ()
    stamp: str = ""  # another one where the Parquet file was changed
    start: int = 0
    number: int = 0

    @property
    def file(self) -> str:
        return f"part-{self.number:07d}.parquet"

    @property
    def stop(self) -> int:
        return self.start + self.rows

    def place(self) -> Place:
        """The Parquet file, shown as the user wrote it."""
        return replace(Place.of(self.root), shown=self.prefix)

    def addresses(self) -> list[str]:
        """Of its image files; a name in a list may be an address of its own."""
        own = ("://" in name or os.path.isabs(name) for name in self.names)
        root = self.root.rstrip("/")
        return [name if alone else f"{root}/{name}" for name, alone in zip(self.names, own, strict=True)]

    def files(self) -> list[str]:
        """What its rows are called in results: names of files, or of a Parquet file what a column says, else ``FILE#ROW``."""
        if self.names:
            return [readable(self.prefix + name) for name in self.names]
        with _parquet(place := self.place()) as file:
            there = {file.schema.column(place).path for place in range(len(file.schema))}
            column = next((name for name in (*NAMES, *(f"{one}.path" for one in IMAGES)) if name in there), None)
            cells = [None] * self.rows if column is None else self._table(file, [column]).column(0).to_pylist()
        cells = [cell["path"] if isinstance(cell, dict) else cell for cell in cells]
        return [
            f"{place.shown}#{row}" if cell is None else readable(str(cell))
            for row, cell in enumerate(cells, self.start)
        ]

    def holds_images(self) -> bool:
        """Whether its rows are images, encoded; otherwise they are features."""
        if self.names:
            return True
        with _parquet(self.place()) as file:
            return _column(file.schema_arrow, IMAGES) is not None

    def encoded_images(self) -> list[bytes | None]:
        """The images in rows of a Parquet file; None where a cell is empty."""
        types = arrow().types
        with _parquet(place := self.place()) as file:
            column = self._table(file, [_column(file.schema_arrow, IMAGES)]).column(0)
        if types.is_struct(column.type) and "bytes" in [field.name for field in column.type]:
            column = column.combine_chunks().field("bytes")
        if not (types.is_binary(column.type) or types.is_large_binary(column.type)):
            raise InputError(f"{place.shown}: images are encoded as bytes; their column holds {column.type}")
        found: list[bytes | None] = column.to_pylist()
        return found

    def features(self, fields: Sequence[str]) -> FeatureSet:
        """The features in rows of a Parquet file, and those of the fields that are there."""
        with _parquet(place := self.place()) as file:
            there, wanted = _fields(place, file.schema_arrow), ("features", *fields)
            found = {name: columns for name, columns in there.items() if name in wanted}
            (rows,) = self._table(file, [*chain(*found.values())]).combine_chunks().to_batches()
        with as_ours(f"{place.shown}, rows {self.start:,} to {self.stop:,}", None, OutfieldError):
            return FeatureSet(**values_of(_path(place), rows, found))

    def _table(self, file: Any, columns: Sequence[str | None]) -> Any:
        """Its rows of some columns, without holding other rows of their groups."""
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        edges = [*accumulate(sizes, initial=0)]
        if edges[-1] < self.stop:
            what = f"{self.prefix} has {edges[-1]:,} rows instead of {self.stop:,}"
            raise FileFormatError(f"{what}; it was changed meanwhile")
        groups = [group for group, (first, end) in enumerate(pairwise(edges)) if first < self.stop and end > self.start]
        done, held = edges[groups[0]], []
        for batch in file.iter_batches(1024, row_groups=groups, columns=columns):
            first, last = max(self.start - done, 0), min(self.stop - done, len(batch))
            held += [batch.slice(first, last - first)] if last > first else []
            done += len(batch)
            if done >= self.stop:
                break
        return arrow().Table.from_batches(held)

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Part:
        plain: dict[str, Any] = json.loads(text)
        return cls(**{**plain, "names": tuple(plain["names"])})


@contextmanager
def _parquet(place: Place) -> Iterator[Any]:
    """A Parquet file, whatever is wrong with it being one kind of error."""
    with place.opened() as file, as_ours(f"{place.shown} cannot be read as Parquet"), parquet_file(file) as opened:
        yield opened


def _column(schema: Any, wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in schema.names), None)


def _fields(place: Place, schema: Any) -> dict[str, list[str]]:
    """The columns of each field of features."""
    with as_ours(place.shown, None, OutfieldError):
        return columns_by_field(_path(place), [name for name in schema.names if name not in NAMES])


def _path(place: Place) -> Path:
    """Its name alone, since an address is no path."""
    return Path(place.path.rpartition("/")[2])


@dataclass(frozen=True)
class Catalog:
    """All rows of a source, one part or one for each Parquet file; the digest is of names, sizes and times of change."""

    wholes: tuple[Part, ...]
    digest: str
    tables: bool = False

    def __len__(self) -> int:
        return sum(one.rows for one in self.wholes)

    def parts(self, size: int) -> list[Part]:
        """All rows in parts of ``size`` at most; none reaches from one Parquet file into another."""
        require_number("part_rows", size, least=1, whole=True)
        cut: list[Part] = []
        for one in self.wholes:
            for start in range(0, one.rows, size):
                rows, names = min(size, one.rows - start), one.names[start : start + size]
                cut.append(replace(one, number=len(cut), start=start, rows=rows, names=names))
        return cut


def default_part_rows(rows: int) -> int:
    """Rows of a part by default: whole batches, parts enough to share out, not too many files.

    >>> [default_part_rows(rows) for rows in (10, 10_000, 10**9)]
    [64, 128, 4096]
    """
    return min(MOST, max(LEAST, rows // PARTS // LEAST * LEAST))


def catalog(source: str) -> Catalog:
    """What there is to score at an address."""
    place = Place.of(source)
    if "*" in source:
        return _tables([one for one in place.matches() if one.suffix == TABLES], source)
    if place.is_folder():
        return _folder(place)
    if not place.exists():
        raise StorageError(f"cannot read {source}: there is no such file or folder")
    if place.suffix == TABLES:
        return _tables([place], source)
    if place.suffix in LISTS:
        return _list(place)
    if place.suffix in IMAGE_ENDINGS:
        folder, _, name = place.address.rpartition("/")
        return Catalog((Part(1, folder, source[: len(source) - len(name)], (name,)),), digest(source, place.stamp()))
    raise InputError(f"{source} is nothing that can be scored; pass {KNOWN}")


def _folder(place: Place) -> Catalog:
    """Image files or Parquet files, at any depth, hidden ones left out."""
    stamps = _stamps_here(place) if place.local else place.stamps()
    names = [name for name in stamps if not any(piece.startswith(".") for piece in name.split("/"))]
    names.sort(key=lambda name: name.split("/"))
    tables = [name for name in names if name.lower().endswith(TABLES)]
    images = [name for name in names if name.lower().endswith(IMAGE_ENDINGS)]
    if tables and images:
        raise InputError(f"{place.shown} holds images, such as {images[0]}, and {tables[0]}; name one kind of them")
    if tables:
        return _tables([place.under(name) for name in tables], place.shown)
    if not images:
        raise InputError(f"there is nothing in {place.shown} that can be scored; pass {KNOWN}")
    prefix = f"{place.shown.rstrip('/')}/"
    about = [text for name in images for text in (name, stamps[name])]
    return Catalog((Part(len(images), place.address, prefix, tuple(images)),), digest(prefix, *about))


def _stamps_here(place: Place) -> dict[str, str]:
    """Stamps of images, through links but never round in circles, and of Parquet files; empty for what cannot be opened."""
    refused: list[Skipped] = []
    found = [*image_names(place.path, refused), *(one.name for one in refused)]
    for folder, _, names in os.walk(place.path):
        inner = os.path.relpath(folder, place.path)
        found += [os.path.normpath(f"{inner}/{name}") for name in names if name.lower().endswith(TABLES)]
    stamps = dict.fromkeys(found, "")
    for name in stamps:
        with suppress(OSError):
            status = os.stat(f"{place.path}/{name}")
            stamps[name] = stamp({"size": status.st_size, "mtime": status.st_mtime_ns})
    return stamps


def _list(place: Place) -> Catalog:
    with as_ours(f"{place.shown} is no list of images: it is not text in UTF-8", InputError, UnicodeDecodeError):
        lines = place.read().decode().splitlines()
    names = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not names:
        raise InputError(f"there is no image in the list {place.shown}; write an address or a path in each line")
    return Catalog((Part(len(names), place.address.rpartition("/")[0], "", names),), digest(place.shown, *names))


def _tables(places: Sequence[Place], shown: str) -> Catalog:
    if not places:
        raise InputError(f"there is no Parquet file at {shown}; pass {KNOWN}")
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        wholes = [*pool.map(_whole, places)]
    if not any(one.rows for one in wholes):
        raise InputError(f"the Parquet files at {shown} have no rows; at least one is needed")
    about = [text for one in wholes for text in (one.prefix, one.stamp)]
    return Catalog(tuple(one for one in wholes if one.rows), digest(*about), tables=True)


def _whole(place: Place) -> Part:
    """All rows of a Parquet file, whose columns must be encoded images or features."""
    with _parquet(place) as file:
        if _column(file.schema_arrow, IMAGES) is None:
            _fields(place, file.schema_arrow)
        rows = int(file.metadata.num_rows)
    return Part(rows, place.address, place.shown, (), place.stamp())
