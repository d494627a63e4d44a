"""The one door for arrays: what numpy, torch and Python call numbers becomes a tensor, or an error that names the argument.

Whatever an object does on its way to an array, the caller sees a tensor with exactly its numbers or an
:class:`outfield.InputError`; nothing is rounded, unmasked or cut to its real part on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import InputError

ROWS_AT_ONCE = 65_536
"""Rows looked at together when a large array is checked."""
EXACT = {torch.float32: 2**24, torch.float64: 2**53}
"""Up to this size every integer is a number of the type."""
TYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.complex64, torch.complex128),
}
"""Types of entries that pass; who takes real or whole numbers only says so with :func:`check_dtype`."""


def as_tensor(name: str, value: Any) -> Tensor:
    """Numbers of any kind as a dense tensor on the CPU, sharing memory where that can be helped."""
    if not isinstance(value, Tensor):
        return _numbers(name, value)
    try:
        return _plain(name, value)
    except InputError:
        raise
    except Exception as error:  # tensors of others may raise anything
        raise _no_array(name, value, error) from error


def _no_array(name: str, value: Any, error: Exception) -> InputError:
    reason = str(error).partition("\n")[0][:200]
    return InputError(f"{name} must be an array of numbers; got {type(value).__name__} ({reason})")


def _plain(name: str, tensor: Tensor) -> Tensor:
    """A tensor without layers, layouts and devices of its own."""
    own = (
        type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    )  # such as a masked tensor's, which hides entries
    if own or tensor.is_nested or tensor.layout != torch.strided:
        raise InputError(f"{name} is a nested, masked or sparse tensor; pass a plain one, such as {name}.to_dense()")
    if tensor.dtype not in TYPES:
        raise InputError(f"{name} holds {tensor.dtype}; pass {name}.to(torch.float32)")
    return Tensor.as_subclass(tensor, Tensor).detach().cpu().resolve_neg()


def _numbers(name: str, value: Any) -> Tensor:
    """What numpy makes of a value, in the same memory; a copy where torch could not read it as it lies."""
    if any(np.ma.is_masked(part) for part in _masked_parts(value)):
        raise InputError(f"{name} has masked entries; every entry must hold a number")
    try:
        array = np.asarray(value)
    except Exception as error:  # objects of others may raise anything when they are asked for an array
        raise _no_array(name, value, error) from error
    if array.dtype.kind not in "fiubc":
        raise _no_numbers(name, value, array)
    size = array.dtype.itemsize
    if not array.dtype.isnative or not array.flags.aligned or any(step < 0 or step % size for step in array.strides):
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    elif not array.flags.writeable:
        # Torch warns of arrays that must not be written, and a warning can be silenced for the whole process only.
        array = np.asarray(_Writable(array))
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:  # long doubles, and what else torch has not
        raise _no_array(name, value, error) from error


def _no_numbers(name: str, value: Any, array: np.ndarray) -> InputError:
    if array.ndim == 0 and hasattr(value, "toarray"):  # of scipy, which numpy takes for one object
        return InputError(f"{name} is a sparse {type(value).__name__}; pass {name}.toarray()")
    texts = array.dtype.kind in "UT" or (array.dtype.kind == "O" and all(isinstance(one, str) for one in array.flat))
    what = "texts" if texts else "Python objects" if array.dtype.kind == "O" else str(array.dtype)
    advice = f"; np.unique({name}, return_inverse=True)[1] counts classes" if texts and name == "labels" else ""
    return InputError(f"{name} must be an array of numbers; got {type(value).__name__} that holds {what}{advice}")


class _Writable:
    """An array's memory, said to be writable. Nothing here writes to it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _masked_parts(value: Any, depth: int = 3) -> Iterator[Any]:
    """The masked arrays in ``value``, or in lists of it, whose masks numpy would leave behind."""
    if isinstance(value, np.ma.MaskedArray):
        yield value
    elif isinstance(value, list | tuple) and depth:
        for part in value:
            yield from _masked_parts(part, depth - 1)


def check_dtype(name: str, dtype: torch.dtype, whole: bool) -> None:
    """Refuse a type of other numbers: complex, bool, and where whole numbers are asked for, floating."""
    if whole and (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        raise InputError(f"{name} must be integers from 0; got {dtype}")
    if dtype.is_complex or dtype == torch.bool:
        raise InputError(f"{name} must hold real numbers; got {dtype}")


def finite_floats(name: str, tensor: Tensor, first_row: int | None = None) -> Tensor:
    """Real numbers (N, …) as a floating tensor without NaN and infinity."""
    if not tensor.is_floating_point():
        return _floating(name, tensor, first_row)
    for start in range(0, len(tensor) if tensor.numel() else 0, ROWS_AT_ONCE):
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


def _floating(name: str, integers: Tensor, first_row: int | None) -> Tensor:
    """Integers as float32, or float64 where that takes it; a piece must be float32, since other pieces are."""
    array = integers.numpy()  # which can order unsigned numbers, too
    if not array.size:
        return integers.to(torch.float32)
    extremes = [int(array.argmin()), int(array.argmax())]
    place = max(extremes, key=lambda index: abs(int(array.flat[index])))
    largest = abs(int(array.flat[place]))
    kind = torch.float32 if first_row is not None or largest <= EXACT[torch.float32] else torch.float64
    if largest > EXACT[kind]:
        row, *rest = (int(number) for number in np.unravel_index(place, array.shape))
        shown = ", ".join(str(number) for number in ((first_row or 0) + row, *rest))
        advice = "pass" if first_row is None else "load it whole, or save"
        raise InputError(
            f"{name}[{shown}] is {array.flat[place]}, an integer that {kind} cannot tell from its neighbours; {advice} floats"
        )
    return integers.to(kind)


def whole_numbers(name: str, tensor: Tensor, first_row: int = 0, classes: int | None = None) -> Tensor:
    """Whole numbers (N,) that count classes from 0, as int64."""
    array = tensor.numpy()  # which can order unsigned numbers, too
    if not len(array):
        return tensor.to(torch.int64)
    lowest, highest = int(array.argmin()), int(array.argmax())
    low, high = int(array[lowest]), int(array[highest])
    if low < 0:
        raise InputError(
            f"{name} go down to {low}, out of range; classes are counted from 0 (row {first_row + lowest})"
        )
    if classes is not None and high >= classes:
        raise InputError(
            f"{name} go up to {high}, out of range for logits of {classes} classes (0 to {classes - 1}) "
            f"(row {first_row + highest})"
        )
    if high > torch.iinfo(torch.int64).max:
        raise InputError(f"{name} go up to {high}, out of range for int64 (row {first_row + highest})")
    return tensor.to(torch.int64)


def class_labels(value: Any) -> Tensor:
    """Labels (N,) as int64 from 0, such as those of images."""
    tensor = as_tensor("labels", value)
    check_dtype("labels", tensor.dtype, whole=True)
    if tensor.dim() != 1:
        raise InputError(f"labels must have one dimension; got shape {tuple(tensor.shape)}")
    return whole_numbers("labels", tensor)
