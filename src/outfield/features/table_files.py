"""Tables whose columns have names of their own, from CSV and Parquet files: what a frame would hold, without pandas."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outfield.errors import InputError
from outfield.features.cells import NUMBER, TEXT, levels_as_texts
from outfield.features.columns import arrow, opened, whole_parquet
from outfield.features.csv_files import no_number
from outfield.files.opened import Stamp
from outfield.files.paths import PathLike, as_path

ENDINGS = (".csv", ".parquet")
"""Of files that hold such tables."""
INDEX = r"__index_level_\d+__"
"""What pandas calls the index of a frame in a Parquet file; it is no column of the frame."""


def read_table(path: PathLike, kinds: Mapping[str, str] | None = None, *, texts: bool = False) -> dict[str, np.ndarray]:
    """The columns of a CSV or Parquet file by name, in the types that the file or its cells have.

    Args:
        path: The file. In a CSV, empty cells and those that say NA, NaN or null are missing.
        kinds: What columns of a CSV are known to hold, so that texts that look like numbers stay texts.
        texts: Of a CSV, give all of these columns as texts, so that no cell of them is refused.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It cannot be read.
        InputError: It has another ending, or no row, or a cell that is not what its column is known to hold.
        MissingExtraError: pyarrow is not installed.
    """
    file = as_path(path)
    if file.suffix not in ENDINGS:
        had = repr(file.suffix) if file.suffix else "without an ending"
        raise InputError(f"{file}: tables are read from {' or '.join(ENDINGS)}, not {had}")
    stamp = Stamp.of(file)
    with opened(stamp) as content:
        known = dict.fromkeys(kinds or {}, TEXT) if texts else kinds or {}
        table = whole_parquet(content) if file.suffix == ".parquet" else _read_csv(file, content, known)
        if not table.num_rows:
            raise InputError(f"{file} has no rows; at least one is needed")
        names = _columns(table)
        if len(set(names)) < len(names):
            raise InputError(f"{file} has two columns of the same name; each name may stand once")
        declared = {one["name"] for one in _said(table).get("columns", []) if one["pandas_type"] == "categorical"}
        return {name: _array(table.column(name), name in declared) for name in names}


def _columns(table: Any) -> list[str]:
    """The names of columns that are not the index of a frame."""
    index = _said(table).get("index_columns", [])
    return [name for name in table.column_names if name not in index and not re.fullmatch(INDEX, name)]


def _said(table: Any) -> dict[str, Any]:
    """What pandas wrote beside the columns of a Parquet file."""
    return table.schema.pandas_metadata or {}


def _read_csv(file: Path, content: Any, kinds: Mapping[str, str]) -> Any:
    header = content.peek(1).partition(b"\n")[0].decode(errors="replace")
    if "," not in header and re.search(r"[;\t|]", header):
        raise InputError(f"{file} begins with {header.strip()!r:.100}; the cells of a table must be parted by commas")
    types = {TEXT: arrow().string(), NUMBER: arrow().float64()}
    known = {name: types[kind] for name, kind in kinds.items() if kind in types}
    convert = arrow().csv.ConvertOptions(column_types=known, strings_can_be_null=True)
    try:
        return arrow().csv.read_csv(content, convert_options=convert)
    except arrow().ArrowInvalid as error:
        if "conversion error" not in str(error):
            raise
        raise no_number(file, next(csv.reader([header]), []), str(error)) from error


def _array(column: Any, category: bool) -> np.ndarray:
    """A column; of one that was a category its texts, although Parquet keeps numbers that are levels as numbers."""
    plain = levels_as_texts(column.dictionary_encode() if category else column)
    found: np.ndarray = plain if isinstance(plain, np.ndarray) else plain.to_numpy()
    return found
