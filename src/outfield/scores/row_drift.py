"""Whether rows are still distributed as reference rows are, column by column, with an alarm whose error is known.

Scores tell whether single rows are odd. A change that leaves every row ordinary, such as all incomes 15 % higher, shows in the
columns: each of C columns has a :class:`outfield.Drift` of its own, of its values instead of scores, which raises its alarm at
alpha / C. So P(any alarm, ever) ≤ alpha, however the columns depend on each other (Bonferroni).
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from typing import Any

import numpy as np

from outfield.config import require_number
from outfield.errors import MALFORMED, FileFormatError, InputError, TooFewSamplesError, as_ours
from outfield.files import PathLike, Record, as_tensor, read_record, write_record
from outfield.percent import counted, listed
from outfield.scores.drift import Drift, in_words
from outfield.scores.threshold import Threshold, same

MOST = 10_000  # reference rows that are kept
FEWEST = 40  # of texts half of them are compared with, and a threshold needs 19
LARGEST = float(np.finfo(np.float64).max)  # in the place of a missing number


class RowDrift:
    """Watches the rows of a table, or features, and says which column has changed, and since which row.

    Rows are taken to be independent of each other. If new ones are distributed as the reference rows are, an alarm is ever
    raised with probability ``alpha`` at most. It stays until a new RowDrift is made. A missing number counts as the largest; a
    text counts by how rare it is in every second reference row, and is compared with the others.

    Args:
        reference: ID rows, such as those a guard was built of: a table (a DataFrame, or columns by name) or features (N, D).
        alpha: Probability of ever raising a false alarm.
        seed: Of the random order of equal values.

    Raises:
        InputError: These are no such rows, or ``alpha`` or ``seed`` is out of range.
        TooFewSamplesError: There are fewer than 40 reference rows.

    >>> rng = np.random.default_rng(0)
    >>> drift = RowDrift({"age": rng.normal(40, 9, 500), "town": rng.choice(["Oslo", "Rome"], 500)})
    >>> drift.update({"age": rng.normal(40, 9, 300), "town": rng.choice(["Oslo", "Rome", "Bonn"], 300)})
    True
    >>> drift.summary()["column"]
    'town'
    """

    def __init__(self, reference: Any, *, alpha: float = 0.01, seed: int = 0) -> None:
        require_number("alpha", alpha, above=0, most=1)
        columns = _columns("reference", reference)
        rows = len(next(iter(columns.values())))
        if rows < FEWEST:
            raise TooFewSamplesError(f"reference has {rows} rows; pass at least {FEWEST}, better a thousand or more")
        kept = np.linspace(0, rows - 1, min(rows, MOST)).astype(np.int64)
        self.alpha = float(alpha)
        self._levels: dict[str, list[str]] = {}
        self._watches: dict[str, Drift] = {}
        for name, values in columns.items():
            own = values[kept]
            if _is_text(own):
                self._levels[name] = [text for text, _ in Counter(map(_text, own[::2])).most_common()]
                own = own[1::2]
            rule = Threshold.fit(self._numbers(name, own))
            self._watches[name] = Drift(rule, alpha=alpha / len(columns), seed=seed)

    def _numbers(self, name: str, values: np.ndarray) -> np.ndarray:
        """What a column's values are compared by (N,)."""
        if name in self._levels:
            place = {text: index for index, text in enumerate(self._levels[name])}
            return np.array([place.get(_text(value), len(place)) for value in values], np.float64)
        try:
            if _is_text(values):
                raise ValueError
            return np.nan_to_num(values.astype(np.float64), nan=LARGEST, posinf=LARGEST, neginf=-LARGEST)
        except (TypeError, ValueError) as error:
            row = next((at for at, value in enumerate(values) if not _is_number(value)), 0)
            what = f"row {row + 1}: column {name!r} holds {values[row]!r:.40}"
            raise InputError(f"{what}, which is no number; it holds numbers in the reference") from error

    def update(self, rows: Any) -> bool:
        """Take in rows, as the reference was given; returns whether there is an alarm. More columns may stand among them.

        Raises:
            InputError: These are no such rows, or a column is missing, or it holds texts where the reference has numbers.
        """
        columns = _columns("rows", rows)
        missing = [name for name in self._watches if name not in columns]
        if missing:
            what = f"the rows have no column {listed(missing)}, which the reference has"
            raise InputError(f"{what}; leave it out there, too")
        found = {name: self._numbers(name, columns[name]) for name in self._watches}
        for name, numbers in found.items():
            self._watches[name].update(numbers)
        return self.alarm

    @property
    def alarm(self) -> bool:
        """Whether drift was found."""
        return any(watch.alarm for watch in self._watches.values())

    def summary(self) -> dict[str, Any]:
        """Everything there is to tell, ready for JSON.

        ``samples``, how many rows came; ``alpha``, ``limit``, ``alarm``, ``alarm_at``, ``since`` and ``largest_log_wealth`` as
        :meth:`outfield.Drift.summary` has them, of the ``column`` that raised its alarm first, or has most evidence; and all
        these of each of ``columns``.
        """
        told = {name: watch.summary() for name, watch in self._watches.items()}
        first = min(told, key=lambda name: (told[name]["alarm_at"] or math.inf, -told[name]["largest_log_wealth"]))
        shared = {key: told[first][key] for key in ("samples", "limit")} | {"alpha": self.alpha, "column": first}
        keys = ("alarm", "alarm_at", "since", "largest_log_wealth")
        columns = {name: {key: one[key] for key in keys} for name, one in told.items()}
        return {**shared, **columns[first], "columns": columns}

    def __repr__(self) -> str:
        told = self.summary()
        return f"RowDrift({counted(told['samples'], 'row')} of {counted(len(self._watches), 'column')}; {in_words(told, 'row')})"

    def same_reference(self, other: RowDrift) -> bool:
        """Whether both compare with the same rows."""
        mine, theirs = ({name: one.threshold for name, one in of._watches.items()} for of in (self, other))
        return mine.keys() == theirs.keys() and all(same(mine[name], rule) for name, rule in theirs.items() if rule)

    def save(self, path: PathLike) -> None:
        """Write what was seen to ``path`` (``.safetensors``), atomically."""
        header = {"alpha": self.alpha, "columns": [*self._watches], "levels": self._levels}
        parts = {str(index): watch.record() for index, watch in enumerate(self._watches.values())}
        write_record(path, "RowDrift", Record.of(header, **parts))

    @classmethod
    def load(cls, path: PathLike) -> RowDrift:
        """Read what :meth:`save` wrote, and go on from there.

        Raises:
            FileFormatError: The file is damaged or not a RowDrift.
        """
        record = Record(*read_record(path, "RowDrift"))
        made = cls.__new__(cls)
        with as_ours(f"{path} holds a RowDrift that cannot be one", FileFormatError, *MALFORMED):
            made.alpha, made._levels = record.header["alpha"], record.header["levels"]
            parts = {name: record.part(str(index)) for index, name in enumerate(record.header["columns"])}
            made._watches = {name: Drift.of_state({**part.header, **part.tensors}) for name, part in parts.items()}
        return made


def _columns(name: str, rows: Any) -> dict[str, np.ndarray]:
    """The columns of a table, or of features, by name."""
    names = getattr(rows, "columns", rows if hasattr(rows, "keys") else None)
    if names is None:
        features = as_tensor(name, rows)
        if features.ndim != 2:
            raise InputError(f"{name} must be a table or features (N, D); got shape {tuple(features.shape)}")
        found = {f"feature {index}": column for index, column in enumerate(features.double().numpy().T)}
    else:
        found = {str(key): np.asarray(rows[key]) for key in names}
    if not found or {column.shape for column in found.values()} != {(len(next(iter(found.values()))),)}:
        raise InputError(f"{name} must have columns of equal length, with one value for each row")
    if not len(next(iter(found.values()))):
        raise InputError(f"{name} has no rows; at least one is needed")
    return found


def _is_text(values: np.ndarray) -> bool:
    return values.dtype.kind in "OUT" and any(isinstance(value, str) for value in values)


def _is_number(value: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        float("nan" if value is None else value)
        return True
    return False


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
