"""Parts: the rows of a source cut into pieces that are scored, written and counted one by one.

Where a part begins and ends depends on the source alone, not on who works on it: the network is given the same rows together
whichever engine runs it, which is what makes results equal to the bit.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from outfield.cluster.parquet import named_rows
from outfield.cluster.places import Place, joined
from outfield.features.columns import readable

LEAST, MOST, PARTS = 64, 4096, 64
"""Rows of a part where nobody says otherwise: at least, at most, and into how many parts a source is cut in between."""


@dataclass(frozen=True)
class Part:
    """Some consecutive rows of a source.

    Attributes:
        number: counted from 0.
        rows: how many.
        root: address of the folder that the names are relative to; of a Parquet file, the file itself.
        prefix: what stands before a name in results.
        names: of image files; none of a Parquet file.
        start: the first row in a Parquet file.
        stamp: what tells that the Parquet file was changed.
    """

    number: int
    rows: int
    root: str
    prefix: str
    names: tuple[str, ...] = field(default=())
    start: int = 0
    stamp: str = ""

    @property
    def file(self) -> str:
        """The name of the file of its results."""
        return f"part-{self.number:07d}.parquet"

    @property
    def stop(self) -> int:
        """The first row behind it, in a Parquet file."""
        return self.start + self.rows

    def place(self) -> Place:
        """The Parquet file, shown as the user wrote it."""
        return replace(Place.of(self.root), shown=self.prefix)

    def addresses(self) -> list[str]:
        """Of its image files."""
        return [joined(self.root, name) for name in self.names]

    def files(self) -> list[str]:
        """What its rows are called in results: names of files, of a Parquet file what its rows are called there."""
        if self.names:
            return [readable(self.prefix + name) for name in self.names]
        return named_rows(self.place(), self.start, self.stop)

    def to_text(self) -> str:
        """As JSON, in letters that every column of text can hold."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Part:
        """What :meth:`to_text` wrote."""
        plain: dict[str, Any] = json.loads(text)
        return cls(**{**plain, "names": tuple(plain["names"])})


def rows_of_a_part(rows: int) -> int:
    """Into parts of how many rows a source of so many is cut: whole batches, parts enough to share out, not too many files.

    >>> [rows_of_a_part(rows) for rows in (10, 10_000, 10**9)]
    [64, 128, 4096]
    """
    return min(MOST, max(LEAST, rows // PARTS // LEAST * LEAST))
