"""Why a row of a table is OOD, column by column: plain data, and the words for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outfield.features.cells import TEXT
from outfield.guard.verdict import Verdict

Value = float | bool | str | None
"""Of a cell; None where it is missing."""
SHOWN = 3
"""Columns that are named in a text."""


@dataclass(frozen=True)
class ColumnWhy:
    """What one column of a row does to its score.

    Attributes:
        column: Its name.
        kind: What it holds: "number", "truth" or "text".
        value: Of the row; None where the cell is missing.
        usual: What was put in its place: of numbers and truths the median of training rows, of texts that level of them
            which gives the lowest score; of a text for which no other does better, its own.
        deviations: How many standard deviations of training rows a number lies above (+) or below (−) their mean, cut off
            at 10³⁰; None where there is no such thing: truths, texts, missing cells, a column that was constant.
        fall: How far the score falls when ``usual`` takes the place of ``value``; below 0 where it rises.
        score: Of the row then.
        p_value: Of the row then.
        is_ood: Whether the row is OOD even then.
    """

    column: str
    kind: str
    value: Value
    usual: Value
    deviations: float | None
    fall: float
    score: float
    p_value: float
    is_ood: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return dict(vars(self))

    @property
    def own(self) -> str:
        """What the row has, such as "age = 190 (+9.1 sd)"."""
        away = (
            ""
            if self.deviations is None
            else f" ({self.deviations:+{'.1f' if abs(self.deviations) < 1e6 else '.1e'}} sd)"
        )
        return f"{shown_name(self.column)} = {shown_value(self.value)}{away}"

    @property
    def text(self) -> str:
        """Such as "age = 190 (+9.1 sd), with 41 p-value 0.38"; a column that is as usual has no second half."""
        if self.value == self.usual or (self.value is None and self.kind != TEXT):  # a missing number is the median
            return f"{self.own}, as usual"
        return f"{self.own}, with {shown_value(self.usual)} p-value {self.p_value:.3g}"

    def __repr__(self) -> str:
        return f"ColumnWhy({self.text}, score {self.score:.4g}: {self.fall:.4g} lower)"


@dataclass(frozen=True)
class RowWhy:
    """Which columns make a row OOD, if any do.

    Attributes:
        row: Its number in the table, counted from 0.
        score: Of the row as it is; None where it could not be used.
        p_value: As ``score``.
        is_ood: As ``score``.
        alone: Columns of each of which this is true: with what is usual in this one place, the row is ID. Those whose score falls
            furthest come first. None of a row that is ID.
        together: Where there is none of these, two or three columns that must all have what is usual for the row to be ID;
            none where no such columns were found. They are looked for greedily, each being the one that lowers the score most.
        p_value_together: The p-value with what is usual in all of ``together``, or None.
        columns: Each column alone, those whose score falls furthest first.
        furthest: The column of numbers that lies most standard deviations from its mean, whatever it does to the score; None
            where no column has them.
        error: Why the row could not be used; there is nothing else then.
    """

    row: int
    score: float | None
    p_value: float | None
    is_ood: bool | None
    alone: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    p_value_together: float | None = None
    columns: tuple[ColumnWhy, ...] = ()
    furthest: ColumnWhy | None = None
    error: str | None = None

    @classmethod
    def failed(cls, row: int, error: str) -> RowWhy:
        """Of a row that could not be used."""
        return cls(row, None, None, None, error=error)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            **vars(self),
            "alone": [*self.alone],
            "together": [*self.together],
            "columns": [column.to_dict() for column in self.columns],
            "furthest": None if self.furthest is None else self.furthest.to_dict(),
        }

    @property
    def reason(self) -> str:
        """What makes the row OOD, in words that claim no more than was found."""
        if self.error is not None:
            return self.error
        if not self.is_ood:
            return "not OOD"
        if self.alone:
            several = ", each alone" if len(self.alone) > 1 else ""
            return f"explained by {_listed(self.alone, 'or')}{several}"
        if self.together:
            then = "" if self.p_value_together is None else f" (p-value {self.p_value_together:.3g} then)"
            return f"explained by no single column, but by {_listed(self.together, 'and')} together{then}"
        far = "" if self.furthest is None else f" (furthest from its mean: {self.furthest.own})"
        return f"explained by no single column, nor by a few together{far}"

    @property
    def text(self) -> str:
        """The reason, and those of the columns that count most without which the score falls, in one line."""
        return "; ".join([self.reason, *(column.text for column in self.columns[:SHOWN] if column.fall > 0)])

    def __repr__(self) -> str:
        numbers = "" if self.error is not None else f"p-value {self.p_value:.3g}, "
        return f"RowWhy(row {self.row}: {numbers}{self.text})"


@dataclass(frozen=True, repr=False)
class ExplainedVerdict(Verdict):
    """A verdict on a row of a table, with the columns that make it OOD.

    Attributes:
        why: Of an OOD row; None of others.
    """

    why: RowWhy | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {**super().to_dict(), "why": None if self.why is None else self.why.to_dict()}

    @property
    def more(self) -> dict[str, Any]:
        """In a table: the columns that count most, as a text."""
        return {"why": None if self.why is None else self.why.text}


def shown_name(name: str) -> str:
    """The name of a column on one line."""
    return name if name.isprintable() else repr(name)


def shown_value(value: Value) -> str:
    """A cell in words: whole numbers with all their digits, texts in quotes."""
    if value is None:
        return "missing"
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else f"{value[:39]!r}…"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"


def _listed(names: Sequence[str], word: str) -> str:
    shown = [shown_name(name) for name in names]
    if len(shown) > SHOWN:
        return f"any of {len(shown)} columns ({', '.join(shown[:SHOWN])}, …)"
    return f" {word} ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
