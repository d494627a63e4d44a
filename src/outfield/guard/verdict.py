"""Verdicts: what a guard says of an image or a row, of several, and as CSV, Parquet, JSON and JSON lines."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from outfield.errors import InputError
from outfield.extras import library
from outfield.features import write_columns
from outfield.files import write_bytes
from outfield.percent import counted
from outfield.scores import discovery_limit


@dataclass(frozen=True)
class Verdict:
    """What a guard says of one image or row.

    Attributes:
        file: where it comes from, or None.
        class_index: the class that the network puts it in; None where it could not be read, or there is no network.
        class_name: the name of that class, or None where names are not known.
        score: the detector's, higher = more OOD.
        p_value: share of held-out ID samples with at least this score, in (0, 1].
        is_ood: whether the score is above the threshold.
        triggered_by: the member of the detector that adds most to the score of an OOD sample; None for an ID one.
        members: p-value of each member of the detector, by its name.
        error: why it could not be read; all else is None then.
        group: with thresholds for each class, whose it was: the predicted class, or the rare classes that share one.
        accept: of a guard with an accuracy, whether the answer is accepted: the input is known and the class probably right.
        p_right: the chance that the class is right, where the input is known.
        why_not: "unknown" where the input is OOD, "unsure" where the class is probably wrong; None where it is accepted.
    """

    file: str | None
    class_index: int | None
    class_name: str | None
    score: float | None
    p_value: float | None
    is_ood: bool | None
    triggered_by: str | None = None
    members: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    group: str | None = None
    accept: bool | None = None
    p_right: float | None = None
    why_not: str | None = None

    @classmethod
    def failed(cls, file: str | None, error: str) -> Verdict:
        """Of what could not be read."""
        return cls(file, None, None, None, None, None, error=error)

    @property
    def label(self) -> str:
        """The name of the class, or its number where it has no name; nothing where no class is known."""
        return self.class_name or ("" if self.class_index is None else str(self.class_index))

    @property
    def rang(self) -> str | None:
        """``triggered_by`` as version 0.1 called it."""
        warnings.warn("Verdict.rang is now triggered_by", DeprecationWarning, stacklevel=2)
        return self.triggered_by

    @property
    def refused(self) -> bool:
        """Whether it is OOD, or its answer is not accepted."""
        return bool(self.is_ood) or self.accept is False

    @property
    def word(self) -> str:
        """ "OOD", "unsure", "ok" or "error"."""
        return "error" if self.error is not None else "OOD" if self.is_ood else self.why_not or "ok"

    @property
    def p_known(self) -> float | None:
        """The p-value by its name in a decision."""
        return self.p_value

    @property
    def more(self) -> dict[str, Any]:
        """What a table of verdicts has of this one beside :data:`COLUMNS` and its members, by the name of the column."""
        names = (*(("group",) if self.group is not None else ()), *(DECIDED if self.accept is not None else ()))
        return {name: getattr(self, name) for name in names}

    @property
    def rows(self) -> tuple[Verdict, ...]:
        """What a table of verdicts has a row for: itself, or each of its boxes."""
        return (self,)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        own = {name: value for name, value in vars(self).items() if name not in OPTIONAL}
        return {**own, "members": dict(self.members), **self.more}

    def __repr__(self) -> str:
        where = "" if self.file is None else f"{self.file}: "
        if self.error is not None:
            return f"Verdict({where}{self.error})"
        by = "" if self.triggered_by is None else f", triggered by {self.triggered_by}"
        label = f"{self.label}, " if self.label else ""
        return f"Verdict({where}{self.word}, {label}score {self.score:.4g}, p-value {self.p_value:.3g}{by})"


@dataclass(frozen=True, repr=False)
class BoxVerdict(Verdict):
    """What a guard says of one box: its class is the object detector's.

    Attributes:
        left: its left edge, in pixels of the image; so are the others.
        top: its upper edge.
        right: its right edge.
        bottom: its lower edge.
        confidence: the object detector's own.
    """

    left: float = 0.0
    top: float = 0.0
    right: float = 0.0
    bottom: float = 0.0
    confidence: float = 0.0

    @property
    def more(self) -> dict[str, Any]:
        return {**super().more, **{name: getattr(self, name) for name in BOX}}

    def __repr__(self) -> str:
        corners = ", ".join(f"{getattr(self, name):.0f}" for name in BOX[:4])
        return super().__repr__().replace("Verdict(", f"BoxVerdict([{corners}] {self.confidence:.2f}, ", 1)


@dataclass(frozen=True, repr=False)
class ImageVerdict(Verdict):
    """What a guard of boxes says of one image: a verdict on each box, none where the object detector finds none.

    The image has no score of its own; it is OOD where one of its boxes is.

    Attributes:
        boxes: those of which the object detector is surest come first.
    """

    boxes: tuple[BoxVerdict, ...] = ()

    @property
    def more(self) -> dict[str, Any]:
        return dict.fromkeys(BOX)

    @property
    def rows(self) -> tuple[Verdict, ...]:
        return self.boxes or (self,)

    def to_dict(self) -> dict[str, Any]:
        boxes = [{name: value for name, value in one.to_dict().items() if name != "file"} for one in self.boxes]
        return {"file": self.file, "is_ood": self.is_ood, "boxes": boxes, "error": self.error}

    def __repr__(self) -> str:
        where, boxes = "" if self.file is None else f"{self.file}: ", counted(len(self.boxes), "box")
        return f"ImageVerdict({where}{self.error or f'{boxes}, {sum(bool(one.is_ood) for one in self.boxes)} OOD'})"


BOX = ("left", "top", "right", "bottom", "confidence")  # columns of a table of boxes, beside the others
DECIDED = ("accept", "p_known", "p_right", "why_not")
# Why an answer is not accepted: its input is OOD, or the class is probably wrong
UNKNOWN, UNSURE = "unknown", "unsure"
OPTIONAL = ("group", *DECIDED)  # what only verdicts of guards that decide so have
# Of a table of verdicts; beside them one for each member, ``p_value NAME``, and ``why`` where columns were asked for
COLUMNS = ("file", "class_index", "class_name", "score", "p_value", "is_ood", "triggered_by", "error")
SHOWN = 10  # lines of a ``repr``


class Verdicts(Sequence[Verdict]):
    """What a guard says of several images or rows, in the order in which they were given.

    Args:
        verdicts: one of each.
        what: they are of, for people: "images" or "rows".
    """

    def __init__(self, verdicts: Sequence[Verdict], what: str = "images") -> None:
        self._verdicts, self.what = tuple(verdicts), what

    @property
    def boxes(self) -> Verdicts:
        """Those of all boxes of all images, in one list."""
        return Verdicts([row for one in self for row in one.rows if isinstance(row, BoxVerdict)], "boxes")

    def __len__(self) -> int:
        return len(self._verdicts)

    @overload
    def __getitem__(self, index: int) -> Verdict: ...

    @overload
    def __getitem__(self, index: slice) -> Verdicts: ...

    def __getitem__(self, index: int | slice) -> Verdict | Verdicts:
        return Verdicts(self._verdicts[index], self.what) if isinstance(index, slice) else self._verdicts[index]

    @property
    def scores(self) -> np.ndarray:
        """Of each (N,), float64; NaN where it could not be read."""
        return np.array([one.score for one in self], dtype=np.float64)

    @property
    def p_values(self) -> np.ndarray:
        """Of each (N,), float64; NaN where it could not be read."""
        return np.array([one.p_value for one in self], dtype=np.float64)

    @property
    def is_ood(self) -> np.ndarray:
        """Which are OOD (N,); False where one could not be read."""
        return np.array([bool(one.is_ood) for one in self], dtype=bool)

    def discoveries(self, rate: float) -> np.ndarray:
        """Which to call OOD in this batch so that at most the share ``rate`` of these are ID, in expectation (N,).

        The rule of Benjamini and Hochberg (1995) on the p-values. It holds where ID inputs of the batch are exchangeable with the
        images that set the threshold and do not depend on each other: such p-values depend on each other only by sharing these
        images, which keeps the rule valid (Bates et al. 2023). What could not be read is no discovery.
        """
        if any(isinstance(one, ImageVerdict) and one.boxes for one in self):
            raise InputError("images have no p-value of their own, their boxes have: take verdicts.boxes")
        p_values = self.p_values
        known = np.isfinite(p_values)
        limit = discovery_limit(p_values[known], rate) if known.any() else 0.0
        found: np.ndarray = known & (p_values <= limit)
        return found

    def with_discoveries(self, rate: float) -> Verdicts:
        """The same verdicts, OOD where they are :meth:`discoveries`."""
        found = zip(self, self.discoveries(rate).tolist(), strict=True)
        return Verdicts([one if one.error is not None else _called(one, ood) for one, ood in found], self.what)

    @property
    def failed(self) -> Verdicts:
        """Those of what could not be read."""
        return Verdicts([one for one in self if one.error is not None], self.what)

    def table(self) -> dict[str, list[Any]]:
        """Columns by name, of equal length: :data:`COLUMNS` and the p-value of each member; None where there is nothing.

        Each box has a row of its own, and so has an image without a box.
        """
        rows = [row for one in self for row in one.rows]
        columns: dict[str, list[Any]] = {name: [getattr(one, name) for one in rows] for name in COLUMNS}
        for member in dict.fromkeys(name for one in rows for name in one.members):
            columns[f"p_value {member}"] = [one.members.get(member) for one in rows]
        for name in dict.fromkeys(name for one in rows for name in one.more):
            columns[name] = [one.more.get(name) for one in rows]
        return columns

    def to_frame(self) -> Any:
        """The table as a ``pandas.DataFrame``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return library("pandas", extra="tables").DataFrame(self.table())

    def to_list(self) -> list[dict[str, Any]]:
        """Each verdict as plain data, ready for JSON."""
        return [one.to_dict() for one in self]

    def __repr__(self) -> str:
        failed = f", {len(self.failed):,} not readable" if len(self.failed) else ""
        lines = [f"Verdicts({counted(len(self), self.what[:-1])}, {int(self.is_ood.sum()):,} OOD{failed})"]
        lines += [f"  {one!r}" for one in self._verdicts[:SHOWN]]
        return "\n".join([*lines, "  …"] if len(self) > SHOWN else lines)


def _called(one: Verdict, is_ood: bool) -> Verdict:
    """A verdict that calls its input OOD, or not."""
    accept = None if one.accept is None else one.accept and not is_ood
    why_not = UNKNOWN if one.accept and is_ood else one.why_not
    by = one.triggered_by if is_ood else None
    return replace(one, is_ood=is_ood, triggered_by=by, accept=accept, why_not=why_not)


VERDICT_ENDINGS = (".csv", ".parquet", ".json", ".jsonl")  # of files that verdicts are written to
# Of columns of a Parquet file; all others hold numbers
TYPES = {"class_index": "int64", "is_ood": "bool", "accept": "bool"} | dict.fromkeys(
    ("file", "class_name", "triggered_by", "error", "why", "group", "why_not"), "string"
)


def write_verdicts(path: Path, verdicts: Verdicts) -> None:
    """Write verdicts to a file of the kind that its ending says, atomically."""
    if path.suffix not in VERDICT_ENDINGS:
        raise InputError(f"{path}: verdicts are written as {', '.join(VERDICT_ENDINGS)}, not {path.suffix!r}")
    if path.suffix in (".json", ".jsonl"):
        write_bytes(path, (as_json if path.suffix == ".json" else as_json_lines)(verdicts).encode())
    else:
        table = verdicts.table()
        write_columns(path, table, {name: TYPES.get(name, "float64") for name in table})


def as_json(verdicts: Iterable[Verdict]) -> str:
    """A list of objects."""
    return "[\n" + ",\n".join(json.dumps(one.to_dict()) for one in verdicts) + "\n]\n"


def as_json_lines(verdicts: Iterable[Verdict]) -> str:
    """An object in each line."""
    return "".join(json.dumps(one.to_dict()) + "\n" for one in verdicts)
