"""What a file says was learned, taken with care: each tensor there, of the right shape and type, and finite."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outfield.errors import FileFormatError


def take(
    state: Mapping[str, Tensor], name: str, shape: tuple[int | None, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """The tensor ``name`` of a file, in ``dtype``.

    Args:
        state: the file's tensors.
        name: which.
        shape: what its shape must be; None stands for any number from 1 on.
        dtype: what it was written as. A floating one may have been saved in half as many bits.

    Raises:
        FileFormatError: it is missing, or something else.
    """
    if name not in state:
        raise FileFormatError(f"{name} is missing")
    value = state[name]
    kind = value.dtype.is_floating_point if dtype.is_floating_point else value.dtype == dtype
    right = value.ndim == len(shape) and all(
        found == wanted if wanted is not None else found >= 1 for found, wanted in zip(value.shape, shape, strict=True)
    )
    if not (kind and right):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise FileFormatError(
            f"{name} is {value.dtype} of shape {tuple(value.shape)}; it must be {dtype} of ({wanted})"
        )
    if not bool(torch.isfinite(value).all()):
        raise FileFormatError(f"{name} has entries that are not finite")
    return value.to(dtype)
