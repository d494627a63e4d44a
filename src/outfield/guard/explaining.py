"""From a table and the verdicts on its rows to why they are OOD, also where some of its rows cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from outfield.errors import InputError
from outfield.features.cells import Cells
from outfield.features.set import FeatureSet, FeatureSource
from outfield.features.table import TablePreprocessing
from outfield.guard.replacing import Replacing
from outfield.guard.verdict import Verdicts
from outfield.guard.why import SHOWN, ExplainedVerdict, RowWhy


class TableRows(NamedTuple):
    """The rows of a table that can be used, and why each of the others cannot.

    Attributes:
        features: Of those that can; None where there is none.
        cells: They were made of.
        errors: Of the others, by their numbers in the table.
    """

    features: FeatureSet | None
    cells: Mapping[str, Cells]
    errors: Mapping[int, str]


def read_rows(table: TablePreprocessing, frame: Any, *, skip: bool) -> TableRows:
    """The rows of a table with their cells.

    Raises:
        InputError: It cannot be used, or a row of it cannot and ``skip`` is False.
    """
    if isinstance(frame, FeatureSource):
        raise InputError(
            "columns are told of the table itself, not of its features, which do not say what its cells held; pass the table"
        )
    cells, errors = table.usable_cells(frame) if skip else (table.cells(frame), {})
    return TableRows(table.features_of(cells), cells, errors)


def row_numbers(rows: Any, total: int) -> list[int]:
    """The rows that are asked for, as numbers from 0 on: of a number, of several, or of a truth for each row.

    Raises:
        InputError: They are something else, or there are no such rows.
    """
    try:
        asked = np.atleast_1d(np.asarray(rows))
    except ValueError:  # lists of different lengths
        asked = np.empty((0, 0))
    if asked.ndim == 1 and asked.dtype == bool and len(asked) == total:
        return [int(number) for number in np.flatnonzero(asked)]
    if asked.ndim == 1 and not len(asked):
        return []
    if asked.ndim != 1 or asked.dtype.kind not in "iu" or asked.min() < 0 or asked.max() >= total:
        raise InputError(
            f"rows is {rows!r:.200}; it must be numbers of rows from 0 to {total - 1}, a truth for each of the {total} rows, or "
            "None for those that are OOD"
        )
    return [int(number) for number in asked]


def explained(
    replacing: Replacing, rows: TableRows, verdicts: Verdicts, asked: Sequence[int], most: int | None
) -> Iterator[RowWhy]:
    """Why each of the rows that are asked for, by their numbers in the table, is OOD.

    Args:
        replacing: Scores rows that are changed.
        rows: Of the table.
        verdicts: On all of its rows, whether they could be used or not.
        asked: Numbers of rows.
        most: Columns to tell of each, at most; all if None.
    """
    usable = np.array([one.error is None for one in verdicts])
    places = np.cumsum(usable) - 1  # of a row of the table among those that can be used
    found: Iterator[RowWhy] = iter(())
    if rows.features is not None:
        wanted = [int(places[number]) for number in asked if usable[number]]
        found = replacing(rows.features, rows.cells, verdicts.scores[usable], wanted)
    for number in asked:
        error = verdicts[number].error
        if error is not None:
            yield RowWhy.failed(number, error)
            continue
        one = next(found)
        yield replace(one, row=number, columns=one.columns[:most])


def with_reasons(replacing: Replacing, rows: TableRows, verdicts: Verdicts) -> list[ExplainedVerdict]:
    """The same verdicts, those on OOD rows with the columns that count most."""
    asked = [int(number) for number in np.flatnonzero(verdicts.is_ood)]
    found = dict(zip(asked, explained(replacing, rows, verdicts, asked, SHOWN), strict=True))
    return [ExplainedVerdict(**vars(one), why=found.get(number)) for number, one in enumerate(verdicts)]
