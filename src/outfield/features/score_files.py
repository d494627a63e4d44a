"""Scores and p-values in files that a command wrote: a column of a CSV, Parquet or npz file, or of lines of JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outfield.errors import FileFormatError, InputError
from outfield.features.columns import arrow, opened
from outfield.files.npz import open_archive
from outfield.files.opened import Stamp, open_to_read

ENDINGS = (".csv", ".jsonl", ".parquet", ".npz")


def read_column(path: Path, names: Sequence[str]) -> tuple[str, np.ndarray, int]:
    """The first of the columns ``names`` that a file has: its name, its numbers (N,) as float64, and how many rows had none.

    Empty cells (null in JSON and Parquet) are left out: a row of an image that could not be read has no score.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It cannot be read.
        InputError: It has none of the columns, no number in it, or something else than numbers; or its ending is unknown.
        MissingExtraError: It is a Parquet file, and pyarrow is not installed.
    """
    if path.suffix not in ENDINGS:
        raise InputError(
            f"{path}: scores are read from {', '.join(ENDINGS)}, not {path.suffix or 'without an ending'!r}"
        )
    readers = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet, ".npz": _npz}
    name, cells = readers[path.suffix](path, names)
    full = [cell for cell in cells if cell is not None and cell != ""]
    if not full:
        raise InputError(f"{path}: column {name!r} holds no number")
    return name, np.array([_number(path, name, cell) for cell in full]), len(cells) - len(full)


def _number(path: Path, name: str, cell: Any) -> float:
    if isinstance(cell, str | int | float) and not isinstance(cell, bool):
        try:
            return float(cell)
        except (ValueError, OverflowError):
            pass
    raise InputError(f"{path}: column {name!r} holds {cell!r:.40}, which is no number")


def _first(path: Path, names: Sequence[str], there: Sequence[str]) -> str:
    for name in names:
        if name in there:
            return name
    raise InputError(f"{path} has no column {' or '.join(names)}; it has {', '.join(there)[:200] or 'none'}")


def _lines(path: Path) -> Iterator[str]:
    with io.TextIOWrapper(io.BufferedReader(open_to_read(path)), encoding="utf-8-sig", newline="") as file:
        try:
            yield from file
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def _csv(path: Path, names: Sequence[str]) -> tuple[str, list[Any]]:
    rows = csv.reader(_lines(path), strict=True)
    try:
        header = next(rows, [])
        name = _first(path, names, header)
        place, cells = header.index(name), []
        for row in rows:
            if row and len(row) != len(header):
                raise FileFormatError(f"{path}, line {rows.line_num}: {len(row)} cells, but {len(header)} columns")
            if row:
                cells.append(row[place])
    except csv.Error as error:
        raise FileFormatError(f"{path}, line {rows.line_num}, cannot be read as csv: {error}") from error
    return name, cells


def _jsonl(path: Path, names: Sequence[str]) -> tuple[str, list[Any]]:
    rows = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{path}, line {number}, cannot be read as JSON: {error!s:.100}") from error
        if not isinstance(row, dict):
            raise FileFormatError(f"{path}, line {number}, is no JSON object")
        rows.append(row)
    name = _first(path, names, list(dict.fromkeys(key for row in rows for key in row)))
    return name, [row.get(name) for row in rows]


def _parquet(path: Path, names: Sequence[str]) -> tuple[str, list[Any]]:
    with opened(Stamp.of(path)) as file, arrow().parquet.ParquetFile(file, page_checksum_verification=True) as parquet:
        name = _first(path, names, parquet.schema_arrow.names)
        return name, parquet.read(columns=[name]).column(name).to_pylist()


def _npz(path: Path, names: Sequence[str]) -> tuple[str, list[Any]]:
    with open_archive(path) as archive:
        name = _first(path, names, list(archive.names))
        array = archive.read(archive.find([name]))[name]
    if array.ndim != 1 or array.dtype.kind not in "fiu":
        raise InputError(f"{path}: {name} must be a vector of numbers; it has shape {array.shape}, {array.dtype}")
    return name, array.tolist()
