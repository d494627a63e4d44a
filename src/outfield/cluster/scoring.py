"""One part scored by a guard, and its results as a Parquet file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from outfield.cluster.images import PartImages
from outfield.cluster.parquet import feature_rows, holds_images
from outfield.cluster.parts import Part
from outfield.cluster.places import Place
from outfield.errors import FileFormatError
from outfield.features.columns import arrow
from outfield.guard.guard import Guard
from outfield.guard.verdict import COLUMNS, Verdict

TEXTS = ("file", "class_name", "rang", "error")


class Counts(NamedTuple):
    """Rows of results: how many, how many OOD, how many that could not be read."""

    rows: int
    ood: int
    failed: int


class Scorer:
    """A guard that scores parts.

    Args:
        guard: the guard.
        on_error: "skip" tells in an image's row that it cannot be read, "fail" raises an error.
    """

    def __init__(self, guard: Guard, on_error: str = "skip") -> None:
        self.guard, self.on_error = guard, on_error

    def write(self, part: Part, out: Place) -> None:
        """Score a part and write its results into a folder; a part that is there already is left as it is.

        Raises:
            OutfieldError: rows cannot be read, or results not be written.
        """
        place = out.under(part.file)
        if not place.exists():
            place.write(as_parquet(self.verdicts(part), self.guard.members))

    def verdicts(self, part: Part) -> list[Verdict]:
        """A verdict on each row of a part, in order, whose file is what the row is called."""
        files = part.files()
        place = Place.of(part.root)
        if part.names or holds_images(place):
            return [*self.guard.stream(PartImages(part, files), on_error=self.on_error, workers=0)]
        wanted = ("features", *self.guard.widths)
        return [*self.guard.judge(feature_rows(place, part.start, part.stop, wanted), files)]


def as_parquet(verdicts: Sequence[Verdict], members: Sequence[str]) -> bytes:
    """Verdicts as a Parquet file, with the same columns whatever the verdicts are."""
    pyarrow, columns = arrow(), {}
    for name in COLUMNS:
        cells = [getattr(one, name) for one in verdicts]
        kinds = {"class_index": pyarrow.int64(), "is_ood": pyarrow.bool_()}
        kind = pyarrow.string() if name in TEXTS else kinds.get(name, pyarrow.float64())
        columns[name] = pyarrow.array(cells, kind)
    for member in members:
        columns[f"p_value {member}"] = pyarrow.array([one.members.get(member) for one in verdicts], pyarrow.float64())
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file, write_page_checksum=True)
    return file.getvalue()


def checked(part: Part, out: Place) -> Counts:
    """Read the results of a part back: every row of it must be there, once and in its place, by what it is called.

    Raises:
        FileFormatError: a row is missing, stands twice, or is another one.
    """
    place = out.under(part.file)
    with place.opened() as file:
        try:
            table: Any = arrow().parquet.read_table(file, columns=["file", "is_ood", "error"])
        except Exception as error:  # a damaged file leads to errors of many kinds
            raise FileFormatError(
                f"{place.shown} cannot be read as Parquet: {error!s:.300}; remove it and run again"
            ) from error
    found, expected = table.column("file").to_pylist(), part.files()
    if found != expected:
        raise FileFormatError(
            f"{place.shown} has {len(found):,} rows that are not the {len(expected):,} of its part; remove it and run again"
        )
    ood, failed = table.column("is_ood").to_pylist(), table.column("error")
    return Counts(len(found), sum(map(bool, ood)), len(found) - failed.null_count)
