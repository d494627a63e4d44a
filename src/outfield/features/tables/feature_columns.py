"""Features in the columns of CSV and Parquet files, one row a sample.

Columns ``feature_0, feature_1, …`` (or, where cells can be lists, one column ``features``) are the features; ``logit_*`` and the
other fields likewise; ``label`` is the class. Any other column is an error, so that nothing is taken for a feature by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from outfield.errors import FileFormatError, InputError
from outfield.features.fields import FIELDS, Field
from outfield.features.source import rebatched
from outfield.features.tables.reader import arrow, csv_header, opened, whole_csv
from outfield.files import Stamp

ROWS_AT_ONCE = 8192
"""Rows of a Parquet file decoded together."""
SHOWN = 60
"""Letters of a column's name that a message shows."""


def columns_by_field(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Which columns make up each field, in their order: one of lists or numbers, or one for each entry of a row."""
    if not names:
        raise FileFormatError(f"{path} has no columns; expected {_expected()}")
    if all(re.fullmatch(r"\s*[-+.\deE]+\s*", name) for name in names):
        raise FileFormatError(f"{path} has no header; its first line must name the columns: {_expected()}")
    if len(set(names)) < len(names):
        raise FileFormatError(f"{path} has two columns of the same name; each name may stand once")
    columns: dict[str, list[str]] = {}
    numbered: dict[str, dict[int, str]] = {}
    for name in names:
        field, number = _meant(path, name)
        if number is None:
            columns.setdefault(field.name, []).append(name)
        else:
            numbered.setdefault(field.name, {})[number] = name
    for field_name, found in numbered.items():
        if sorted(found) != list(range(len(found))):
            raise FileFormatError(
                f"{path}: the columns of {field_name} must be numbered 0 to {len(found) - 1} without gaps"
            )
        columns.setdefault(field_name, []).extend(found[i] for i in range(len(found)))
    _refuse_twice(path, columns)
    if "features" not in columns:
        raise FileFormatError(f"{path} has no columns feature_0, feature_1, …; it has {', '.join(names[:6]):.200}")
    return columns


def _meant(path: Path, column: str) -> tuple[Field, int | None]:
    """The field that a column belongs to, and which of its columns it is (None where it holds the whole field)."""
    stem, _, number = column.rpartition("_")
    for field in filter(_has_columns, FIELDS.values()):
        if column == field.name or (column == field.column and len(field.axes) == 1):
            return field, None
        if stem == field.column and len(field.axes) == 2 and re.fullmatch(r"0|[1-9][0-9]{0,8}", number):
            return field, int(number)
    shown = repr(column if len(column) <= SHOWN else column[:SHOWN] + "…")
    raise FileFormatError(
        f"{path} has a column {shown}; expected {_expected()}. A table whose columns have names of their own becomes features by "
        "FeatureSet.from_frame, and a guard by outfield guard rows"
    )


def _has_columns(field: Field) -> bool:
    return field.per_row


def _refuse_twice(path: Path, columns: dict[str, list[str]]) -> None:
    for name, found in columns.items():
        if len(found) > 1 and (name in found or len(FIELDS[name].axes) == 1):
            raise FileFormatError(f"{path} has {name} twice, as columns {found[0]} and {found[1]}; keep one")


def _expected() -> str:
    first, *others = filter(_has_columns, FIELDS.values())
    shown = ", ".join(field.column + "_*" * (len(field.axes) - 1) for field in others)
    return f"{first.column}_0, {first.column}_1, … perhaps {shown}"


def read_features_csv(path: Path) -> dict[str, np.ndarray]:
    """The fields in the columns of a CSV file, by name: numbers as float64, classes as int64."""
    stamp = Stamp.of(path)
    with opened(stamp) as file:
        names = csv_header(path, file)
        columns = columns_by_field(path, names)
        if file.tell() == stamp.size:
            raise InputError(f"{path} has no rows; at least one is needed")
        counting = {column for name, found in columns.items() if FIELDS[name].counts is not None for column in found}
        types = {name: arrow().int64() if name in counting else arrow().float64() for name in names}
        table = whole_csv(path, file, names, types, null_values=[""])
        if table.column_names != names:
            raise FileFormatError(f"{path} cannot be read as csv: its header is not one line of names")
        if not table.num_rows:
            raise InputError(f"{path} has no rows; at least one is needed")
        stamp.check()
        return values_of(path, table, columns)


class ParquetColumns:
    """The fields in a Parquet file, read some thousand rows at a time.

    Attributes:
        stamp: The file.
        shapes: The shapes of the fields, by name.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It cannot be read, or its columns are not those of a set of features.
        InputError: It has no row, or a column holds something else than numbers.
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.stamp = Stamp.of(path)
        with self._open() as file:
            self.columns = columns_by_field(path, file.schema_arrow.names)
            self.rows = file.metadata.num_rows
            if not self.rows:
                raise InputError(f"{path} has no rows; at least one is needed")
            first = next(file.iter_batches(1, columns=self._wanted(tuple(self.columns))), None)
            if first is None:
                raise self._cut(0)
            values = values_of(path, first, self.columns)
        self.shapes = {name: (self.rows, *value.shape[1:]) for name, value in values.items()}

    @contextmanager
    def _open(self) -> Iterator[Any]:
        with opened(self.stamp) as file:
            # Buffered, since otherwise a row group's columns are read whole.
            options = {"buffer_size": 2**20, "pre_buffer": False, "page_checksum_verification": True}
            with arrow().parquet.ParquetFile(file, **options) as parquet:
                yield parquet

    def _wanted(self, names: Sequence[str]) -> list[str]:
        return [column for name in names for column in self.columns[name]]

    def _cut(self, rows: int) -> FileFormatError:
        return FileFormatError(f"{self.stamp.path} should hold {self.rows:,} rows, but holds {rows:,}")

    def pieces(self, size: int, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """The fields ``names`` in pieces of ``size`` rows, whatever the row groups are, the last perhaps shorter."""
        return rebatched(self._decoded(names), size, np.concatenate)

    def whole(self) -> dict[str, np.ndarray]:
        """All fields of all rows."""
        (found,) = self.pieces(self.rows, tuple(self.columns))
        self.stamp.check()
        return found

    def _decoded(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        total = 0
        with self._open() as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=self._wanted(names)):
                total += batch.num_rows
                if total > self.rows:
                    raise self._cut(total)
                yield self._decode(batch, names)
        if total != self.rows:
            raise self._cut(total)

    def _decode(self, batch: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
        values = values_of(self.stamp.path, batch, {name: self.columns[name] for name in names})
        for name, value in values.items():
            if value.shape[1:] != self.shapes[name][1:]:
                raise InputError(
                    f"{self.stamp.path}: the lists in column {name!r} must all have the same length; "
                    f"the first has {self.shapes[name][1]}, a later one {value.shape[1]}"
                )
        return values


def values_of(path: Path, batch: Any, columns: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """The fields of some rows (a record batch or a table of pyarrow), each from its columns."""
    values = {}
    for name, found in columns.items():
        if len(FIELDS[name].axes) == 1:
            values[name] = _numbers(path, batch.column(found[0]), found[0])
        elif list(found) == [name]:
            values[name] = _lists(path, batch.column(name), name)
        else:
            values[name] = np.stack([_numbers(path, batch.column(column), column) for column in found], axis=1)
    return values


def _numbers(path: Path, column: Any, name: str) -> np.ndarray:
    """A column of pyarrow without empty cells, as an array."""
    if arrow().types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        raise InputError(f"{path}: column {name!r} has {column.null_count} empty cells; every cell must hold a number")
    kinds = arrow().types
    if not (kinds.is_integer(column.type) or kinds.is_floating(column.type)):
        raise InputError(f"{path}: column {name!r} holds {column.type}, not numbers")
    array: np.ndarray = np.asarray(column)
    return array


def _lists(path: Path, column: Any, name: str) -> np.ndarray:
    types = arrow().types
    if not any(check(column.type) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        raise FileFormatError(f"{path}: column {name!r} must hold lists of numbers; it holds {column.type}")
    if column.null_count:
        raise InputError(f"{path}: column {name!r} has {column.null_count} empty cells; every cell must hold a list")
    flat = _numbers(path, column.flatten(), name)
    lengths = (
        {column.type.list_size} if types.is_fixed_size_list(column.type) else set(column.value_lengths().to_pylist())
    )
    if len(lengths) != 1:
        raise InputError(
            f"{path}: the lists in column {name!r} must all have the same length; there are {sorted(lengths)[:4]}"
        )
    return flat.reshape(len(column), lengths.pop())
