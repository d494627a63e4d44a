"""What a row of a table would score with what is usual in the place of one column, or of a few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from outfield.detectors.base import Detector
from outfield.features.cells import NUMBER, TEXT, TRUTH, Cells
from outfield.features.set import FeatureSet
from outfield.features.table import LARGEST, TablePreprocessing, within_float32
from outfield.features.table_columns import Column
from outfield.guard.why import ColumnWhy, RowWhy, Value
from outfield.scores.threshold import Threshold

MOST_TOGETHER = 3
"""Columns that are put to what is usual together, at most."""
ENTRIES = 2**22
"""Numbers of changed rows that are scored at once, about: 16 MB."""
SCORES = 2**19
"""Scores of changed rows that are held at once, about: 4 MB."""


class Lowest(NamedTuple):
    """What rows score with what is usual in one column, for each of C columns.

    Attributes:
        scores: The lowest that a usual entry gives (N, C), float64.
        chosen: Which of the column's usual entries gives it (N, C).
        changes: Whether it is another than the row's own (N, C).
    """

    scores: np.ndarray
    chosen: np.ndarray
    changes: np.ndarray


class Replacing:
    """Scores rows of a table with what is usual in the place of their own entries.

    Args:
        table: Whose columns they are.
        detector: Fitted on such rows.
        threshold: Of that detector.

    Attributes:
        usual: For each column what may take the place of its E entries (U, E), float32: one row for a number or truth, and
            for a text one for each level.
        places: Which entries of a row these are, for each column.
    """

    def __init__(self, table: TablePreprocessing, detector: Detector, threshold: Threshold) -> None:
        self.table, self.detector, self.threshold = table, detector, threshold
        self.usual = [within_float32(column.usual) for column in table.columns]
        ends = np.cumsum([entries.shape[1] for entries in self.usual]).tolist()
        self.places = [slice(end - own.shape[1], end) for own, end in zip(self.usual, ends, strict=True)]

    def __call__(
        self, features: FeatureSet, cells: Mapping[str, Cells], scores: np.ndarray, numbers: Sequence[int]
    ) -> Iterator[RowWhy]:
        """For each row that is asked for, why it is OOD; its number is that among the features, and all columns are told.

        Args:
            features: Rows (N, D).
            cells: They were made of.
            scores: Of these rows (N,).
            numbers: Rows to look at.
        """
        rows = features.features.numpy()
        at_once = max(1, SCORES // sum(len(own) for own in self.usual))
        for start in range(0, len(numbers), at_once):
            part = [*numbers[start : start + at_once]]
            yield from self._explained(rows[part], features.about, cells, scores[part], part)

    def _explained(
        self, rows: np.ndarray, about: dict[str, str], cells: Mapping[str, Cells], scores: np.ndarray, part: list[int]
    ) -> Iterator[RowWhy]:
        lowest = self.lowest(rows, about, scores)
        p_values, is_ood = self.threshold.p_value(scores).tolist(), self.threshold.is_ood(scores).tolist()
        p_then, ood_then = (
            one(lowest.scores.ravel()).numpy().reshape(lowest.scores.shape)
            for one in (self.threshold.p_value, self.threshold.is_ood)
        )
        combined = self._together(rows, about, scores, lowest)
        for i, number in enumerate(part):
            order = np.argsort(lowest.scores[i], kind="stable").tolist()
            columns = tuple(
                _column(
                    self.table.columns[c],
                    cells,
                    number,
                    int(lowest.chosen[i, c]),
                    float(scores[i]),
                    (float(lowest.scores[i, c]), float(p_then[i, c]), bool(ood_then[i, c])),
                )
                for c in order
            )
            alone = tuple(one.column for one in columns if not one.is_ood) if is_ood[i] else ()
            together, p_value = combined.get(i, ((), None))
            names = tuple(self.table.columns[c].name for c in together)
            far = max((one for one in columns if one.deviations is not None), key=_distance, default=None)
            yield RowWhy(number, float(scores[i]), p_values[i], is_ood[i], alone, names, p_value, columns, far)

    def lowest(self, rows: np.ndarray, about: dict[str, str], scores: np.ndarray) -> Lowest:
        """What rows (N, D), float32, that have these scores (N,) would score with each column as it usually is."""
        found = np.concatenate([*self._scored(rows, about)]).reshape(-1, len(rows))
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
        return Lowest(lowest, chosen, changes)

    def _scored(self, rows: np.ndarray, about: dict[str, str]) -> Iterator[np.ndarray]:
        """Scores of all rows with the first usual entries, then with the next, … (U · N,), a piece at a time."""
        options = [(place, entries) for place, usual in zip(self.places, self.usual, strict=True) for entries in usual]
        count, at_once = len(rows), max(1, ENTRIES // rows.shape[1])
        for start in range(0, len(options) * count, at_once):
            stop = min(start + at_once, len(options) * count)
            piece = rows[np.arange(start, stop) % count]
            for number in range(start // count, (stop - 1) // count + 1):
                place, entries = options[number]
                piece[max(number * count - start, 0) : (number + 1) * count - start, place] = entries
            yield self.detector.score(FeatureSet(piece, about=about)).double().numpy()

    def _together(
        self, rows: np.ndarray, about: dict[str, str], scores: np.ndarray, lowest: Lowest
    ) -> dict[int, tuple[tuple[int, ...], float]]:
        """For OOD rows that no column alone explains, by their numbers: columns that do together, and the p-value then.

        Greedy: of the columns that are not as usual yet, the one whose change gives the lowest score is changed for good.
        """
        left = np.flatnonzero(self.threshold.is_ood(scores).numpy())
        rows, now, lowest = rows[left], scores[left], Lowest(*(part[left] for part in lowest))
        taken: list[tuple[int, ...]] = [()] * len(left)
        found: dict[int, tuple[tuple[int, ...], float]] = {}
        for turn in range(MOST_TOGETHER):
            if not len(left):
                break
            lowest = self.lowest(rows, about, now) if turn else lowest
            offered = np.where(lowest.changes, lowest.scores, np.inf)
            for row, columns in enumerate(taken):
                offered[row, [*columns]] = np.inf
            best, now = offered.argmin(axis=1).tolist(), offered.min(axis=1)
            for row, c in enumerate(best):
                taken[row] = (*taken[row], c)
                rows[row, self.places[c]] = self.usual[c][lowest.chosen[row, c]]
            is_ood = self.threshold.is_ood(now).numpy()
            if turn:  # what one column alone explains is told as that
                for row in np.flatnonzero(~is_ood).tolist():
                    found[int(left[row])] = taken[row], float(self.threshold.p_value(now[[row]]))
            # Where the score is infinite, all columns are as usual, and nothing is left to change.
            still = np.flatnonzero(is_ood & np.isfinite(now))
            left, rows, now, taken = left[still], rows[still], now[still], [taken[row] for row in still]
        return found


def _column(
    column: Column,
    cells: Mapping[str, Cells],
    row: int,
    chosen: int,
    score: float,
    then: tuple[float, float, bool],
) -> ColumnWhy:
    """One column of a row, whose score was ``score``, and with usual entry number ``chosen`` is ``then``."""
    value = _value(column.kind, cells[column.name].values[row])
    usual = column.levels[chosen] if column.kind == TEXT else _value(column.kind, column.median)
    deviations = None
    if column.spread is not None and value is not None:
        entry = column.entries_of(Cells(NUMBER, np.array([value], dtype=np.float64)))
        deviations = float(entry.clip(-LARGEST, LARGEST)[0, 0])
    return ColumnWhy(column.name, column.kind, value, usual, deviations, score - then[0], *then)


def _distance(column: ColumnWhy) -> float:
    return abs(column.deviations or 0.0)


def _value(kind: str, value: object) -> Value:
    """A cell as plain data."""
    if value is None or isinstance(value, str):
        return value
    number = float(value)  # type: ignore[arg-type]  # of a column of numbers or truths
    if number != number:
        return None
    return bool(number) if kind == TRUTH and number in (0.0, 1.0) else number
