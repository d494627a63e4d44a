"""How well scores tell OOD from ID: exact, rank-based, in float64.

Every function takes two vectors of scores (higher = more OOD) of any length and magnitude and returns a fraction in
[0, 1]. Only the order of the scores matters; ties count one half in :func:`auroc`, and a threshold never splits a tie.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outfield.errors import InputError
from outfield.scores import as_scores, rank


def auroc(scores_id: Any, scores_ood: Any) -> float:
    """Area under the ROC curve: P(s_ood > s_id) + ½ P(s_ood = s_id), the Mann–Whitney statistic.

    >>> auroc([0.0, 1.0], [1.0, 2.0])
    0.875
    """
    ids, oods = _sorted(scores_id, scores_ood)
    below = np.searchsorted(ids, oods, side="left").sum(dtype=np.int64)
    not_above = np.searchsorted(ids, oods, side="right").sum(dtype=np.int64)
    return float((int(below) + int(not_above)) / (2 * len(ids) * len(oods)))


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
    if not 0 < keep <= 1:
        raise InputError(f"keep is {keep}; it must lie in (0, 1]")
    ids, oods = _sorted(scores_id, scores_ood)
    threshold = ids[max(1, rank(keep, len(ids))) - 1]
    return float(np.searchsorted(oods, threshold, side="right") / len(oods))


def id_rejected_at_95_ood_recall(scores_id: Any, scores_ood: Any) -> float:
    """Share of ID samples rejected by the highest threshold that rejects at least 95 % of OOD samples.

    What OpenOOD, pytorch-ood and oodeel call FPR95.

    >>> id_rejected_at_95_ood_recall([0.0, 1.0, 2.0, 3.0], [2.0] * 20)
    0.5
    """
    ids, oods = _sorted(scores_id, scores_ood)
    threshold = oods[len(oods) - rank(0.95, len(oods))]
    return float(1 - np.searchsorted(ids, threshold, side="left") / len(ids))


def aupr_out(scores_id: Any, scores_ood: Any) -> float:
    """Area under the precision-recall curve with OOD as the positive class (average precision, ties together)."""
    ids, oods = _sorted(scores_id, scores_ood)
    return _average_precision(positives=oods, negatives=ids)


def aupr_in(scores_id: Any, scores_ood: Any) -> float:
    """Area under the precision-recall curve with ID as the positive class (average precision, ties together)."""
    ids, oods = _sorted(scores_id, scores_ood)
    return _average_precision(positives=-ids[::-1], negatives=-oods[::-1])


def _average_precision(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Σ over distinct positive scores of (share of positives there) × (precision at or above it); inputs sorted."""
    values, counts = np.unique(positives, return_counts=True)
    true = len(positives) - np.searchsorted(positives, values, side="left")
    false = len(negatives) - np.searchsorted(negatives, values, side="left")
    return float(np.sum(counts * (true / (true + false))) / len(positives))


def _sorted(scores_id: Any, scores_ood: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.sort(as_scores("scores_id", scores_id)), np.sort(as_scores("scores_ood", scores_ood))
