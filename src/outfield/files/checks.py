"""What an array of features must be: the checks of :class:`outfield.FeatureSet`, and of every piece of a stream."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import InputError

FIELDS = ("features", "labels", "logits", "spread", "odin_logits")
"""What a set may hold, in the order in which it is shown."""
ROWS_AT_ONCE = 65_536
"""Rows looked at together when a large array is checked."""
Shapes = Mapping[str, tuple[int, ...]]


def as_tensor(name: str, value: Any) -> Tensor:
    """Numbers of any kind as a tensor on the CPU, sharing memory where that can be helped."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise InputError(f"{name} is a sparse tensor; pass {name}.to_dense()")
        return value.detach().cpu()
    if np.ma.is_masked(value):
        raise InputError(f"{name} has masked entries; every entry must hold a number")
    try:
        array = np.asarray(value)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            if array.dtype.byteorder == ">" or any(stride < 0 for stride in array.strides):
                array = array.astype(array.dtype.newbyteorder("="))
            return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers; got {type(value).__name__} ({error})") from error


def matrix(name: str, value: Any, first_row: int | None = None) -> Tensor:
    """A checked floating matrix (N, width): features, logits or spread.

    Args:
        name: of the field, for messages.
        value: array or tensor.
        first_row: where this piece begins, if it is a piece of a larger array.
    """
    tensor = as_tensor(name, value)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"{name} must hold real numbers; got {tensor.dtype}")
    check_shape(name, tuple(tensor.shape))
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.float32)
    for start in range(0, len(tensor), ROWS_AT_ONCE):
        low, high = torch.aminmax(tensor[start : start + ROWS_AT_ONCE])  # NaN if any entry is
        if not bool(low.isfinite() & high.isfinite()):
            _refuse_values(name, tensor, start, first_row)
    return tensor


def _refuse_values(name: str, tensor: Tensor, start: int, first_row: int | None) -> None:
    row, column = (~torch.isfinite(tensor[start : start + ROWS_AT_ONCE])).nonzero()[0].tolist()
    value = float(tensor[start + row, column])
    count = int((~torch.isfinite(tensor)).any(1).sum())
    known = f" (rows with such values: {count})" if first_row is None else ""
    raise InputError(f"{name}[{(first_row or 0) + start + row}, {column}] is {value}; all values must be finite{known}")


def labels(value: Any, first_row: int = 0, classes: int | None = None) -> Tensor:
    """Checked labels (N,), int64.

    Args:
        value: array or tensor.
        first_row: where this piece begins, if it is a piece of a larger array.
        classes: width of the logits, which labels must not exceed.
    """
    tensor = as_tensor("labels", value)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"labels must be integers from 0; got {tensor.dtype}")
    check_shape("labels", tuple(tensor.shape))
    tensor = tensor.to(torch.int64)
    if not len(tensor):
        return tensor
    low, high = (int(bound) for bound in torch.aminmax(tensor))
    if low < 0:
        row = first_row + int(tensor.argmin())
        raise InputError(f"labels go down to {low}, out of range; classes are counted from 0 (row {row})")
    if classes is not None and high >= classes:
        row = first_row + int(tensor.argmax())
        raise InputError(
            f"labels go up to {high}, out of range for logits of {classes} classes (0 to {classes - 1}) (row {row})"
        )
    return tensor


def check_shape(name: str, shape: tuple[int, ...]) -> None:
    """Refuse a wrong rank, and a matrix without rows or columns."""
    if name == "labels":
        if len(shape) != 1:
            raise InputError(f"labels must have one dimension; got shape {shape}")
        return
    if len(shape) != 2:
        raise InputError(f"{name} must have two dimensions (samples, width); got shape {shape}")
    if 0 in shape:
        raise InputError(f"{name} is empty: shape {shape}; at least one row and one column are needed")


def check_agreement(shapes: Shapes) -> None:
    """Refuse fields whose lengths differ, and two kinds of logits of different classifiers."""
    rows = shapes["features"][0]
    for name, shape in shapes.items():
        if shape[0] != rows:
            raise InputError(f"{name} has {shape[0]} rows but features has {rows}; they must match")
    logits, odin_logits = shapes.get("logits"), shapes.get("odin_logits")
    if logits is not None and odin_logits is not None and logits != odin_logits:
        raise InputError(
            f"odin_logits has shape {odin_logits} but logits {logits}; both come from the same classifier and must match"
        )
