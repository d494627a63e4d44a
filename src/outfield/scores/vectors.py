"""The door for vectors of scores (higher = more OOD): thresholds and metrics take them through here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import InputError


def as_scores(name: str, scores: Any, dtype: type[np.floating[Any]] = np.float64) -> np.ndarray:
    """A vector of scores (N,) as ``dtype``, or an :class:`InputError` that says what is wrong with it."""
    if isinstance(scores, Tensor):
        scores = scores.detach().cpu()
        scores = (scores if _is_single(scores) else scores.double()).numpy()
    try:
        array = np.asarray(scores, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a vector of numbers ({error})") from error
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name} must be a vector with at least one score; got shape {array.shape}")
    if np.isnan(array).any():
        raise InputError(f"{name} has NaN at position {int(np.isnan(array).argmax())}; scores must be numbers")
    return array


def as_score_pair(scores_id: Any, scores_ood: Any) -> tuple[np.ndarray, np.ndarray]:
    """ID scores (N,) and OOD scores (M,) in one dtype, in which they compare as exactly as they came.

    That is float32 where both are (half the bytes to sort), and float64 otherwise.
    """
    dtype = np.float32 if _is_single(scores_id) and _is_single(scores_ood) else np.float64
    return as_scores("scores_id", scores_id, dtype), as_scores("scores_ood", scores_ood, dtype)


def _is_single(scores: Any) -> bool:
    return isinstance(scores, Tensor | np.ndarray) and scores.dtype in (torch.float32, np.float32)


def rank(share: float, n: int) -> int:
    """⌈share · n⌉, guarded against 0.95 · 20 = 19.000000000000004."""
    return math.ceil(share * n - 1e-9)
