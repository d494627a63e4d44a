"""How well scores tell OOD from ID: exact and rank-based.

Every function takes two vectors of scores (higher = more OOD) of any length and magnitude and returns a fraction in
[0, 1]. Only the order of the scores matters; ties count one half in :func:`auroc`, and a threshold never splits a tie.
For several metrics of the same scores, :class:`Separation` sorts them once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outfield.config import require_number
from outfield.scores.vectors import as_score_pair, rank

BLOCK = 8192  # scores handled at a time, so that they stay in the cache


class Separation:
    """ID scores (N,) and OOD scores (M,), sorted once; each method is the function of its name.

    >>> separation = Separation([0.0, 1.0], [1.0, 2.0])
    >>> separation.auroc(), separation.fpr95()
    (0.875, 0.5)
    """

    def __init__(self, scores_id: Any, scores_ood: Any) -> None:
        ids, oods = as_score_pair(scores_id, scores_ood)
        self._ids, self._oods = np.sort(ids), np.sort(oods)

    def auroc(self) -> float:
        return _doubled_wins(self._ids, self._oods) / (2 * len(self._ids) * len(self._oods))

    def fpr95(self) -> float:
        return self.ood_accepted(keep=0.95)

    def ood_accepted(self, keep: float) -> float:
        threshold = self._ids[_last_kept(keep, len(self._ids))]
        return float(np.searchsorted(self._oods, threshold, side="right") / len(self._oods))

    def id_rejected_at_95_ood_recall(self) -> float:
        threshold = self._oods[len(self._oods) - rank(0.95, len(self._oods))]
        return float(1 - np.searchsorted(self._ids, threshold, side="left") / len(self._ids))

    def aupr_out(self) -> float:
        return _average_precision(positives=self._oods, negatives=self._ids)

    def aupr_in(self) -> float:
        return _average_precision(positives=-self._ids[::-1], negatives=-self._oods[::-1])


def auroc(scores_id: Any, scores_ood: Any) -> float:
    """Area under the ROC curve: P(s_ood > s_id) + ½ P(s_ood = s_id), the Mann–Whitney statistic.

    >>> auroc([0.0, 1.0], [1.0, 2.0])
    0.875
    """
    return Separation(scores_id, scores_ood).auroc()


def fpr95(scores_id: Any, scores_ood: Any) -> float:
    """Share of OOD samples accepted by the lowest threshold that accepts at least 95 % of ID samples.

    This is the paper's definition. The mirror image that other software reports under the same name is
    :func:`id_rejected_at_95_ood_recall`.

    >>> fpr95(range(100), [50.0, 94.0, 95.0, 200.0])
    0.5
    """
    return ood_accepted(scores_id, scores_ood, keep=0.95)


def ood_accepted(scores_id: Any, scores_ood: Any, keep: float) -> float:
    """Share of OOD samples at or below the lowest threshold that keeps at least ``keep`` of the ID samples."""
    ids, oods = as_score_pair(scores_id, scores_ood)
    last = _last_kept(keep, len(ids))
    return float(np.count_nonzero(oods <= np.partition(ids, last)[last]) / len(oods))  # without sorting them all


def id_rejected_at_95_ood_recall(scores_id: Any, scores_ood: Any) -> float:
    """Share of ID samples rejected by the highest threshold that rejects at least 95 % of OOD samples.

    What OpenOOD, pytorch-ood and oodeel call FPR95.

    >>> id_rejected_at_95_ood_recall([0.0, 1.0, 2.0, 3.0], [2.0] * 20)
    0.5
    """
    ids, oods = as_score_pair(scores_id, scores_ood)
    first = len(oods) - rank(0.95, len(oods))
    return float(1 - np.count_nonzero(ids < np.partition(oods, first)[first]) / len(ids))


def aupr_out(scores_id: Any, scores_ood: Any) -> float:
    """Area under the precision-recall curve with OOD as the positive class (average precision, ties together)."""
    return Separation(scores_id, scores_ood).aupr_out()


def aupr_in(scores_id: Any, scores_ood: Any) -> float:
    """Area under the precision-recall curve with ID as the positive class (average precision, ties together)."""
    return Separation(scores_id, scores_ood).aupr_in()


def _last_kept(keep: float, n: int) -> int:
    """Index, among ``n`` sorted ID scores, of the lowest threshold that keeps at least ``keep`` of them."""
    require_number("keep", keep, above=0, most=1)
    return max(1, rank(keep, n)) - 1


def _doubled_wins(ids: np.ndarray, oods: np.ndarray) -> int:
    """Σ over s in ``oods`` of #{ids < s} + #{ids ≤ s}: twice the pairs won, plus those tied. Both are sorted."""
    total = 0
    for start in range(0, len(oods), BLOCK):
        block = oods[start : start + BLOCK]
        first = int(ids.searchsorted(block[0], "left"))
        window = ids[first : int(ids.searchsorted(block[-1], "right"))]
        up_to = window.searchsorted(block, "right") + first
        total += 2 * int(up_to.sum())
        # A tied score equals the last ID score up to it, and only tied ones need a second search. (Index −1, where no
        # ID score is that low, means the highest: never equal.)
        tied = ids[up_to - 1] == block
        if tied.any():
            total -= int((up_to[tied] - first - window.searchsorted(block[tied], "left")).sum())
    return total


def _average_precision(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Σ over distinct positive scores of (share of positives there) × (precision at or above it); inputs sorted."""
    edges = np.concatenate(([0], np.flatnonzero(positives[1:] != positives[:-1]) + 1, [len(positives)]))
    counts, true = np.diff(edges), len(positives) - edges[:-1]
    false = len(negatives) - np.searchsorted(negatives, positives[edges[:-1]], side="left")
    return float(np.sum(counts * (true / (true + false))) / len(positives))
