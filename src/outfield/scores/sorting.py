"""Sorting a large vector of scores fast, wherever NumPy's own sort is slow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

BLOCK = 8192
"""Scores handled at a time, so that they stay in the cache."""
LARGE = 100_000
"""Scores from which threads and bins gain more time than they cost."""
PER_BIN = 512
"""Scores that a bin of a large vector holds on average."""
MAX_BINS = 1 << 16
"""Bins that 16 bits can number, for which NumPy has a radix sort."""
SAMPLE = 100
"""Scores whose range the bins divide."""


def sort(scores: np.ndarray) -> np.ndarray:
    """``np.sort(scores)`` of floats (N,) without NaN; many are first dealt into bins small enough to sort fast anywhere.

    How fast ``np.sort`` is differs several times between processors and between versions of NumPy; this differs less.
    """
    count = min(len(scores) // PER_BIN, MAX_BINS)
    bin_of = _bins(scores, count) if len(scores) >= LARGE else None
    if bin_of is None:
        return np.sort(scores)
    dealt = scores[np.argsort(bin_of, kind="stable")]  # a radix sort, since bins have 16 bits
    ends = np.cumsum(np.bincount(bin_of, minlength=count))
    for start, stop in pairwise([0, *ends.tolist()]):
        dealt[start:stop].sort()
    return dealt


def _bins(scores: np.ndarray, count: int) -> np.ndarray | None:
    """⌊(s − low) · scale⌋ for each score (N,), held within [0, count); None where that cannot tell them apart.

    Bins of equal width cover the range of a small sample, so that outliers do not crowd the rest into a few bins.
    Rounding keeps the order: a lower score is never in a higher bin.
    """
    sample = scores[:: max(1, len(scores) // SAMPLE)]
    low = sample.min()
    with np.errstate(all="ignore"):
        scale = scores.dtype.type(count - 1) / (sample.max() - low)
        if not np.finfo(scores.dtype).tiny < scale < np.inf:
            return None
        bin_of = np.empty(len(scores), np.uint16)
        for start in range(0, len(scores), BLOCK):
            part = slice(start, start + BLOCK)
            bin_of[part] = ((scores[part] - low) * scale).clip(0, count - 1)
    return bin_of
