"""Risk and coverage: how often answers are wrong among those that a score accepts.

A score ranks answers, higher = more likely wrong. Accepting the lowest scores first, coverage c is the share of answers that are
accepted, the selective risk r(c) the share of wrong ones among these, and the generalised risk c · r(c) the share of all answers
that are accepted and wrong. To judge a rule that must also refuse OOD inputs (SCOD), call these wrong and weight both parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outfield.config import require_number
from outfield.errors import InputError
from outfield.scores.vectors import as_scores


class RiskCoverage:
    """Scores (N,) and which answers are wrong (N,), sorted once.

    Answers with equal scores are accepted together; curves go through them in their average order.

    Args:
        scores: higher = more likely wrong.
        wrong: truths, or 0 and 1.
        weights: of the answers (N,); equal if None.

    Attributes:
        coverage: share accepted up to each distinct score, ascending, (M,).
        risk: share of wrong answers among these (M,).
        limits: the distinct scores (M,).

    >>> found = RiskCoverage([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 0])
    >>> found.coverage_at(0.0), found.risk.round(3).tolist()
    (0.5, [0.0, 0.0, 0.333, 0.25])
    """

    def __init__(self, scores: Any, wrong: Any, weights: Any = None) -> None:
        ranked = as_scores("scores", scores)
        bad = as_wrong(wrong, len(ranked))
        share = np.ones(len(ranked)) if weights is None else as_scores("weights", weights)
        if share.shape != ranked.shape or not (np.isfinite(share) & (share > 0)).all():
            raise InputError(f"weights must be {len(ranked)} positive numbers, one for each score")
        order = np.argsort(ranked, kind="stable")
        ranked, share, bad = ranked[order], share[order] / share.sum(), bad[order]
        starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
        ends = np.r_[starts[1:], len(ranked)]
        weight = np.add.reduceat(share, starts)
        mistakes = np.add.reduceat(share * bad, starts)
        self.limits, self.coverage = ranked[starts], np.cumsum(weight)
        self.risk = np.cumsum(mistakes) / self.coverage
        # Row by row, as many wrong as on average over the orders of equal scores
        self._share = share
        self._wrong = np.cumsum(share * np.repeat(mistakes / weight, ends - starts))

    def aurc(self) -> float:
        """Area under the risk–coverage curve: the mean, over all rows, of the risk where rows up to it are accepted."""
        return float(np.sum(self._share * self._wrong / np.cumsum(self._share)))

    def augrc(self) -> float:
        """Area under the generalised risk: the chance that an answer is wrong and accepted before a random one (½ for itself)."""
        before = np.r_[0.0, self._wrong[:-1]]
        return float(np.sum(self._share * (before + self._wrong) / 2))

    def coverage_at(self, risk: float) -> float:
        """The largest share that can be accepted with no larger selective risk; 0 where there is none."""
        require_number("risk", risk, least=0, most=1)
        good = np.flatnonzero(self.risk <= risk)
        return float(self.coverage[good[-1]]) if len(good) else 0.0

    def risk_at(self, coverage: float) -> float:
        """The selective risk where at least this share is accepted."""
        require_number("coverage", coverage, above=0, most=1)
        return float(self.risk[np.searchsorted(self.coverage, coverage - 1e-12)])


def aurc(scores: Any, wrong: Any) -> float:
    """Area under the risk–coverage curve of scores (N,), higher = more likely wrong (Geifman & El-Yaniv 2017); lower is better.

    >>> aurc([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1])
    0.0625
    """
    return RiskCoverage(scores, wrong).aurc()


def augrc(scores: Any, wrong: Any) -> float:
    """Area under the generalised risk–coverage curve (Traub et al. 2024); lower is better.

    >>> augrc([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1])
    0.03125
    """
    return RiskCoverage(scores, wrong).augrc()


def coverage_at_risk(scores: Any, wrong: Any, risk: float) -> float:
    """The largest share of answers that can be accepted so that at most ``risk`` of these are wrong.

    >>> coverage_at_risk([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1], 0.1)
    0.75
    """
    return RiskCoverage(scores, wrong).coverage_at(risk)


def as_wrong(wrong: Any, count: int) -> np.ndarray:
    """Which answers are wrong (N,), as numbers 0 and 1."""
    found = as_scores("wrong", wrong)
    if found.shape != (count,) or not np.isin(found, (0.0, 1.0)).all():
        raise InputError(f"wrong must say of each of the {count} answers whether it is wrong, by True or False")
    return found
