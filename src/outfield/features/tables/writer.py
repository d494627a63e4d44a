"""Columns written to files: CSV, Parquet and ``.npz``, atomically."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outfield.errors import InputError
from outfield.features.tables.reader import arrow
from outfield.files import write_atomically, write_bytes, write_npz

Columns = Mapping[str, Sequence[Any] | np.ndarray]


def write_columns(path: Path, columns: Columns, types: Mapping[str, str] | None = None) -> None:
    """Equal-length columns to ``.csv``, ``.parquet`` or ``.npz`` (by the ending), atomically.

    Args:
        path: The file.
        columns: Arrays, or lists in which None is a cell that is empty.
        types: Of columns of a Parquet file as pyarrow calls them ("string", "float64", "int64", "bool"), where cells may all be
            empty; found by the cells of others.

    Raises:
        InputError: Another ending.
        StorageError: The file could not be written; what was there stays.
        MissingExtraError: It is a Parquet file, and pyarrow is not installed.
    """
    if path.suffix == ".npz":
        write_npz(path, {name: np.asarray(column) for name, column in columns.items()})
    elif path.suffix == ".parquet":
        table, parquet = _parquet_table(columns, types or {}), arrow().parquet
        write_atomically(path, lambda file: parquet.write_table(table, file, write_page_checksum=True))
    elif path.suffix == ".csv":
        write_bytes(path, csv_text(columns).encode())
    else:
        raise InputError(
            f"{path}: scores are written as .csv, .parquet or .npz, not {path.suffix or 'without an ending'!r}"
        )


def _parquet_table(columns: Columns, types: Mapping[str, str]) -> Any:
    pyarrow = arrow()
    return pyarrow.table(
        {
            name: pyarrow.array(
                column if isinstance(column, np.ndarray) and column.dtype.kind != "U" else [*map(_text, column)],
                pyarrow.type_for_alias(types[name]) if name in types else None,
            )
            for name, column in columns.items()
        }
    )


def csv_text(columns: Columns) -> str:
    """Header and rows as CSV; floats in digits that read back equal as float64, texts in quotes where they need them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    lists = (column.tolist() if isinstance(column, np.ndarray) else column for column in columns.values())
    writer.writerows(zip(*([_cell(value) for value in column] for column in lists), strict=True))
    return text.getvalue()


def _cell(value: object) -> str:
    return "" if value is None else str(_text(value))


def _text(value: Any) -> Any:
    return readable(str(value)) if isinstance(value, str) else value


def readable(name: str) -> str:
    """A name as text that can be written anywhere: bytes that are no UTF-8 become a backslash, x and two digits."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def named_columns(names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """The column ``file`` of rows that have names; none where they have none."""
    return {} if names is None else {"file": np.array([readable(name) for name in names], dtype=np.str_)}
