"""The columns of a table: their cells as numbers or texts, what is learned of each on training rows, and entries of rows."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from outfield.errors import InputError, OutfieldWarning
from outfield.files import as_tensor, check_dtype
from outfield.percent import counted

NUMBER, TRUTH, TEXT = "number", "truth", "text"  # what a column can hold: numbers, true or false, or names of levels
MISSING = ("NAType", "NaTType")  # types of pandas' marks for a missing cell; pandas is not imported for them
DIGITS = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)  # a number as a text
# true or false as a text
TRUTHS = {"1": 1.0, "true": 1.0, "TRUE": 1.0, "True": 1.0, "0": 0.0, "false": 0.0, "FALSE": 0.0, "False": 0.0}
SHOWN = 8  # names of columns in a message
MOST_LEVELS = 200  # a column with more texts than these names its rows rather than telling of them
# with more levels than these, most of them numbers, a column is likely one of numbers with some other mark in it
MANY_LEVELS = 20


class Cells(NamedTuple):
    """One column: numbers and truths as float64 (N,), NaN where a cell is missing; texts as objects (N,), None where one is."""

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
    """The columns of a DataFrame (pandas, polars), a table of pyarrow or a mapping by name; of an array feature_0, …."""
    if isinstance(frame, list | np.ndarray | Tensor):
        array = as_tensor("the table", frame)
        check_dtype("the table", array.dtype, whole=False)
        if array.ndim != 2:
            raise InputError(f"the table has shape {tuple(array.shape)}; an array of rows is (N, D)")
        frame = {f"feature_{number}": column for number, column in enumerate(array.double().numpy().T)}
    names = frame if isinstance(frame, Mapping) else getattr(frame, "column_names", getattr(frame, "columns", None))
    if names is None or callable(names):
        raise InputError(f"the table is a {type(frame).__name__}; pass a DataFrame or columns by name: {{'age': [31]}}")
    listed = [*names]
    if not listed:
        raise InputError("the table has no columns; at least one is needed")
    if not all(isinstance(name, str) for name in listed):
        raise InputError(f"columns have texts as names, not {listed[:3]!r:.60}; set frame.columns = ['x0', 'x1', …]")
    if len(set(listed)) < len(listed):
        twice = max(listed, key=listed.count)
        raise InputError(f"the table has several columns called {twice!r}; each name may stand once")
    found = {name: levels_as_texts(frame[name]) for name in listed}
    for name, column in found.items():
        if not hasattr(column, "__len__"):
            raise InputError(f"column {name!r} is {column!r:.60}; a column is a list with a value for each row")
    lengths = {name: len(column) for name, column in found.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise InputError(f"the columns of a table are equally long and have rows; these have {lengths!r:.200}")
    return found


def levels_as_texts(column: Any) -> Any:
    """A category of pandas or pyarrow as texts, also where its levels are numbers, such as bus lines; others as they are."""
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
    """A column as numbers, truths or texts."""
    array = array_of(column)
    if array.ndim != 1:
        raise InputError(f"column {name!r} has shape {array.shape}; a column has one value for each row")
    if array.dtype.kind not in "OUTbiuf":
        raise InputError(f"column {name!r} holds {array.dtype}; turn it into numbers or texts, or leave it out")
    if array.dtype.kind in "OUT":
        cells = _of_objects(name, array.astype(object))
    else:
        cells = Cells(TRUTH if array.dtype.kind == "b" else NUMBER, array.astype(np.float64))
    infinite = 0 if cells.kind == TEXT else int(np.isinf(cells.values).sum())
    if infinite:
        raise InputError(f"column {name!r} holds {counted(infinite, 'infinite number')}; empty a missing cell")
    return cells


def _of_objects(name: str, array: np.ndarray) -> Cells:
    values = [None if is_missing(value) else value for value in array]
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, str) for value in present):
        return Cells(TEXT, np.array(values, dtype=object))
    truths = all(isinstance(value, bool | np.bool_) for value in present)
    if truths or all(is_number(value) for value in present):
        try:
            numbers = np.array(values, dtype=np.float64)
        except OverflowError as error:
            raise InputError(f"column {name!r} holds a number that is too large; the largest is 1.8e308") from error
        return Cells(TRUTH if truths and present else NUMBER, numbers)
    kinds = sorted({type(value).__name__ for value in present})
    advice = "decode them, or write the file in UTF-8" if kinds == ["bytes"] else "convert it, or leave it out"
    raise InputError(f"column {name!r} holds {' and '.join(kinds)}, not numbers, truths or texts alone; {advice}")


def as_texts(cells: Cells) -> Cells:
    """Numbers and truths as texts, whole numbers without a point."""
    if cells.kind == TEXT:
        return cells
    texts = [None if value != value else number_text(value) for value in cells.values.tolist()]
    return Cells(TEXT, np.array(texts, dtype=object))


def number_text(value: float) -> str:
    """A number as the name of a level or class."""
    return str(int(value)) if value.is_integer() else repr(value)


def is_number(value: Any) -> bool:
    """Whether a cell holds a number, which truths and durations are not."""
    number = isinstance(value, int | float | np.integer | np.floating | Decimal)
    return number and not isinstance(value, bool | np.timedelta64)  # which numpy takes for an integer


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing, in any way of writing that."""
    return value is None or type(value).__name__ in MISSING or (isinstance(value, float | Decimal) and value != value)


@dataclass(frozen=True)
class Column:
    """What was learned of a column."""

    name: str  # its name
    kind: str  # what it holds: "number", "truth" or "text"
    levels: tuple[str, ...]  # the texts that training rows had, sorted; none of other columns
    mean: float  # subtracted from a number
    scale: float  # a number is divided by it: the standard deviation of training rows, or 1 where that is 0
    median: float  # in the place of a missing number or truth

    @property
    def entries(self) -> tuple[str, ...]:
        """What each of its entries in a row is."""
        return tuple(f"{self.name} = {level}" for level in self.levels) if self.kind == TEXT else (self.name,)

    @property
    def spread(self) -> float | None:
        """The standard deviation of training rows; None of truths and texts, of a constant, and where it was not learned.

        A constant has scale 1 beside a mean that is its median, numbers that are not standardised have scale 1 and mean 0.
        """
        same = math.isclose(self.mean, self.median, rel_tol=1e-12)
        unknown = self.scale == 1.0 and (self.mean == 0.0 or same)
        return None if self.kind != NUMBER or unknown else self.scale

    @property
    def usual(self) -> np.ndarray:
        """Entries of cells that hold what is usual (U, E), float64: the median, or of texts each level in its row."""
        values = np.array(self.levels, dtype=object) if self.kind == TEXT else np.array([self.median])
        return self.entries_of(Cells(self.kind, values))

    @property
    def _of_numbers(self) -> bool:
        """Whether its levels are numbers that are names, such as those of bus lines: frames may hold them as numbers, too."""
        return self.kind == TEXT and all(DIGITS.fullmatch(level) for level in self.levels)

    def checked(self, cells: Cells) -> Cells:
        """Cells of a later frame, if they are of the kind that the training rows had; cells that are all missing are."""
        if cells.missing.all():
            return Cells(self.kind, np.full(len(cells.values), None if self.kind == TEXT else np.nan))
        if self._of_numbers and cells.kind != TEXT:
            cells = as_texts(cells)
        if cells.kind != self.kind and TEXT in (cells.kind, self.kind):
            raise InputError(f"column {self.name!r} holds {cells.kind}s, but {self.kind}s in the training rows")
        return Cells(self.kind, cells.values)

    def cell(self, value: Any, missing: bool, from_text: bool) -> Any:
        """A single cell as a text or number; None where it is missing and may be; ``from_text``: as a CSV writes it."""
        if is_missing(value):
            if not missing:
                raise InputError(f"its cell in column {self.name!r} is missing")
            return None
        where = f"column {self.name!r} holds {str(value) if is_number(value) else repr(value):.40} here, which is"
        if self.kind == TEXT:
            if self._of_numbers and is_number(value):
                return number_text(float(value))
            if not isinstance(value, str):
                raise InputError(f"{where} no text")
            return value
        if from_text and self.kind == TRUTH:
            value = TRUTHS.get(value, value)
        elif from_text and (DIGITS.fullmatch(value) or value.strip().lower().lstrip("+-") == "inf"):
            value = float(value)
        if not (is_number(value) or isinstance(value, bool | np.bool_)):
            raise InputError(f"{where} {'neither true nor false' if self.kind == TRUTH else 'no number'}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise InputError(f"{where} infinite or above 1.8e308")
        return number

    def unseen(self, cells: Cells) -> list[str]:
        """The texts that no training row had, one for each cell."""
        known = {None, *self.levels}
        return [text for text in cells.values if text not in known] if self.kind == TEXT else []

    def entries_of(self, cells: Cells) -> np.ndarray:
        """Cells as entries of rows (N, E), float64."""
        if self.kind == TEXT:
            place, unseen = {level: index for index, level in enumerate(self.levels)}, len(self.levels)
            return np.eye(unseen + 1, unseen)[[place.get(text, unseen) for text in cells.values]]
        filled = np.where(cells.missing, self.median, cells.values)
        with np.errstate(over="ignore", divide="ignore"):
            return np.asarray((filled - self.mean) / self.scale)[:, None]


def learned(name: str, cells: Cells, standardise: bool) -> Column:
    """What a column of training rows is."""
    present = cells.values[~cells.missing]
    if not len(present):
        raise InputError(f"column {name!r} is empty; drop it")
    if cells.kind == TEXT:
        return Column(name, TEXT, _levels(name, present), 0.0, 1.0, 0.0)
    # Halves, since the sum or difference of two numbers may be beyond the largest float64.
    median = float(np.median(present / 2)) * 2
    if cells.kind == TRUTH or not standardise:
        return Column(name, cells.kind, (), 0.0, 1.0, median)
    filled = np.where(cells.missing, median, cells.values)
    largest = float(np.abs(filled).max()) or 1.0
    mean = float((filled / largest).mean()) * largest
    spread = float(((filled / 2 - mean / 2) / largest).std()) * 2 * largest
    # The rounding of a constant column's mean is no spread.
    scale = spread if spread > 1e-12 * largest else 1.0
    return Column(name, NUMBER, (), mean, scale, median)


def _levels(name: str, texts: np.ndarray) -> tuple[str, ...]:
    levels = tuple(sorted(set(texts.tolist())))
    others = [level for level in levels if not DIGITS.fullmatch(level)]
    if len(levels) > MANY_LEVELS and 0 < len(others) < len(levels) / 2:
        warnings.warn(
            f"column {name!r} is taken as texts with {len(levels)} levels, most of which are numbers; for a column of numbers, "
            f"empty the cells that are not, such as {others[0]!r:.60}",
            OutfieldWarning,
            stacklevel=4,
        )
    if len(levels) > MOST_LEVELS:
        raise InputError(f"column {name!r} holds {len(levels):,} different texts, over {MOST_LEVELS}; group them")
    return levels
