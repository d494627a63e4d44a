"""Features in a CSV file: UTF-8, commas, a header that names the columns; numbers are read as float64, classes as int64."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from outfield.errors import FileFormatError, InputError
from outfield.features.column_names import columns_by_field
from outfield.features.columns import EXACT, arrow, opened, values_of
from outfield.features.fields import FIELDS
from outfield.files.opened import Stamp

BLOCK = 2**20
"""Bytes parsed together, at first; no row may be longer."""
LARGEST_BLOCK = 2**31 - 1
THREADED = 1000
"""Columns up to which reading on several threads pays."""


def read_csv(path: Path) -> dict[str, np.ndarray]:
    """The fields in the columns of a CSV file, by name.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It is not UTF-8, its rows differ in length, or its columns are not those of a set of features.
        InputError: It has no row, or cells that are empty or no numbers.
        MissingExtraError: pyarrow is not installed.
    """
    stamp = Stamp.of(path)
    with opened(stamp) as file:
        names = _header(path, file)
        columns = columns_by_field(path, names)
        if file.tell() == stamp.size:
            raise InputError(f"{path} has no rows; at least one is needed")
        counting = {column for name, found in columns.items() if FIELDS[name].counts is not None for column in found}
        types = {name: arrow().int64() if name in counting else arrow().float64() for name in names}
        table = _read(path, file, types)
        if table.column_names != names:
            raise FileFormatError(f"{path} cannot be read as csv: its header is not one line of names")
        if not table.num_rows:
            raise InputError(f"{path} has no rows; at least one is needed")
        _refuse_rounded(path, file, table)
        stamp.check()
        return values_of(path, table, columns)


def _header(path: Path, file: BinaryIO) -> list[str]:
    """The names in the first line."""
    line = file.readline(LARGEST_BLOCK)
    try:
        return next(csv.reader([line.decode("utf-8-sig")]), [])
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except csv.Error as error:
        raise FileFormatError(f"{path} cannot be read as csv: {error}") from error


def _read(path: Path, file: BinaryIO, types: Mapping[str, Any], names: Sequence[str] = ()) -> Any:
    """A table of the columns ``names`` (all of them if empty), in blocks as large as its longest row takes."""
    module = arrow().csv
    convert = module.ConvertOptions(column_types=types, null_values=[""], include_columns=list(names))
    parse = module.ParseOptions(ignore_empty_lines=len(types) > 1)  # of a single column they are empty cells
    size, block = os.fstat(file.fileno()).st_size, BLOCK
    while True:
        file.seek(0)
        options = module.ReadOptions(block_size=block, use_threads=len(types) <= THREADED)
        try:
            return module.read_csv(file, options, parse, convert)
        except arrow().ArrowInvalid as error:
            if "conversion error" in str(error):
                raise no_number(path, list(types), str(error)) from error
            if block >= min(size, LARGEST_BLOCK):
                raise
        block = min(16 * block, LARGEST_BLOCK)


def no_number(path: Path, names: Sequence[str], message: str) -> InputError:
    """What pyarrow says of a cell that it cannot convert, with the name of its column."""
    column = re.search(r"column #(\d+)", message)
    where = f"column {names[int(column[1])]!r}" if column and int(column[1]) < len(names) else "a column"
    cell = re.search(r"invalid value '(.*)'", message, re.DOTALL)
    shown = f", such as {cell[1][:40]!r}" if cell else ""
    kind = "whole numbers" if "int64" in message else "numbers"
    return InputError(f"{path}: {where} holds cells that are not {kind}{shown}")


def _refuse_rounded(path: Path, file: BinaryIO, table: Any) -> None:
    """Refuse integers that became another float64; only where a column has such large numbers are its cells looked at."""
    floating = [name for name in table.column_names if arrow().types.is_floating(table.schema.field(name).type)]
    large = [name for name in floating if (np.abs(np.asarray(table.column(name))) >= EXACT).any()]
    if not large:
        return
    texts = _read(path, file, dict.fromkeys(large, arrow().string()), large)
    for name in large:
        for text in texts.column(name).to_pylist():
            if text and re.fullmatch(r"[-+]?[0-9]{16,309}", text) and int(text) != int(float(text)):
                raise InputError(f"{path}: column {name!r} holds {text}, an integer that a float64 cannot hold")
