"""Tensors that a file would hold several times, such as the bank of training rows of several detectors, are written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from outfield.errors import FileFormatError
from outfield.files.paths import PathLike

ENTRY = "same"
"""In a header, by the name of a tensor that is not in the file the name of the one that it equals."""
SMALLEST = 2**16
"""Bytes from which on it is worth looking for another such tensor."""


def without_repeats(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors without those that equal an earlier one to the bit, and by the name of each of these that one's name.

    >>> bank = torch.zeros(20_000)
    >>> kept, same = without_repeats({"first": bank, "other": bank.clone(), "small": torch.zeros(2)})
    >>> list(kept), same
    (['first', 'small'], {'other': 'first'})
    """
    kept: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    for name, tensor in tensors.items():
        found = next((earlier for earlier, other in kept.items() if _equal(tensor, other)), None)
        if found is None:
            kept[name] = tensor
        else:
            same[name] = found
    return kept, same


def with_repeats(path: PathLike, tensors: Mapping[str, Tensor], same: Any) -> dict[str, Tensor]:
    """All tensors again; equal ones are one tensor in memory.

    Raises:
        FileFormatError: a name that stands for no tensor, or for one that is there.
    """
    right = isinstance(same, dict) and all(isinstance(other, str) and other in tensors for other in same.values())
    if not right or any(name in tensors for name in same):
        raise FileFormatError(f"{path} has a broken Outfield header ({ENTRY} is {same!r:.100})")
    return {**tensors, **{name: tensors[other] for name, other in same.items()}}


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.nbytes < SMALLEST or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
