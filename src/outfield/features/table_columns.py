"""One column of a table: what is learned of it on training rows, and the entries that its cells become."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from outfield.config import require_number
from outfield.errors import InputError, OutfieldWarning
from outfield.features.cells import NUMBER, TEXT, TRUTH, Cells

MOST_LEVELS = 200
"""A column with more texts than these names its rows rather than telling of them."""
MANY_LEVELS = 20
"""With more levels than these, of which most are numbers, a column is likely one of numbers with some other mark in it."""


@dataclass(frozen=True)
class Column:
    """What was learned of a column.

    Attributes:
        name: Its name.
        kind: What it holds: "number", "truth" or "text".
        levels: The texts that training rows had, sorted; none of other columns.
        mean: Subtracted from a number.
        scale: A number is divided by it: the standard deviation of training rows, or 1 where that is 0.
        median: In the place of a missing number or truth.
    """

    name: str
    kind: str
    levels: tuple[str, ...]
    mean: float
    scale: float
    median: float

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
        values = self.levels if self.kind == TEXT else [self.median]
        return self.entries_of(Cells(self.kind, np.array(values, dtype=object if self.kind == TEXT else np.float64)))

    def valid(self) -> Self:
        """This column, if it can have been learned.

        Raises:
            InputError: It cannot.
        """
        good = self.kind in (NUMBER, TRUTH) or (self.kind == TEXT and bool(self.levels))
        if not good or not all(isinstance(text, str) for text in (self.name, *self.levels)):
            raise InputError(f"column {self.name!r:.60} is of kind {self.kind!r:.60}, with {len(self.levels)} levels")
        for name in ("mean", "median"):
            require_number(name, getattr(self, name))
        require_number("scale", self.scale, above=0)
        return self

    def checked(self, cells: Cells) -> Cells:
        """Cells of a later frame, if they are what the training rows had; cells that are all missing are.

        Raises:
            InputError: They are of another kind.
        """
        if cells.missing.all():
            empty = np.full(len(cells.values), None) if self.kind == TEXT else np.full(len(cells.values), np.nan)
            return Cells(self.kind, empty)
        if cells.kind == self.kind or (TEXT not in (cells.kind, self.kind)):
            return Cells(self.kind, cells.values)
        raise InputError(f"column {self.name!r} holds {cells.kind}s, but {self.kind}s in the training rows")

    def unseen(self, cells: Cells) -> list[str]:
        """The texts that no training row had, one for each cell."""
        known = {None, *self.levels}
        return [text for text in cells.values if text not in known] if self.kind == TEXT else []

    def entries_of(self, cells: Cells) -> np.ndarray:
        """Cells as entries of rows (N, E), float64."""
        if self.kind == TEXT:
            place = {level: index for index, level in enumerate(self.levels)}
            found = np.zeros((len(cells.values), len(self.levels)))
            for row, text in enumerate(cells.values):
                if text in place:
                    found[row, place[text]] = 1.0
            return found
        filled = np.where(cells.missing, self.median, cells.values)
        with np.errstate(over="ignore", divide="ignore"):
            rows = (filled - self.mean) / self.scale
            wide = np.isinf(filled - self.mean)  # beyond the largest float64, of which halves are not
            rows[wide] = (filled[wide] / 2 - self.mean / 2) / (self.scale / 2)
        return rows[:, None]


def learned(name: str, cells: Cells, standardise: bool) -> Column:
    """What a column of training rows is.

    Raises:
        InputError: All its cells are missing, or it has so many texts that it must be a name of rows.
    """
    present = cells.values[~cells.missing]
    if not len(present):
        raise InputError(f"column {name!r} has no cell that is there; leave it out")
    if cells.kind == TEXT:
        levels = tuple(sorted(set(present.tolist())))
        _tell_numbers(name, levels)
        if len(levels) > MOST_LEVELS:
            raise InputError(
                f"column {name!r} holds {len(levels):,} different texts; at most {MOST_LEVELS} levels are taken: leave it out, "
                "or group them"
            )
        return Column(name, TEXT, levels, 0.0, 1.0, 0.0)
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


def _tell_numbers(name: str, levels: Sequence[str]) -> None:
    """Warn of a column of numbers that a text in it, such as "unknown", made one of texts."""
    others = [level for level in levels if not _is_number(level)]
    if len(levels) > MANY_LEVELS and 0 < len(others) < len(levels) / 2:
        warnings.warn(
            f"column {name!r} is taken as texts with {len(levels)} levels, most of which are numbers; for a column of numbers, "
            f"empty the cells that are not, such as {others[0]!r:.60}",
            OutfieldWarning,
            stacklevel=4,
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
