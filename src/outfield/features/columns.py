"""Features and scores as the files people have: CSV, Parquet, .npz, .safetensors.

In CSV and Parquet one row is one sample. Columns ``feature_0, feature_1, …`` (or, in Parquet, one list column ``features``)
are the features; ``logit_*``, ``odin_logit_*`` and ``spread_*`` likewise; ``label`` is the class. Any other column is an
error, so that nothing is taken for a feature by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from outfield.errors import FileFormatError, InputError
from outfield.extras import library
from outfield.features.fields import FIELDS, Field
from outfield.files.atomic import check_readable, write_atomically, write_bytes, write_npz

ROWS_AT_ONCE = 8192
"""Rows of a Parquet file decoded together."""


def _arrow() -> Any:
    """pyarrow with the modules that read and write files, imported when a table is."""
    library("pyarrow.csv", extra="tables")
    library("pyarrow.parquet", extra="tables")
    return library("pyarrow", extra="tables")


def read_table(path: Path) -> dict[str, np.ndarray]:
    """The fields in the columns of a CSV or Parquet file, by name.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It cannot be read, or its columns are not those of a set of features.
        InputError: A column holds something else than numbers.
        MissingExtraError: pyarrow is not installed.
    """
    check_readable(path)
    arrow = _arrow()
    try:
        table = arrow.csv.read_csv(path) if path.suffix == ".csv" else arrow.parquet.read_table(path)
    except (arrow.ArrowException, OSError) as error:
        raise FileFormatError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error
    return _values(path, table, _columns(path, table.column_names))


class ParquetColumns:
    """The fields in a Parquet file, read some thousand rows at a time.

    Attributes:
        shapes: of the fields, by name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as file:
            self.columns = _columns(path, file.schema_arrow.names)
            self.rows = file.metadata.num_rows
            if not self.rows:
                raise InputError(f"{path} is empty; at least one row is needed")
            first = next(file.iter_batches(1, columns=self._wanted(self.columns)))
            values = _values(path, _arrow().Table.from_batches([first]), self.columns)
        self.shapes = {name: (self.rows, *value.shape[1:]) for name, value in values.items()}

    @contextmanager
    def _open(self) -> Iterator[Any]:
        arrow = _arrow()
        try:
            # Buffered, since otherwise a row group's columns are read whole.
            with arrow.parquet.ParquetFile(self.path, buffer_size=2**20, pre_buffer=False) as file:
                yield file
        except (arrow.ArrowException, OSError) as error:
            raise FileFormatError(f"{self.path} cannot be read as parquet: {error}") from error

    def _wanted(self, names: Iterable[str]) -> list[str]:
        return [column for name in names for column in self.columns[name]]

    def pieces(self, size: int, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """The fields ``names`` in pieces of ``size`` rows, whatever the row groups are, the last perhaps shorter."""
        held: list[dict[str, np.ndarray]] = []
        count = 0
        with self._open() as file:
            for batch in file.iter_batches(max(size, ROWS_AT_ONCE), columns=self._wanted(names)):
                held.append(self._decode(batch, names))
                count += batch.num_rows
                if count >= size:
                    joined = _joined(held)
                    whole = count - count % size
                    for start in range(0, whole, size):
                        yield {name: value[start : start + size] for name, value in joined.items()}
                    held, count = [{name: value[whole:] for name, value in joined.items()}], count - whole
        if count:
            yield _joined(held)

    def _decode(self, batch: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
        values = _values(self.path, _arrow().Table.from_batches([batch]), {name: self.columns[name] for name in names})
        for name, value in values.items():
            if value.shape[1:] != self.shapes[name][1:]:
                raise InputError(
                    f"{self.path}: the lists in column {name!r} must all have the same length; "
                    f"the first has {self.shapes[name][1]}, a later one {value.shape[1]}"
                )
        return values


def _joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _columns(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Which columns make up each field."""
    if all(re.fullmatch(r"[-+.\deE]+", name) for name in names):
        raise FileFormatError(f"{path} has no header; its first line must name the columns: feature_0, feature_1, …")
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
    for field_name, found_names in columns.items():
        if len(found_names) > 1 and (field_name in found_names or len(FIELDS[field_name].axes) == 1):
            raise FileFormatError(
                f"{path} has {field_name} twice, as columns {found_names[0]} and {found_names[1]}; keep one"
            )
    if "features" not in columns:
        raise FileFormatError(f"{path} has no columns feature_0, feature_1, …; it has {', '.join(names[:6])}")
    return columns


def _meant(path: Path, column: str) -> tuple[Field, int | None]:
    """The field that a column belongs to, and which of its columns it is (None where it holds the whole field)."""
    stem, _, number = column.rpartition("_")
    for field in FIELDS.values():
        if column == field.name or (column == field.column and len(field.axes) == 1):
            return field, None
        if stem == field.column and len(field.axes) == 2 and re.fullmatch(r"0|[1-9]\d*", number, re.ASCII):
            return field, int(number)
    others = [field.column + "_*" * (len(field.axes) - 1) for field in list(FIELDS.values())[1:]]
    raise FileFormatError(
        f"{path} has a column {column!r}; expected feature_0, feature_1, … perhaps {', '.join(others)}"
    )


def _values(path: Path, table: Any, columns: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """The fields of a table, each from its columns."""
    values = {}
    for name, found in columns.items():
        if len(FIELDS[name].axes) == 1:
            values[name] = _numbers(path, table, found[0])
        elif list(found) == [name]:
            values[name] = _lists(path, table, name)
        else:
            values[name] = np.stack([_numbers(path, table, column) for column in found], axis=1)
    return values


def _numbers(path: Path, table: Any, name: str) -> np.ndarray:
    column = table.column(name)
    if column.null_count:
        raise InputError(f"{path}: column {name!r} has {column.null_count} empty cells; every cell must hold a number")
    array: np.ndarray = column.to_numpy()
    if array.dtype == object or array.dtype.kind not in "fiu":
        raise InputError(f"{path}: column {name!r} holds {column.type}, not numbers")
    return array


def _lists(path: Path, table: Any, name: str) -> np.ndarray:
    column = table.column(name).combine_chunks()
    types = _arrow().types
    if not any(check(column.type) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        raise FileFormatError(f"{path}: column {name!r} must hold lists of numbers; it holds {column.type}")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if column.null_count or len(column) == 0 or len(flat) % len(column):
        raise InputError(f"{path}: the lists in column {name!r} must all have the same length")
    lengths = np.asarray(column.value_lengths() if hasattr(column, "value_lengths") else [])
    if len(lengths) and (lengths != lengths[0]).any():
        raise InputError(f"{path}: the lists in column {name!r} must all have the same length")
    return flat.reshape(len(column), -1)  # type: ignore[no-any-return]


def write_columns(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Equal-length columns to ``.csv``, ``.parquet`` or ``.npz`` (by the ending), atomically.

    Raises:
        InputError: another ending.
        StorageError: the file could not be written; what was there stays.
    """
    if path.suffix == ".npz":
        write_npz(path, columns)
    elif path.suffix == ".parquet":
        arrow = _arrow()
        write_atomically(path, lambda file: arrow.parquet.write_table(arrow.table(dict(columns)), file))
    elif path.suffix == ".csv":
        write_bytes(path, "".join(",".join(row) + "\n" for row in csv_rows(columns)).encode())
    else:
        raise InputError(
            f"{path}: scores are written as .csv, .parquet or .npz, not {path.suffix or 'without an ending'!r}"
        )


def csv_rows(columns: Mapping[str, np.ndarray]) -> list[list[str]]:
    """Header and rows as text; floats in digits that read back equal as float64."""
    texts = [[str(value) for value in column.tolist()] for column in columns.values()]
    return [list(columns), *(list(row) for row in zip(*texts, strict=True))]
