"""Columns of a table in the Open Inference Protocol: one input for each, named as the column is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from outfield.features.cells import NUMBER, TEXT, TRUTH
from outfield.guard.rows import RowGuard
from outfield.serve.refusals import Refused

DATATYPES = {NUMBER: "FP64", TRUTH: "BOOL", TEXT: "BYTES"}
"""Of the inputs that a guard of a table names; other numbers are taken, too."""


TYPES = ("BYTES", "FP64", "FP32", "INT64", "INT32", "UINT8", "BOOL")
"""Datatypes that a column may have."""


def values_of(data: Any, shape: tuple[int, ...], datatype: str, name: str) -> list[bytes] | np.ndarray:
    """A column that came as JSON, flat or a list of one-element lists; null is a missing number.

    Raises:
        Refused: It holds something else than its datatype says, or another number of cells than its shape says.
    """
    cells = (
        [one[0] if isinstance(one, list) and len(one) == 1 else one for one in data] if isinstance(data, list) else []
    )
    kinds = {"BYTES": (str,), "BOOL": (bool,), "FP32": (int, float, type(None)), "FP64": (int, float, type(None))}
    if len(cells) != math.prod(shape) or not all(type(one) in kinds.get(datatype, (int,)) for one in cells):
        raise Refused(
            400, f"the data of input {name!r} must be {math.prod(shape):,} cells of {datatype}, as its shape says"
        )
    if datatype == "BYTES":
        return [one.encode("utf-8", "surrogatepass") for one in cells]
    try:
        return np.array([np.nan if one is None else one for one in cells], bool if datatype == "BOOL" else np.float64)
    except OverflowError as error:
        raise Refused(400, f"input {name!r} holds a number that is too large") from error


def inputs_of(guard: RowGuard) -> dict[str, dict[str, Any]]:
    """The inputs that a guard of rows takes, by name, as the protocol describes them."""
    if guard.table is None:
        return {name: {"name": name, "datatype": "FP32", "shape": [-1, width]} for name, width in guard.widths.items()}
    return {
        column.name: {"name": column.name, "datatype": DATATYPES[column.kind], "shape": [-1]}
        for column in guard.table.columns
    }


def frame_of(inputs: Mapping[str, np.ndarray | list[bytes]]) -> dict[str, np.ndarray]:
    """The inputs of a request as the columns of a table, each [N] or [N, 1].

    Raises:
        Refused: An input has another shape, or texts that are no UTF-8.
    """
    return {name: _column(name, value) for name, value in inputs.items()}


def _column(name: str, value: np.ndarray | list[bytes]) -> np.ndarray:
    if isinstance(value, list):
        try:
            return np.array([text.decode() for text in value], dtype=object)
        except UnicodeDecodeError as error:
            raise Refused(400, f"input {name!r} holds texts that are no UTF-8") from error
    if value.ndim not in (1, 2) or value.size != len(value):
        raise Refused(400, f"input {name!r} has shape {[*value.shape]}; a column is [N] or [N, 1]")
    return value.reshape(-1)
