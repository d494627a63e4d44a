"""Features in the columns of CSV and Parquet files, one row a sample; and scores as columns of a file.

pyarrow reads and writes both; it is imported when a table is.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from outfield.errors import FileFormatError, InputError, OutfieldError
from outfield.extras import library
from outfield.features.column_names import columns_by_field
from outfield.features.fields import FIELDS
from outfield.files.atomic import write_atomically, write_bytes, write_npz
from outfield.files.opened import Stamp

ROWS_AT_ONCE = 8192
"""Rows of a Parquet file decoded together."""
EXACT = 2**53
"""Up to this size every integer is a float64."""


@cache
def arrow() -> Any:
    """pyarrow with the modules that read and write files.

    Raises:
        MissingExtraError: It is not installed.
    """
    library("pyarrow.csv", extra="tables")
    library("pyarrow.parquet", extra="tables")
    return library("pyarrow", extra="tables")


@contextmanager
def opened(stamp: Stamp) -> Iterator[BinaryIO]:
    """A table's file, to be read by pyarrow, of which every error becomes one of ours."""
    kind = stamp.path.suffix[1:]
    with io.BufferedReader(stamp.open()) as file:
        try:
            yield file
        except OutfieldError:
            raise
        except Exception as error:  # a damaged file leads to errors of many kinds
            reason = str(error).strip().partition("\n")[0]
            raise FileFormatError(f"{stamp.path} cannot be read as {kind}: {reason:.300}") from error


def whole_parquet(file: Any, columns: Sequence[str] | None = None) -> Any:
    """A Parquet file as a table of pyarrow, of some columns or of all."""
    # Nothing is read ahead: a thread of pyarrow that still holds the file when the program ends would abort it.
    with arrow().parquet.ParquetFile(file, pre_buffer=False, page_checksum_verification=True) as parquet:
        return parquet.read(columns=columns)


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
        held: list[dict[str, np.ndarray]] = []
        count = total = 0
        with self._open() as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=self._wanted(names)):
                held.append(self._decode(batch, names))
                count, total = count + batch.num_rows, total + batch.num_rows
                if total > self.rows:
                    raise self._cut(total)
                if count >= size:
                    joined = _joined(held)
                    whole = count - count % size
                    for start in range(0, whole, size):
                        yield {name: value[start : start + size] for name, value in joined.items()}
                    held, count = [{name: value[whole:] for name, value in joined.items()}], count - whole
        if total != self.rows:
            raise self._cut(total)
        if count:
            yield _joined(held)

    def _decode(self, batch: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
        values = values_of(self.stamp.path, batch, {name: self.columns[name] for name in names})
        for name, value in values.items():
            if value.shape[1:] != self.shapes[name][1:]:
                raise InputError(
                    f"{self.stamp.path}: the lists in column {name!r} must all have the same length; "
                    f"the first has {self.shapes[name][1]}, a later one {value.shape[1]}"
                )
        return values


def _joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def values_of(path: Path, batch: Any, columns: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """The fields of some rows (a record batch or a table of pyarrow), each from its columns.

    Raises:
        FileFormatError: A column that must hold lists does not.
        InputError: A column has empty cells, lists of different lengths, or something else than numbers.
    """
    values = {}
    for name, found in columns.items():
        if len(FIELDS[name].axes) == 1:
            values[name] = _numbers(path, batch.column(found[0]), found[0])
        elif list(found) == [name]:
            values[name] = _lists(path, batch.column(name), name)
        else:
            values[name] = _stacked(path, {column: _numbers(path, batch.column(column), column) for column in found})
    return values


def _stacked(path: Path, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Columns side by side, in a type that holds the numbers of all of them."""
    if np.result_type(*columns.values()).kind == "f":
        for name, column in columns.items():
            large = column[np.abs(column.astype(np.float64)) >= EXACT] if column.dtype.kind in "iu" else ()
            for number in large:
                if int(float(number)) != int(number):
                    raise InputError(
                        f"{path}: column {name!r} holds {number}, an integer that a float64 cannot hold as the columns "
                        "beside it need"
                    )
    return np.stack(list(columns.values()), axis=1)


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


def write_columns(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Equal-length columns to ``.csv``, ``.parquet`` or ``.npz`` (by the ending), atomically.

    Raises:
        InputError: Another ending.
        StorageError: The file could not be written; what was there stays.
        MissingExtraError: It is a Parquet file, and pyarrow is not installed.
    """
    if path.suffix == ".npz":
        write_npz(path, columns)
    elif path.suffix == ".parquet":
        as_lists = {name: value.tolist() if value.dtype.kind == "U" else value for name, value in columns.items()}
        table, parquet = arrow().table(as_lists), arrow().parquet
        write_atomically(path, lambda file: parquet.write_table(table, file, write_page_checksum=True))
    elif path.suffix == ".csv":
        write_bytes(path, csv_text(columns).encode())
    else:
        raise InputError(
            f"{path}: scores are written as .csv, .parquet or .npz, not {path.suffix or 'without an ending'!r}"
        )


def csv_text(columns: Mapping[str, np.ndarray]) -> str:
    """Header and rows as CSV; floats in digits that read back equal as float64, texts in quotes where they need them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*([_cell(value) for value in column.tolist()] for column in columns.values()), strict=True))
    return text.getvalue()


def _cell(value: object) -> str:
    return readable(value) if isinstance(value, str) else str(value)


def readable(name: str) -> str:
    """A name as text that can be written anywhere: bytes that are no UTF-8 become a backslash, x and two digits."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def named_columns(names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """The column ``file`` of rows that have names; none where they have none."""
    return {} if names is None else {"file": np.array([readable(name) for name in names], dtype=np.str_)}
