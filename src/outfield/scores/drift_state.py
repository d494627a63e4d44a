"""What a Drift keeps between two runs, looked at before it is believed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.config import require, require_number
from outfield.scores.betting import BETS
from outfield.scores.threshold import Threshold

ARRAYS = ("counts", "histogram", "recent", "stakes")


def checked_arrays(state: dict[str, Any], gaps: int, bins: int, window: int) -> dict[str, np.ndarray]:
    """The arrays of a state, copied, after all of it was found to agree.

    Args:
        state: As :meth:`outfield.Drift.state` gives it.
        gaps: How many gaps the calibration scores leave; 0 where there are none.
        bins: Of the histogram.
        window: How many samples are recent at most.

    Raises:
        InputError: A part is not what it must be.
        KeyError: A part is missing.
    """
    seen = state["seen"]
    require_number("seen", seen, least=0, whole=True)
    require_number("ood", state["ood"], least=0, most=seen, whole=True)
    for name in ("log_wealth", "largest_log_wealth"):
        require_number(name, state[name])
    if state["alarm_at"] is not None:
        require_number("alarm_at", state["alarm_at"], least=1, most=seen, whole=True)
    arrays = {name: _array(name, state[name]) for name in ARRAYS}
    lengths = {"counts": gaps, "histogram": bins, "recent": min(seen, window), "stakes": BETS}
    for name, length in lengths.items():
        require(arrays[name].shape == (length,), name, arrays[name].shape, f"a vector of {length} numbers")
    _check_counts("histogram", arrays["histogram"], seen)
    _check_counts("counts", arrays["counts"], seen if gaps else 0)
    stakes = arrays["stakes"]
    require(stakes.dtype == np.float64 and bool((stakes < math.inf).all()), "stakes", stakes, "logarithms, float64")
    require(arrays["recent"].dtype == bool, "recent", arrays["recent"].dtype, "true or false")
    return arrays


def _array(name: str, value: Any) -> np.ndarray:
    require(isinstance(value, Tensor), name, value, "a tensor")
    array: np.ndarray = value.detach().cpu().numpy().copy()
    return array


def _check_counts(name: str, counts: np.ndarray, total: int) -> None:
    good = counts.dtype == np.int64 and bool((counts >= 0).all()) and int(counts.sum()) == total
    require(good, name, counts, f"counts of {total} samples in all, int64")


def same(one: Threshold | None, other: Threshold) -> bool:
    """Whether two thresholds are equal, with all their calibration scores."""
    if one is None or (one.value, one.keep, one.source) != (other.value, other.keep, other.source):
        return False
    return torch.equal(one.reference, other.reference)
