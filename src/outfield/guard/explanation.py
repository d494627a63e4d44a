"""Why rows of a table are OOD: each column is put to what is usual, and the row is scored again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outfield.detectors import Detector
from outfield.errors import InputError
from outfield.features import LARGEST, NUMBER, TEXT, TRUTH, Cells, Column, FeatureSet, within_float32
from outfield.guard.readers import Batch, TableReader
from outfield.guard.verdict import Verdict, Verdicts
from outfield.percent import counted
from outfield.scores import Threshold

MOST_TOGETHER = 3  # columns that are put to what is usual together, at most
ENTRIES = 2**22  # numbers of changed rows that are scored at once, about: 16 MB
Together = dict[int, tuple[tuple[int, ...], float]]
Lowest = tuple[np.ndarray, np.ndarray, np.ndarray]
Value = float | bool | str | None  # of a cell; None where it is missing
SHOWN = 3  # columns that are named in a text


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
        own = f"{_name(self.column)} = {_shown(self.value)}"
        if self.deviations is None:
            return own
        return f"{own} ({self.deviations:+{'.1f' if abs(self.deviations) < 1e6 else '.1e'}} sd)"

    @property
    def text(self) -> str:
        """Such as "age = 190 (+9.1 sd), with 41 p-value 0.38"; a column that is as usual has no second half."""
        if self.value == self.usual or (self.value is None and self.kind != TEXT):  # a missing number is the median
            return f"{self.own}, as usual"
        return f"{self.own}, with {_shown(self.usual)} p-value {self.p_value:.3g}"

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
        alone: Columns each of which, put to what is usual, makes the row ID; those whose score falls furthest come first. None of
            a row that is ID.
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
            **vars(self), "alone": [*self.alone], "together": [*self.together],
            "columns": [column.to_dict() for column in self.columns],
            "furthest": None if self.furthest is None else self.furthest.to_dict(),
        }  # fmt: skip

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
        return {**super().more, "why": None if self.why is None else self.why.text}


def _name(column: str) -> str:
    """The name of a column on one line."""
    return column if column.isprintable() else repr(column)


def _shown(value: Value) -> str:
    """A cell in words: whole numbers with all their digits, texts in quotes."""
    if value is None:
        return "missing"
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else f"{value[:39]!r}…"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"


def _listed(columns: Sequence[str], word: str) -> str:
    *most, last = [_name(column) for column in columns]
    if len(columns) > SHOWN:
        return f"any of {len(columns)} columns ({', '.join(most[:SHOWN])}, …)"
    return f"{', '.join(most)} {word} {last}" if most else last


class UsualValues:
    """Scores rows of a table with what is usual in the place of their own entries.

    ``usual`` has for each column what may take the place of its E entries (U, E), one row or, of a text, one for each level;
    ``places`` says which entries of a row these are.
    """

    def __init__(self, reader: TableReader, detector: Detector, threshold: Threshold) -> None:
        self.reader, self.table, self.detector, self.threshold = reader, reader.table, detector, threshold
        self.usual = [within_float32(column.usual) for column in self.table.columns]
        ends = np.cumsum([entries.shape[1] for entries in self.usual]).tolist()
        self.places = [slice(end - own.shape[1], end) for own, end in zip(self.usual, ends, strict=True)]

    def explain(self, batch: Batch, verdicts: Verdicts, asked: Sequence[int], most: int | None) -> Iterator[RowWhy]:
        """Why each of these rows, by its number in the table, is OOD; at most ``most`` columns of each."""
        if batch.features is not None and batch.cells is None:
            raise InputError("pass the table itself: its features do not say what the cells held")
        usable = np.array([one.error is None for one in verdicts])
        scores, places = verdicts.scores[usable], np.cumsum(usable) - 1  # of a row among those that can be used
        wanted = [int(places[number]) for number in asked if usable[number]]
        changed = sum(usual.shape[0] for usual in self.usual) * (self.places[-1].stop + 1)  # numbers for each row
        at_once = max(1, ENTRIES // changed)
        parts = [wanted[start : start + at_once] for start in range(0, len(wanted), at_once)]
        found = (one for part in parts for one in self._explained(batch, scores[part], part))
        for number in asked:
            if (error := verdicts[number].error) is not None:
                yield RowWhy.failed(number, error)
            else:
                one = next(found)
                yield replace(one, row=number, columns=one.columns[:most])

    def with_reasons(self, batch: Batch, verdicts: Verdicts) -> list[ExplainedVerdict]:
        """The same verdicts, those on OOD rows with the columns that count most."""
        asked = np.flatnonzero(verdicts.is_ood).tolist()
        found = dict(zip(asked, self.explain(batch, verdicts, asked, SHOWN), strict=True))
        return [ExplainedVerdict(**vars(one), why=found.get(number)) for number, one in enumerate(verdicts)]

    def _explained(self, batch: Batch, scores: np.ndarray, part: list[int]) -> Iterator[RowWhy]:
        rows, about = batch.features.features.numpy()[part], batch.features.about  # type: ignore[union-attr]
        least, chosen, _ = lowest = self.lowest(rows, about, scores)
        p_values, is_ood = self.threshold.p_value(scores).tolist(), self.threshold.is_ood(scores).tolist()
        combined = self._together(rows, about, scores, lowest)
        for i, number in enumerate(part):
            columns, then = [], (self.threshold.p_value(least[i]).tolist(), self.threshold.is_ood(least[i]).tolist())
            for c in np.argsort(least[i], kind="stable").tolist():
                column, score = self.table.columns[c], float(least[i, c])
                told = _told(column, batch.cells[column.name].values[number], int(chosen[i, c]))  # type: ignore[index]
                fall, p_value, ood = float(scores[i]) - score, then[0][c], then[1][c]
                columns.append(ColumnWhy(column.name, column.kind, *told, fall, score, p_value, ood))
            alone = tuple(one.column for one in columns if not one.is_ood) if is_ood[i] else ()
            together, p_together = combined.get(i, ((), None))
            names = tuple(self.table.columns[c].name for c in together)
            numeric = [one for one in columns if one.deviations is not None]
            far = max(numeric, key=lambda one: abs(one.deviations or 0.0), default=None)
            verdict = number, float(scores[i]), p_values[i], is_ood[i]
            yield RowWhy(*verdict, alone, names, p_together, tuple(columns), far)

    def lowest(self, rows: np.ndarray, about: dict[str, str], scores: np.ndarray) -> Lowest:
        """What rows (N, D), float32, that have these scores (N,) would score with each column as it usually is.

        Of each row and column (N, C): the lowest score that a usual entry gives, which one that is, whether it changes the row.
        """
        found = self._scored(rows, about)
        shape = (len(rows), len(self.usual))
        lowest, chosen, changes = np.empty(shape), np.empty(shape, dtype=np.int64), np.empty(shape, dtype=bool)
        first, each = 0, np.arange(len(rows))
        for c, (usual, place) in enumerate(zip(self.usual, self.places, strict=True)):
            own = found[first : first + len(usual)]
            same = np.stack([(rows[:, place] == entries).all(axis=1) for entries in usual])
            # What changes nothing scores the same to the bit, although it was scored in another batch.
            own[same] = np.broadcast_to(scores, own.shape)[same]
            best = own.argmin(axis=0)
            kept = same.any(axis=0) & (scores <= own[best, each])  # nothing is better than what the row has
            chosen[:, c] = np.where(kept, same.argmax(axis=0), best)
            lowest[:, c], changes[:, c] = own[chosen[:, c], each], ~same[chosen[:, c], each]
            first += len(usual)
        return lowest, chosen, changes

    def _scored(self, rows: np.ndarray, about: dict[str, str]) -> np.ndarray:
        """Scores (U, N) of all rows with the first usual entries, with the next, …"""
        options = [(place, entries) for place, usual in zip(self.places, self.usual, strict=True) for entries in usual]
        changed = np.tile(rows, (len(options), 1, 1))
        for number, (place, entries) in enumerate(options):
            changed[number, :, place] = entries
        scores = self.detector.score(FeatureSet(changed.reshape(-1, rows.shape[1]), about=about))
        return scores.double().numpy().reshape(len(options), len(rows))

    def _together(self, rows: np.ndarray, about: dict[str, str], scores: np.ndarray, lowest: Lowest) -> Together:
        """For OOD rows that no column alone explains, by their numbers: columns that do together, and the p-value then.

        Greedy: of the columns that are not as usual yet, the one whose change gives the lowest score is changed for good.
        """
        left = np.flatnonzero(self.threshold.is_ood(scores).numpy())
        rows, now, (least, chosen, changes) = rows[left], scores[left], (part[left] for part in lowest)
        taken: list[tuple[int, ...]] = [()] * len(left)
        found: Together = {}
        for turn in range(MOST_TOGETHER):
            if not len(left):
                break
            if turn:
                least, chosen, changes = self.lowest(rows, about, now)
            offered = np.where(changes, least, np.inf)
            for row, columns in enumerate(taken):
                offered[row, [*columns]] = np.inf
            best, now = offered.argmin(axis=1).tolist(), offered.min(axis=1)
            for row, c in enumerate(best):
                taken[row] = (*taken[row], c)
                rows[row, self.places[c]] = self.usual[c][chosen[row, c]]
            is_ood = self.threshold.is_ood(now).numpy()
            if turn:  # what one column alone explains is told as that
                for row in np.flatnonzero(~is_ood).tolist():
                    found[int(left[row])] = taken[row], float(self.threshold.p_value(now[[row]]))
            # Where the score is infinite, all columns are as usual, and nothing is left to change.
            still = np.flatnonzero(is_ood & np.isfinite(now))
            left, rows, now, taken = left[still], rows[still], now[still], [taken[row] for row in still]
        return found


def _told(column: Column, cell: object, chosen: int) -> tuple[Value, Value, float | None]:
    """The value of a cell, what is usual in its place, and by how many standard deviations it lies off the mean."""
    value = _value(column.kind, cell)
    usual = column.levels[chosen] if column.kind == TEXT else _value(column.kind, column.median)
    if column.spread is None or value is None:
        return value, usual, None
    entry = column.entries_of(Cells(NUMBER, np.array([value], dtype=np.float64)))
    return value, usual, float(entry.clip(-LARGEST, LARGEST)[0, 0])


def _value(kind: str, value: object) -> Value:
    """A cell as plain data."""
    if value is None or isinstance(value, str):
        return value
    number = float(value)  # type: ignore[arg-type]  # of a column of numbers or truths
    if number != number:
        return None
    return bool(number) if kind == TRUTH and number in (0.0, 1.0) else number


def row_numbers(rows: Any, total: int) -> list[int]:
    """Rows as numbers from 0 on: of a number, of several, or of a truth for each row."""
    asked = np.atleast_1d(np.asarray(rows))
    if asked.dtype == bool and asked.shape == (total,):
        asked = np.flatnonzero(asked)
    good = asked.ndim == 1 and (asked.dtype.kind in "iu" or not len(asked))
    if not good or (len(asked) and not 0 <= asked.min() <= asked.max() < total):
        what = f"rows is {rows!r:.200}; it must be numbers of rows from 0 to {total - 1}"
        raise InputError(f"{what}, a truth for each of {counted(total, 'row')}, or None for those that are OOD")
    return [int(number) for number in asked]
