"""Rows of a table one by one: the cells of those that can be used, and why each of the others cannot."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outfield.errors import InputError
from outfield.features.cells import TEXT, TRUTH, Cells, array_of, is_missing, is_number
from outfield.features.table_columns import Column

DIGITS = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
"""A number in a cell of a CSV."""
TRUTHS = {"1": 1.0, "true": 1.0, "TRUE": 1.0, "True": 1.0, "0": 0.0, "false": 0.0, "FALSE": 0.0, "False": 0.0}
"""What says true or false in a cell of a CSV."""


def sort_out(
    columns: Sequence[Column], found: Mapping[str, Any], *, missing: bool, texts: bool
) -> tuple[dict[str, Cells], dict[int, str]]:
    """The cells of usable rows by column, and for each other row, by its number, the first reason why it is not one.

    Args:
        columns: What training rows had.
        found: The columns of a table, among them all of these.
        missing: Whether cells may be missing.
        texts: Whether all cells are texts, as in a CSV, and numbers are to be read from them.
    """
    rows: dict[str, list[Any]] = {}
    errors: dict[int, str] = {}
    for column in columns:
        rows[column.name] = []
        for number, value in enumerate(array_of(found[column.name])):
            try:
                cell = _cell(column, value, missing, texts)
            except InputError as error:
                cell = None
                errors.setdefault(number, str(error))
            rows[column.name].append(cell)
    usable = [number for number in range(len(rows[columns[0].name])) if number not in errors]
    cells = {
        column.name: Cells(
            column.kind,
            np.array([rows[column.name][number] for number in usable], object if column.kind == TEXT else np.float64),
        )
        for column in columns
    }
    return cells, errors


def _cell(column: Column, value: Any, missing: bool, texts: bool) -> Any:
    """A cell as a text or number; None where it is missing and may be.

    Raises:
        InputError: It is not what its column holds.
    """
    if is_missing(value):
        if not missing:
            raise InputError(f"its cell in column {column.name!r} is missing")
        return None
    if column.kind == TEXT:
        if not isinstance(value, str):
            raise InputError(f"column {column.name!r} holds {value!r:.40} here, which is no text")
        return value
    if texts and isinstance(value, str):
        value = _read(column.kind, value)
    if not (is_number(value) or isinstance(value, bool | np.bool_)):
        kind = "is neither true nor false" if column.kind == TRUTH else "is no number"
        raise InputError(f"column {column.name!r} holds {value!r:.40} here, which {kind}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise InputError(f"column {column.name!r} holds a number here that is infinite, or above 1.8e308")
    return number


def _read(kind: str, text: str) -> Any:
    """What the text of a cell says: a number, or for truths 0 or 1; the text itself where it says something else."""
    if kind == TRUTH:
        return TRUTHS.get(text, text)
    return float(text) if DIGITS.fullmatch(text) else text
