"""Rows of Parquet files at any address: encoded images or features, and what the rows are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outfield.cluster.places import Place
from outfield.errors import FileFormatError, InputError, OutfieldError
from outfield.features.column_names import columns_by_field
from outfield.features.columns import arrow, readable, values_of
from outfield.features.set import FeatureSet

NAMES = ("file", "path", "name", "key")
"""Columns that say what a row is called; the first of them that is there counts."""
IMAGES = ("image", "bytes", "content")
"""Columns of encoded images: of bytes, or of structures with ``bytes``, as the data sets of Hugging Face have them."""
ROWS_AT_ONCE = 1024
"""Rows decoded together."""


@contextmanager
def opened(place: Place) -> Iterator[Any]:
    """A Parquet file, whatever is wrong with it being one kind of error."""
    parquet = arrow().parquet
    with place.opened() as file:
        try:
            options = {"buffer_size": 2**20, "pre_buffer": False, "page_checksum_verification": True}
            with parquet.ParquetFile(file, **options) as opened_file:
                yield opened_file
        except OutfieldError:
            raise
        except Exception as error:  # a damaged file leads to errors of many kinds
            why = str(error).strip().partition("\n")[0]
            raise FileFormatError(f"{place.shown} cannot be read as Parquet: {why:.300}") from error


def count(place: Place) -> int:
    """How many rows a file has, as its last bytes say.

    Raises:
        FileFormatError: it is no Parquet file, or its columns are neither encoded images nor features.
    """
    with opened(place) as file:
        schema = file.schema_arrow
        if _column(schema.names, IMAGES) is None:
            _fields(place, schema)
        return int(file.metadata.num_rows)


def _fields(place: Place, schema: Any) -> dict[str, list[str]]:
    """Which columns make up each field of features."""
    with _named(place.shown):
        return columns_by_field(_path(place), [name for name in schema.names if name not in NAMES])


def _path(place: Place) -> Path:
    """Its name alone, since an address is no path."""
    return Path(place.path.rpartition("/")[2])


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Errors that say where the rows lie."""
    try:
        yield
    except OutfieldError as error:
        raise type(error)(f"{where}: {error}") from error


def _column(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _table(place: Place, start: int, stop: int, chosen: Any) -> Any:
    """Rows ``start`` to ``stop`` of some columns, of which ``chosen`` says the names when it has seen the schema."""
    with opened(place) as file:
        names = chosen(file.schema_arrow)
        ends, groups, first = 0, [], None
        for group in range(file.metadata.num_row_groups):
            begins, ends = ends, ends + file.metadata.row_group(group).num_rows
            if begins < stop and ends > start:
                groups.append(group)
                first = begins if first is None else first
        if first is None or ends < stop:
            raise FileFormatError(
                f"{place.shown} has {ends:,} rows, where {stop:,} were counted; it was changed meanwhile"
            )
        held, done = [], first
        for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=names):
            cut = batch.slice(max(0, start - done), max(0, min(stop, done + len(batch)) - max(start, done)))
            held += [cut] if len(cut) else []
            done += len(batch)
            if done >= stop:
                break
        return arrow().Table.from_batches(held)


def holds_images(place: Place) -> bool:
    """Whether there is a column of encoded images; otherwise the columns are features."""
    with opened(place) as file:
        return _column(file.schema_arrow.names, IMAGES) is not None


def named_rows(place: Place, start: int, stop: int) -> list[str]:
    """What rows are called: what a column of :data:`NAMES`, or the path within an image's structure, says, else ``FILE#ROW``."""

    def chosen(schema: Any) -> list[str]:
        own, image = _column(schema.names, NAMES), _column(schema.names, IMAGES)
        if own is not None:
            return [own]
        return [f"{image}.path"] if image is not None and _has_path(schema.field(image).type) else []

    with opened(place) as file:
        if not chosen(file.schema_arrow):
            return [f"{place.shown}#{row}" for row in range(start, stop)]
    column = _table(place, start, stop, chosen).column(0).to_pylist()
    column = [cell["path"] if isinstance(cell, dict) else cell for cell in column]
    return [f"{place.shown}#{start + i}" if cell is None else readable(str(cell)) for i, cell in enumerate(column)]


def _has_path(kind: Any) -> bool:
    return bool(arrow().types.is_struct(kind)) and "path" in [field.name for field in kind]


def encoded_images(place: Place, start: int, stop: int) -> list[bytes | None]:
    """The encoded images of rows; None where a cell is empty.

    Raises:
        InputError: the column holds something else than bytes.
    """

    def chosen(schema: Any) -> list[str]:
        name = _column(schema.names, IMAGES)
        return [] if name is None else [name]

    column = _table(place, start, stop, chosen).column(0)
    types = arrow().types
    if types.is_struct(column.type):
        column = column.combine_chunks().field("bytes") if "bytes" in [field.name for field in column.type] else column
    if not (types.is_binary(column.type) or types.is_large_binary(column.type)):
        raise InputError(f"{place.shown}: images are encoded as bytes; their column holds {column.type}")
    found: list[bytes | None] = column.to_pylist()
    return found


def feature_rows(place: Place, start: int, stop: int, fields: Sequence[str] | None = None) -> FeatureSet:
    """The features of rows, and other fields.

    Args:
        place: the file.
        start: the first row.
        stop: the first row behind them.
        fields: those that are read, as far as they are there; all if None. Features always are.

    Raises:
        FileFormatError: the columns are not those of a set of features.
        InputError: a cell is empty, or holds something else than finite numbers.
    """
    found: dict[str, list[str]] = {}

    def chosen(schema: Any) -> list[str]:
        found.update(_fields(place, schema))
        for name in [*found]:
            if fields is not None and name not in ("features", *fields):
                del found[name]
        return [column for columns in found.values() for column in columns]

    (rows,) = _table(place, start, stop, chosen).combine_chunks().to_batches()
    with _named(f"{place.shown}, rows {start:,} to {stop:,}"):
        return FeatureSet(**values_of(_path(place), rows, found))
