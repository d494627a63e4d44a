"""FPR95 and AUROC of many resamples of the same scores at once.

A resample draws as many rows as a set has, with replacement; it is held as how often each row was drawn. Scores are sorted
once, and in every resample the metrics follow from cumulative counts, so that nothing is sorted again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from outfield.scores.vectors import as_scores, rank

PART = 4_000_000
"""Counts in memory at a time."""


def counts_of_resamples(sets: Mapping[Any, int], resamples: int, seed: int) -> Iterator[dict[Any, np.ndarray]]:
    """How often each row of each set is drawn (N, r), some of the resamples at a time.

    The rows of the i-th set, counted from 1, are those of ``numpy.random.default_rng([seed, i]).integers(N, size=(resamples,
    N))``, however many resamples are in memory at a time.

    Args:
        sets: How many rows each set has.
        resamples: How many resamples are drawn in all.
        seed: Of the random numbers.
    """
    generators = {name: np.random.default_rng([seed, place]) for place, name in enumerate(sets, 1)}
    part = max(1, PART // sum(sets.values()))
    for start in range(0, resamples, part):
        some = min(part, resamples - start)
        yield {name: _counts(generators[name].integers(n, size=(some, n))) for name, n in sets.items()}


def _counts(rows: np.ndarray) -> np.ndarray:
    """How often each of the numbers 0 … N − 1 is in each of these draws (r, N), as (N, r)."""
    some, n = rows.shape
    apart = rows * some + np.arange(some)[:, None]
    return np.bincount(apart.ravel(), minlength=some * n).reshape(n, some).astype(np.int32)


class SortedScores:
    """Scores of the ID test set (N,) and of OOD sets (M,) by one fitted detector, sorted once.

    Args:
        scores_id: Scores of the ID test set.
        scores_ood: Scores of each OOD set, by name.
    """

    def __init__(self, scores_id: Any, scores_ood: Mapping[str, Any]) -> None:
        ids = as_scores("scores_id", scores_id)
        self._order = np.argsort(ids)
        self._ids = ids[self._order]
        self._oods = {name: _Sorted(self._ids, as_scores(name, scores)) for name, scores in scores_ood.items()}

    def metrics(self, counts_id: np.ndarray, counts_ood: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """FPR95 and AUROC (r, 2) of each OOD set in each resample.

        Args:
            counts_id: How often each ID row was drawn (N, r).
            counts_ood: How often each OOD row was drawn (M, r), by the set's name.
        """
        up_to = _cumulative(counts_id[self._order])
        # The lowest threshold that keeps 95 % of the drawn ID rows is the first score at which so many were counted.
        thresholds = self._ids[(up_to[1:] < rank(0.95, len(self._ids))).sum(0)]
        return {name: one.metrics(up_to, thresholds, counts_ood[name]) for name, one in self._oods.items()}


class _Sorted:
    """Sorted OOD scores, and where each stands among the sorted ID scores."""

    def __init__(self, ids: np.ndarray, oods: np.ndarray) -> None:
        self._order = np.argsort(oods)
        self._oods, self._pairs = oods[self._order], len(ids) * len(oods)
        self._below, self._not_above = (np.searchsorted(ids, self._oods, side) for side in ("left", "right"))

    def metrics(self, up_to: np.ndarray, thresholds: np.ndarray, counts: np.ndarray) -> np.ndarray:
        mine = counts[self._order]
        accepted = _cumulative(mine)[np.searchsorted(self._oods, thresholds, "right"), np.arange(mine.shape[1])]
        won_twice = (mine * (up_to[self._below] + up_to[self._not_above])).sum(0, dtype=np.int64)
        return np.stack([accepted / len(mine), won_twice / (2 * self._pairs)], 1)


def _cumulative(counts: np.ndarray) -> np.ndarray:
    """0, c₁, c₁ + c₂, … of each resample: (N, r) → (N + 1, r)."""
    found = np.zeros((len(counts) + 1, counts.shape[1]), np.int32)
    np.cumsum(counts, 0, out=found[1:])
    return found
