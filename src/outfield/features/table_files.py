"""Tables whose columns have names of their own, from CSV and Parquet files: what a frame would hold, without pandas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from outfield.errors import InputError
from outfield.features.cells import NUMBER, TEXT
from outfield.features.columns import arrow, opened
from outfield.files.opened import Stamp
from outfield.files.paths import PathLike, as_path

ENDINGS = (".csv", ".parquet")
"""Of files that hold such tables."""
INDEX = r"__index_level_\d+__"
"""What pandas calls the index of a frame in a Parquet file; it is no column of the frame."""


def read_table(path: PathLike, kinds: Mapping[str, str] | None = None) -> dict[str, np.ndarray]:
    """The columns of a CSV or Parquet file by name, in the types that the file or its cells have.

    Args:
        path: The file. In a CSV, empty cells and those that say NA, NaN or null are missing.
        kinds: What columns of a CSV are known to hold, so that texts that look like numbers stay texts.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It cannot be read.
        InputError: It has another ending, or no row.
        MissingExtraError: pyarrow is not installed.
    """
    file = as_path(path)
    if file.suffix not in ENDINGS:
        had = repr(file.suffix) if file.suffix else "without an ending"
        raise InputError(f"{file}: tables are read from {' or '.join(ENDINGS)}, not {had}")
    stamp = Stamp.of(file)
    with opened(stamp) as content:
        table = arrow().parquet.read_table(content) if file.suffix == ".parquet" else _read_csv(content, kinds or {})
        if not table.num_rows:
            raise InputError(f"{file} has no rows; at least one is needed")
        names = [name for name in table.column_names if not re.fullmatch(INDEX, name)]
        if len(set(names)) < len(names):
            raise InputError(f"{file} has two columns of the same name; each name may stand once")
        return {name: _array(table.column(name)) for name in names}


def _read_csv(content: Any, kinds: Mapping[str, str]) -> Any:
    types = {TEXT: arrow().string(), NUMBER: arrow().float64()}
    known = {name: types[kind] for name, kind in kinds.items() if kind in types}
    convert = arrow().csv.ConvertOptions(column_types=known, strings_can_be_null=True)
    return arrow().csv.read_csv(content, convert_options=convert)


def _array(column: Any) -> np.ndarray:
    if arrow().types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    found: np.ndarray = column.to_numpy()
    return found
