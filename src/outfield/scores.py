"""The door for vectors of scores (higher = more OOD): thresholds and metrics take them through here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from outfield.errors import InputError


def as_scores(name: str, scores: Any) -> np.ndarray:
    """A vector of scores as float64, or an :class:`InputError` that says what is wrong with it."""
    if isinstance(scores, Tensor):
        scores = scores.detach().cpu().double().numpy()
    try:
        array = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a vector of numbers ({error})") from error
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name} must be a vector with at least one score; got shape {array.shape}")
    if np.isnan(array).any():
        raise InputError(f"{name} has NaN at position {int(np.isnan(array).argmax())}; scores must be numbers")
    return array


def rank(share: float, n: int) -> int:
    """⌈share · n⌉, guarded against 0.95 · 20 = 19.000000000000004."""
    return math.ceil(share * n - 1e-9)
