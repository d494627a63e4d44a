"""One part scored by a guard, and its results as a Parquet file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

from outfield.cluster.images import PartImages
from outfield.cluster.parquet import feature_rows, holds_images
from outfield.cluster.parts import Part
from outfield.cluster.places import Place
from outfield.errors import FileFormatError, OutfieldError
from outfield.features.columns import arrow, whole_parquet
from outfield.guard.guard import Guard
from outfield.guard.verdict import COLUMNS, Verdict

MARK = b"outfield"
"""Under which a file of results tells what it belongs to."""
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
        mark: of the results, see :class:`Manifest`.
    """

    def __init__(self, guard: Guard, on_error: str, mark: str) -> None:
        self.guard, self.on_error, self.mark = guard, on_error, mark

    def write(self, part: Part, out: Place) -> None:
        """Score a part and write its results into a folder; a part that is there already is left as it is.

        Raises:
            OutfieldError: rows cannot be read, or results not be written.
        """
        place = out.under(part.file)
        if not place.exists():
            place.write(as_parquet(self.verdicts(part), self.guard.members, self.mark))

    def verdicts(self, part: Part) -> list[Verdict]:
        """A verdict on each row of a part, in order, whose file is what the row is called.

        Raises:
            OutfieldError: rows cannot be read; or their Parquet file is not the one that was counted.
        """
        files = part.files()
        if part.names:
            return self._of_images(part, files)
        place = part.place()
        found = self._of_images(part, files) if holds_images(place) else self._of_features(part, files)
        if place.stamp() != part.stamp:
            raise FileFormatError(f"{place.shown} was changed while it was scored; score it anew, into another folder")
        return found

    def _of_images(self, part: Part, files: Sequence[str]) -> list[Verdict]:
        return [*self.guard.stream(PartImages(part, files), on_error=self.on_error, workers=0)]

    def _of_features(self, part: Part, files: Sequence[str]) -> list[Verdict]:
        rows = feature_rows(part.place(), part.start, part.stop, ("features", *self.guard.widths))
        try:
            return [*self.guard.judge(rows, files)]
        except OutfieldError as error:
            raise type(error)(f"{part.prefix}, rows {part.start:,} to {part.stop:,}: {error}") from error


def as_parquet(verdicts: Sequence[Verdict], members: Sequence[str], mark: str) -> bytes:
    """Verdicts as a Parquet file that bears a mark, with the same columns whatever the verdicts are."""
    pyarrow, columns = arrow(), {}
    for name in COLUMNS:
        cells = [getattr(one, name) for one in verdicts]
        kinds = {"class_index": pyarrow.int64(), "is_ood": pyarrow.bool_()}
        kind = pyarrow.string() if name in TEXTS else kinds.get(name, pyarrow.float64())
        columns[name] = pyarrow.array(cells, kind)
    for member in members:
        columns[f"p_value {member}"] = pyarrow.array([one.members.get(member) for one in verdicts], pyarrow.float64())
    file = io.BytesIO()
    table = pyarrow.table(columns).replace_schema_metadata({MARK: mark.encode()})
    pyarrow.parquet.write_table(table, file, write_page_checksum=True)
    return file.getvalue()


def checked(part: Part, out: Place, mark: str) -> Counts | FileFormatError:
    """Read the results of a part back: every row of it must be there, once and in its place, by what it is called.

    Results that bear no mark are of an earlier version, and will do.

    Returns:
        how many there are; or what is wrong: a row is missing, stands twice or is another one, or the mark is another one.
    """
    place, expected = out.under(part.file), part.files()
    with place.opened() as file:
        try:
            table = whole_parquet(file, ["file", "is_ood", "error"])
        except Exception as error:  # a damaged file leads to errors of many kinds
            return FileFormatError(f"{place.shown} cannot be read as Parquet: {error!s:.300}")
    found = table.column("file").to_pylist()
    if (table.schema.metadata or {}).get(MARK, mark.encode()) != mark.encode():
        return FileFormatError(f"{place.shown} holds results of another guard, source or setting")
    if found != expected:
        return FileFormatError(f"{place.shown} has {len(found):,} rows that are not the {len(expected):,} of its part")
    ood, failed = table.column("is_ood").to_pylist(), table.column("error")
    return Counts(len(found), sum(map(bool, ood)), len(found) - failed.null_count)
