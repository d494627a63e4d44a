"""Where new scores fall among calibration scores, and what that is worth when there are only so many of these.

The p-values of many samples against *one* set of n calibration scores are not uniform: given the set they deviate by about
1 / √n, and a long stream of ID samples would look like drift. What is exact is the next place given those before. The n scores
leave n + 1 gaps; if calibration scores and samples so far are exchangeable, the next sample falls into gap g with probability

    (1 + N_g) / (n + 1 + t)

after t samples of which N_g fell into it (Pólya's urn). So, with v uniform on (0, 1],

    u = (Σ_{i<g} (1 + N_i) + v (1 + N_g)) / (n + 1 + t)

is uniform given the past, whatever the distribution of the scores and the luck of the calibration: small u, high score.
"""

from __future__ import annotations

import numpy as np

AT_ONCE = 256
"""Samples that are compared with each other together."""


def gaps_of(reference: np.ndarray, ties: np.ndarray, scores: np.ndarray, luck: np.ndarray) -> np.ndarray:
    """How many calibration scores lie above each score (N,): 0 to n. Equal ones are ordered by lot.

    Args:
        reference: calibration scores (n,), ascending.
        ties: a number for each of them (n,), ascending among equal ones, from the same distribution as ``luck``.
        scores: the new scores (N,).
        luck: a number for each of them (N,).
    """
    first = np.searchsorted(reference, scores, side="left")
    last = np.searchsorted(reference, scores, side="right")
    for index in np.flatnonzero(last > first):
        start, end = first[index], last[index]
        first[index] = start + np.searchsorted(ties[start:end], luck[index])
    return len(reference) - first


def lots(reference: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The numbers (n,), put in ascending order among equal calibration scores (n,)."""
    return numbers[np.lexsort((numbers, reference))]


def uniform(counts: np.ndarray, gaps: np.ndarray, luck: np.ndarray) -> np.ndarray:
    """u of samples (N,) one after the other; ``counts`` (n + 1,), the N_g, is brought up to date.

    Args:
        counts: samples so far in each gap, int64.
        gaps: the gaps of the next ones (N,).
        luck: v of each (N,), in (0, 1].
    """
    found = np.empty(len(gaps))
    for start in range(0, len(gaps), AT_ONCE):
        piece = gaps[start : start + AT_ONCE]
        sums = np.concatenate([[0], np.cumsum(counts)])
        earlier = np.tri(len(piece), k=-1, dtype=bool)
        below = sums[piece] + piece + ((piece[None] < piece[:, None]) & earlier).sum(1)
        within = 1 + counts[piece] + ((piece[None] == piece[:, None]) & earlier).sum(1)
        slots = len(counts) + sums[-1] + np.arange(len(piece))
        found[start : start + AT_ONCE] = (below + luck[start : start + AT_ONCE] * within) / slots
        np.add.at(counts, piece, 1)
    return found
