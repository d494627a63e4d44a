"""Arrays from users: what numpy, torch and Python call numbers becomes a tensor, or an error that names the argument.

A caller gets a tensor with exactly these numbers or an :class:`outfield.InputError`; nothing is rounded, unmasked or cut to its
real part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import InputError

EXACT = {torch.float32: 2**24, torch.float64: 2**53}  # up to this size every integer is a number of the type
# Types of entries that pass; :func:`check_dtype` refuses those that are not real, or not whole
TYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.bool, torch.complex64, torch.complex128),
}


def as_tensor(name: str, value: Any) -> Tensor:
    """Numbers of any kind as a dense tensor on the CPU, in the same memory where that is possible."""
    try:
        return _plain(name, value) if isinstance(value, Tensor) else _numbers(name, value)
    except InputError:
        raise
    except Exception as error:  # arrays and tensors of others may raise anything, and torch has no long doubles
        reason = str(error).partition("\n")[0][:200]
        raise InputError(f"{name} must be an array of numbers; got {type(value).__name__} ({reason})") from error


def _plain(name: str, tensor: Tensor) -> Tensor:
    """A tensor without layers, layouts and devices of its own."""
    masked = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    if masked or tensor.is_nested or tensor.layout != torch.strided:
        raise InputError(f"{name} is a nested, masked or sparse tensor; pass a plain one, such as {name}.to_dense()")
    if tensor.dtype not in TYPES:
        raise InputError(f"{name} holds {tensor.dtype}; pass {name}.to(torch.float32)")
    return Tensor.as_subclass(tensor, Tensor).detach().cpu().resolve_neg()


def _numbers(name: str, value: Any) -> Tensor:
    """What numpy makes of a value; a copy where torch could not read it as it lies."""
    rows = value if isinstance(value, list | tuple) else ()  # whose masks numpy would leave behind
    if np.ma.is_masked(value) or any(np.ma.is_masked(row) for row in rows):
        raise InputError(f"{name} has masked entries; every entry must hold a number")
    try:
        array = np.asarray(value)
    except InputError as error:  # of a FeatureSet, which is no array
        raise TypeError(error) from error
    if array.dtype.kind not in "fiubc":
        raise _no_numbers(name, value, array)
    size = array.dtype.itemsize
    if not array.dtype.isnative or not array.flags.aligned or any(step < 0 or step % size for step in array.strides):
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    elif not array.flags.writeable:
        # Torch warns of arrays that must not be written, and a warning can be silenced for the whole process only.
        array = np.asarray(_Writable(array))
    return torch.from_numpy(array)


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


def check_dtype(name: str, dtype: torch.dtype, whole: bool) -> None:
    """Refuse complex numbers and bools, and floating numbers too where they must be ``whole``."""
    if whole and (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        raise InputError(f"{name} must be integers from 0; got {dtype}")
    if dtype.is_complex or dtype == torch.bool:
        raise InputError(f"{name} must hold real numbers; got {dtype}")


def finite_floats(name: str, tensor: Tensor, first_row: int | None = None) -> Tensor:
    """Real numbers (N, …) as a floating tensor without NaN and infinity."""
    if not tensor.is_floating_point():
        return _floating(name, tensor, first_row)
    if tensor.numel() and not bool(torch.stack(torch.aminmax(tensor)).isfinite().all()):  # both NaN if any entry is
        wrong = ~tensor.isfinite()
        place = wrong.nonzero()[0].tolist()
        count = int(wrong.reshape(len(tensor), -1).any(1).sum())
        known = f" (rows with such values: {count})" if first_row is None else ""
        value = float(tensor[tuple(place)])
        raise InputError(f"{_entry(name, place, first_row)} is {value}; all values must be finite{known}")
    return tensor


def _entry(name: str, place: list[int], first_row: int | None) -> str:
    return f"{name}{[(first_row or 0) + place[0], *place[1:]]}"


def _floating(name: str, integers: Tensor, first_row: int | None) -> Tensor:
    """Integers as float32, or float64 where that takes it; a piece must be float32, since other pieces are."""
    array = integers.numpy()  # which can order unsigned numbers, too
    if not array.size:
        return integers.to(torch.float32)
    place = max(int(array.argmin()), int(array.argmax()), key=lambda index: abs(int(array.flat[index])))
    largest = abs(int(array.flat[place]))
    kind = torch.float32 if first_row is not None or largest <= EXACT[torch.float32] else torch.float64
    if largest > EXACT[kind]:
        entry = _entry(name, [int(number) for number in np.unravel_index(place, array.shape)], first_row)
        advice = "pass" if first_row is None else "load it whole, or save"
        raise InputError(f"{entry} is {array.flat[place]}, an integer that {kind} cannot hold exactly; {advice} floats")
    return integers.to(kind)


def whole_numbers(name: str, tensor: Tensor, first_row: int = 0, classes: int | None = None) -> Tensor:
    """Whole numbers (N,) that count classes from 0, as int64."""
    array = tensor.numpy()  # which can order unsigned numbers, too
    limit = 2**63 if classes is None else classes
    for place in (int(array.argmin()), int(array.argmax())) if len(array) else ():
        number = int(array[place])
        if not 0 <= number < limit:
            right = "for int64" if classes is None else f"for logits of {classes} classes (0 to {classes - 1})"
            way = f"down to {number}, out of range; classes are counted from 0"
            way = way if number < 0 else f"up to {number}, out of range {right}"
            raise InputError(f"{name} go {way} (row {first_row + place})")
    return tensor.to(torch.int64)


def class_labels(value: Any) -> Tensor:
    """Labels (N,) as int64 from 0, such as those of images."""
    tensor = as_tensor("labels", value)
    check_dtype("labels", tensor.dtype, whole=True)
    if tensor.dim() != 1:
        raise InputError(f"labels must have one dimension; got shape {tuple(tensor.shape)}")
    return whole_numbers("labels", tensor)
