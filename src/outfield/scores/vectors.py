"""The door for vectors of scores (higher = more OOD): thresholds and metrics take them through here."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import InputError
from outfield.files import as_tensor

EXACT = 2**53  # integers up to this size are floats, exactly


def as_scores(name: str, scores: Any, dtype: type[np.floating[Any]] = np.float64) -> np.ndarray:
    """A vector of scores (N,) as ``dtype``, or an :class:`InputError` that says what is wrong with it.

    Infinite scores are allowed, NaN is not; integers that a float64 cannot hold are refused rather than rounded.
    """
    tensor = as_tensor(name, scores)
    if tensor.is_complex():
        raise InputError(f"{name} holds complex numbers ({tensor.dtype}); scores are real")
    if tensor.ndim != 1 or not len(tensor):
        raise InputError(f"{name} must be a vector with at least one score; got shape {tuple(tensor.shape)}")
    if not tensor.is_floating_point() and tensor.dtype != torch.bool:
        integers = tensor.numpy()
        large = (integers > EXACT) | (integers < -EXACT)
        if large.any():
            at = int(large.argmax())
            what = f"{name} has {integers[at]} at position {at}; integers beyond 2^53 cannot be told apart as scores"
            raise InputError(f"{what}, so pass smaller ones or floats")
    array = (tensor if tensor.dtype == torch.float32 else tensor.double()).numpy().astype(dtype, copy=False)
    if np.isnan(array).any():
        raise InputError(f"{name} has NaN at position {int(np.isnan(array).argmax())}; scores must be numbers")
    return array


def as_score_pair(scores_id: Any, scores_ood: Any) -> tuple[np.ndarray, np.ndarray]:
    """ID scores (N,) and OOD scores (M,) in one dtype, float32 where both are, in which they compare as they came."""
    dtype = np.float32 if _is_single(scores_id) and _is_single(scores_ood) else np.float64
    return as_scores("scores_id", scores_id, dtype), as_scores("scores_ood", scores_ood, dtype)


def _is_single(scores: Any) -> bool:
    return isinstance(scores, Tensor | np.ndarray) and scores.dtype in (torch.float32, np.float32)


def rank(share: float, n: int) -> int:
    """⌈share · n⌉ of the share as it is written: 0.07 is 7 / 100, though as a float 0.07 · 100 is 7.000000000000001.

    >>> rank(0.07, 100), rank(0.95, 20), rank(1e-12, 20)
    (7, 19, 1)
    """
    return math.ceil(Fraction(f"{float(share):.15g}") * n)


def marked(scores: Tensor, source: str) -> Tensor:
    """The same scores, which now know what gave them; what is computed from them does not."""
    scores.outfield_source = source  # type: ignore[attr-defined]
    return scores


def source_of(scores: Any) -> str | None:
    """What gave the scores, ``detector.fingerprint()``; None where they do not know."""
    return getattr(scores, "outfield_source", None)
