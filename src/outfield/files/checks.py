"""The one door for arrays: what numpy, torch and Python call numbers becomes a tensor, or an error that names the argument."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import InputError

ROWS_AT_ONCE = 65_536
"""Rows looked at together when a large array is checked."""


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


def check_type(name: str, dtype: torch.dtype, whole: bool) -> None:
    """Refuse a type of other numbers: complex, bool, and where whole numbers are asked for, floating.

    Args:
        name: What to call the array in the message.
        dtype: The type of its entries.
        whole: Whether they must be whole numbers from 0.
    """
    if whole and (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        raise InputError(f"{name} must be integers from 0; got {dtype}")
    if dtype.is_complex or dtype == torch.bool:
        raise InputError(f"{name} must hold real numbers; got {dtype}")


def finite(name: str, tensor: Tensor, first_row: int | None = None) -> Tensor:
    """Real numbers (N, …) as a floating tensor without NaN and infinity.

    Args:
        name: What to call the array in the message.
        tensor: Real numbers of any type.
        first_row: Where this piece begins, if it is a piece of a larger array.
    """
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.float32)
    for start in range(0, len(tensor), ROWS_AT_ONCE):
        low, high = torch.aminmax(tensor[start : start + ROWS_AT_ONCE])  # NaN if any entry is
        if not bool(low.isfinite() & high.isfinite()):
            _refuse_values(name, tensor, start, first_row)
    return tensor


def _refuse_values(name: str, tensor: Tensor, start: int, first_row: int | None) -> None:
    row, *rest = (~torch.isfinite(tensor[start : start + ROWS_AT_ONCE])).nonzero()[0].tolist()
    value = float(tensor[(start + row, *rest)])
    count = int((~torch.isfinite(tensor)).reshape(len(tensor), -1).any(1).sum())
    known = f" (rows with such values: {count})" if first_row is None else ""
    place = ", ".join(str(number) for number in ((first_row or 0) + start + row, *rest))
    raise InputError(f"{name}[{place}] is {value}; all values must be finite{known}")


def counted(name: str, tensor: Tensor, first_row: int = 0, classes: int | None = None) -> Tensor:
    """Whole numbers (N,) that count classes from 0, as int64.

    Args:
        name: What to call the array in the message.
        tensor: Whole numbers of any type.
        first_row: Where this piece begins, if it is a piece of a larger array.
        classes: How many there are, where that is known.
    """
    tensor = tensor.to(torch.int64)
    if not len(tensor):
        return tensor
    low, high = (int(bound) for bound in torch.aminmax(tensor))
    if low < 0:
        row = first_row + int(tensor.argmin())
        raise InputError(f"{name} go down to {low}, out of range; classes are counted from 0 (row {row})")
    if classes is not None and high >= classes:
        row = first_row + int(tensor.argmax())
        raise InputError(
            f"{name} go up to {high}, out of range for logits of {classes} classes (0 to {classes - 1}) (row {row})"
        )
    return tensor


def labels(value: Any) -> Tensor:
    """Labels (N,) as int64 from 0, such as those of images.

    Raises:
        InputError: They are not whole numbers from 0 in one dimension.
    """
    tensor = as_tensor("labels", value)
    check_type("labels", tensor.dtype, whole=True)
    if tensor.dim() != 1:
        raise InputError(f"labels must have one dimension; got shape {tuple(tensor.shape)}")
    return counted("labels", tensor)
