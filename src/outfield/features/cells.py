"""The columns of a frame, whoever made it, as numbers or texts with their missing cells marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from outfield.errors import InputError

NUMBER, TRUTH, TEXT = "number", "truth", "text"
"""What a column can hold: numbers, true or false, or names of levels."""
MISSING = ("NAType", "NaTType")
"""Types of pandas' marks for a missing cell, which is not imported for them."""
SHOWN = 8
"""Names of columns in a message."""


class Cells(NamedTuple):
    """One column.

    Attributes:
        kind: What it holds.
        values: Numbers and truths as float64 (N,), NaN where a cell is missing; texts as objects (N,), None where one is.
    """

    kind: str
    values: np.ndarray

    @property
    def missing(self) -> np.ndarray:
        """Which cells are missing (N,)."""
        if self.kind == TEXT:
            return np.array([value is None for value in self.values], dtype=bool)
        found: np.ndarray = np.isnan(self.values)
        return found


def columns_of(frame: Any) -> dict[str, Any]:
    """The columns of a DataFrame of pandas or polars, a table of pyarrow, or a mapping, by name.

    Raises:
        InputError: It is something else, has no column or no row, or two columns have the same name.
    """
    names = next((getattr(frame, name) for name in ("column_names", "columns") if hasattr(frame, name)), None)
    if isinstance(frame, Mapping):
        names = frame
    if names is None or callable(names):
        raise InputError(
            f"the table is a {type(frame).__name__}; pass a DataFrame, or columns by name such as {{'age': [31, 45]}}"
        )
    listed = [*names]
    if not listed:
        raise InputError("the table has no columns; at least one is needed")
    if not all(isinstance(name, str) for name in listed):
        raise InputError(
            f"the columns of a table have texts as names; these are {listed[:SHOWN]!r:.200}: give them names, such as "
            "frame.columns = [f'x{i}' for i in range(frame.shape[1])]"
        )
    twice = [name for name, count in Counter(listed).items() if count > 1]
    if twice:
        raise InputError(f"the table has several columns called {twice[0]!r}; each name may stand once")
    found = {name: levels_as_texts(frame[name]) for name in listed}
    single = [name for name, column in found.items() if not hasattr(column, "__len__")]
    if single:
        raise InputError(
            f"column {single[0]!r} is {found[single[0]]!r:.60}; a column is a list with a value for each row, also of one row"
        )
    lengths = {name: len(column) for name, column in found.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise InputError(f"the columns of a table are equally long and have rows; these have {lengths!r:.200}")
    return found


def levels_as_texts(column: Any) -> Any:
    """A column that its owner declared to be a category, of pandas or pyarrow, as texts; any other column as it is.

    Its levels may be numbers, such as those of bus lines, of which mean and standard deviation tell nothing.
    """
    kind = column.dtype if hasattr(column, "dtype") else getattr(column, "type", None)
    if str(kind).partition("<")[0] not in ("category", "dictionary"):
        return column
    values = column.to_pylist() if hasattr(column, "to_pylist") else [*column]
    return np.array([None if is_missing(value) else str(value) for value in values], dtype=object)


def rows_of(columns: Mapping[str, Any], index: np.ndarray) -> dict[str, np.ndarray]:
    """Chosen rows (numbers, or a mask) of columns that :func:`columns_of` gave."""
    return {name: array_of(column)[index] for name, column in columns.items()}


def array_of(column: Any) -> np.ndarray:
    """A column of any frame as an array."""
    return np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)


def cells_of(name: str, column: Any) -> Cells:
    """A column as numbers, truths or texts.

    Raises:
        InputError: It holds something else, such as dates, lists, or texts among numbers, or infinite numbers.
    """
    array = array_of(column)
    if array.ndim != 1:
        raise InputError(f"column {name!r} has shape {array.shape}; a column has one value for each row")
    if array.dtype.kind in "OUT":
        return _of_objects(name, array.astype(object))
    if array.dtype.kind not in "biuf":
        raise InputError(f"column {name!r} holds {array.dtype}; turn it into numbers or texts, or leave it out")
    return _finite(name, Cells(TRUTH if array.dtype.kind == "b" else NUMBER, array.astype(np.float64)))


def _of_objects(name: str, array: np.ndarray) -> Cells:
    values = [None if is_missing(value) else value for value in array]
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, str) for value in present):
        return Cells(TEXT, np.array(values, dtype=object))
    truths = all(isinstance(value, bool | np.bool_) for value in present)
    if truths or all(is_number(value) for value in present):
        try:
            numbers = np.array([np.nan if value is None else float(value) for value in values])
        except OverflowError as error:
            raise InputError(f"column {name!r} holds a number that is too large; the largest is 1.8e308") from error
        return _finite(name, Cells(TRUTH if truths and present else NUMBER, numbers))
    kinds = sorted({type(value).__name__ for value in present})
    advice = (
        "decode them, or write the file in UTF-8"
        if kinds == ["bytes"]
        else "turn it into one of these, or leave it out"
    )
    raise InputError(
        f"column {name!r} holds {' and '.join(kinds[:SHOWN])}; a column holds numbers, truths or texts alone: {advice}"
    )


def is_number(value: Any) -> bool:
    """Whether a cell holds a number, which truths are not."""
    return isinstance(value, int | float | np.integer | np.floating | Decimal) and not isinstance(value, bool)


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing, in any way of writing that."""
    return value is None or type(value).__name__ in MISSING or (isinstance(value, float | Decimal) and value != value)


def _finite(name: str, cells: Cells) -> Cells:
    count = int(np.isinf(cells.values).sum())
    if count:
        raise InputError(f"column {name!r} holds {count} infinite numbers; a missing cell is empty or NaN")
    return cells
