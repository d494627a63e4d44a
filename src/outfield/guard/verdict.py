"""What a guard says of an image, and of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from outfield.extras import library


@dataclass(frozen=True)
class Verdict:
    """What a guard says of one image.

    Attributes:
        file: where the image comes from, or None.
        class_index: the class that the network puts it in; None where the image could not be read.
        class_name: the name of that class, or None where names are not known.
        score: the detector's, higher = more OOD.
        p_value: share of held-out ID images with at least this score, in (0, 1].
        is_ood: whether the score is above the threshold.
        rang: the member of the detector that adds most to the score of an OOD image; None for an ID image.
        members: p-value of each member of the detector, by its name.
        error: why the image could not be read; all else is None then.
    """

    file: str | None
    class_index: int | None
    class_name: str | None
    score: float | None
    p_value: float | None
    is_ood: bool | None
    rang: str | None = None
    members: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def failed(cls, file: str | None, error: str) -> Verdict:
        """Of an image that could not be read."""
        return cls(file, None, None, None, None, None, error=error)

    @property
    def label(self) -> str:
        """The name of the class, or its number where it has no name; nothing where no class is known."""
        return self.class_name or ("" if self.class_index is None else str(self.class_index))

    @property
    def word(self) -> str:
        """ "OOD", "ok" or "error"."""
        return "error" if self.error is not None else "OOD" if self.is_ood else "ok"

    @property
    def more(self) -> dict[str, Any]:
        """What a table of verdicts has of this one beside :data:`COLUMNS` and its members, by the name of the column."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "file": self.file,
            "class_index": self.class_index,
            "class_name": self.class_name,
            "score": self.score,
            "p_value": self.p_value,
            "is_ood": self.is_ood,
            "rang": self.rang,
            "members": dict(self.members),
            "error": self.error,
        }

    def __repr__(self) -> str:
        where = "" if self.file is None else f"{self.file}: "
        if self.error is not None:
            return f"Verdict({where}{self.error})"
        rang = "" if self.rang is None else f", {self.rang} rang"
        label = f"{self.label}, " if self.label else ""
        return f"Verdict({where}{self.word}, {label}score {self.score:.4g}, p-value {self.p_value:.3g}{rang})"


COLUMNS = ("file", "class_index", "class_name", "score", "p_value", "is_ood", "rang", "error")
"""Of a table of verdicts; beside them one for each member, ``p_value NAME``, and ``why`` where columns were asked for."""
SHOWN = 10
"""Lines of a ``repr``."""


class Verdicts(Sequence[Verdict]):
    """What a guard says of several images, in the order in which they were given.

    Args:
        verdicts: one of each image.
        what: they are of, for people: "images" or "rows".
    """

    def __init__(self, verdicts: Sequence[Verdict], what: str = "images") -> None:
        self._verdicts, self.what = tuple(verdicts), what

    def __len__(self) -> int:
        return len(self._verdicts)

    @overload
    def __getitem__(self, index: int) -> Verdict: ...

    @overload
    def __getitem__(self, index: slice) -> Verdicts: ...

    def __getitem__(self, index: int | slice) -> Verdict | Verdicts:
        return Verdicts(self._verdicts[index], self.what) if isinstance(index, slice) else self._verdicts[index]

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self._verdicts)

    @property
    def scores(self) -> np.ndarray:
        """Of each image (N,), float64; NaN where it could not be read."""
        return self._numbers("score")

    @property
    def p_values(self) -> np.ndarray:
        """Of each image (N,), float64; NaN where it could not be read."""
        return self._numbers("p_value")

    @property
    def is_ood(self) -> np.ndarray:
        """Which images are OOD (N,); False where one could not be read."""
        return np.array([bool(one.is_ood) for one in self], dtype=bool)

    @property
    def failed(self) -> Verdicts:
        """Those of images that could not be read."""
        return Verdicts([one for one in self if one.error is not None], self.what)

    def _numbers(self, name: str) -> np.ndarray:
        return np.array([getattr(one, name) for one in self], dtype=np.float64)

    def table(self) -> dict[str, list[Any]]:
        """Columns by name, of equal length: :data:`COLUMNS` and the p-value of each member; None where there is nothing."""
        columns: dict[str, list[Any]] = {name: [getattr(one, name) for one in self] for name in COLUMNS}
        for member in dict.fromkeys(name for one in self for name in one.members):
            columns[f"p_value {member}"] = [one.members.get(member) for one in self]
        for name in dict.fromkeys(name for one in self for name in one.more):
            columns[name] = [one.more.get(name) for one in self]
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
        lines = [f"Verdicts({len(self):,} {self.what}, {int(self.is_ood.sum()):,} OOD{failed})"]
        lines += [f"  {one!r}" for one in self._verdicts[:SHOWN]]
        return "\n".join([*lines, "  …"] if len(self) > SHOWN else lines)
