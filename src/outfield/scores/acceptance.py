"""Accept an answer: a limit on "probably wrong" below which a promised share of accepted answers is right.

Learn then test (Angelopoulos et al. 2021). Each limit λ on a score (higher = more likely wrong) has a null hypothesis: more than
1 − accuracy of the answers with a score ≤ λ are wrong. Where n labelled rows are accepted and k of them are wrong, its p-value is
P(Binomial(n, 1 − accuracy) ≤ k). Other rows say which limit is the safest to begin with. From there on larger and larger limits
are tested, each at the full level, until one is not rejected; the last that was is taken. So the promise is broken with a
probability of at most 1 − confidence, over the draw of the labelled rows, whatever score and network are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.config import require, require_number
from outfield.errors import TooFewSamplesError
from outfield.files import Record
from outfield.scores.risk_coverage import as_wrong
from outfield.scores.threshold import beta_cdf, beta_quantile, is_share
from outfield.scores.vectors import as_scores

SAID = ("limit", "accuracy", "confidence", "tested", "source")
LIMITS = 100  # limits that are tried, at most


@dataclass(frozen=True, eq=False)
class Acceptance:
    """A limit on a score of known rows, with what it promises: of the answers that it accepts, enough are right.

    Attributes:
        limit: an answer is accepted where the score is no larger; higher = more likely wrong.
        accuracy: share of right answers that is promised among accepted ones.
        confidence: probability of the promise, over the draw of the rows that it was tested on.
        tested: rows that tested it: all, those that it accepts, and wrong ones among these.
        edges: scores at which the chance to be right changes, ascending (E,), float64.
        chances: that chance from each edge on, descending (E + 1,), float64.
        source: what gave the scores, or None.
    """

    limit: float
    accuracy: float
    confidence: float
    tested: tuple[int, int, int]
    edges: Tensor
    chances: Tensor
    source: str | None = None

    @classmethod
    def fit(
        cls,
        scores: Any,
        wrong: Any,
        others: Any,
        others_wrong: Any,
        accuracy: float,
        confidence: float = 0.95,
        source: str | None = None,
    ) -> Acceptance:
        """Choose the limit on labelled rows that nothing was fitted on.

        Args:
            scores: of rows that test limits (N,); +inf for those that are refused for another reason.
            wrong: whether their answers are wrong (N,).
            others: scores of other labelled rows (M,): the limits that are tested, and with which to begin.
            others_wrong: whether their answers are wrong (M,).
            accuracy: share of right answers among accepted ones.
            confidence: probability of the promise.
            source: what gave the scores.

        Raises:
            InputError: what is given cannot be used.
            TooFewSamplesError: no limit can promise this from so few rows; it says how many would do, and what these can promise.

        >>> rng = np.random.default_rng(0)
        >>> scores, others = rng.uniform(size=2000), rng.uniform(size=1000)
        >>> rule = Acceptance.fit(scores, rng.uniform(size=2000) < scores / 4, others, rng.uniform(size=1000) < others / 4, 0.95)
        >>> 0.2 < rule.limit < 0.4, bool(rule.accepts([0.1])[0]), rule.p_right([0.1, 0.9]).round(decimals=1).tolist()
        (True, True, [1.0, 0.8])
        """
        check_accuracy(accuracy)
        require_number("confidence", confidence, above=0, most=1 - 1e-9)
        found, first = as_scores("scores", scores), as_scores("others", others)
        bad, first_bad = as_wrong(wrong, len(found)), as_wrong(others_wrong, len(first))
        limits = np.unique(first[np.isfinite(first)])
        if len(limits) > LIMITS:
            limits = limits[np.linspace(0, len(limits) - 1, LIMITS).round().astype(int)]
        accepted, mistakes = _counts(first, first_bad, limits)
        margin = (accepted * (1 - accuracy) - mistakes) / np.sqrt(np.maximum(accepted, 1))
        order = range(int(np.argmax(margin)) if len(limits) else 0, len(limits))
        counts, passed = np.stack(_counts(found, bad, limits), axis=1).tolist(), []
        for i in order:
            if _p_value(counts[i][0], counts[i][1], accuracy) > 1 - confidence:
                break
            passed.append(i)
        if not passed:
            raise TooFewSamplesError(_refusal(counts, order, len(found), accuracy, confidence))
        best = passed[-1]
        kept = np.isfinite(found)
        edges, chances = _falling(found[kept], 1 - bad[kept])
        tested = (len(found), *map(int, counts[best]))
        return cls(float(limits[best]), float(accuracy), float(confidence), tested, edges, chances, source)  # type: ignore[arg-type]

    def accepts(self, scores: Any) -> Tensor:
        """Whether each answer is accepted (N,)."""
        return torch.from_numpy(as_scores("scores", scores) <= self.limit)

    def p_right(self, scores: Any) -> Tensor:
        """The chance that each answer is right (N,): what was seen at such scores, made to fall with the score (isotonic)."""
        return self.chances[np.searchsorted(self.edges.numpy(), as_scores("scores", scores), side="right")]

    def record(self) -> Record:
        """What a file holds of it."""
        header = {name: getattr(self, name) for name in SAID} | {"tested": list(self.tested)}
        return Record(header, {"edges": self.edges, "chances": self.chances})

    @classmethod
    def from_record(cls, record: Record) -> Acceptance:
        """What :meth:`record` gave."""
        header, tensors = record
        said = {name: header[name] for name in SAID}
        return cls(**{**said, "tested": tuple(header["tested"])}, edges=tensors["edges"], chances=tensors["chances"])

    def __repr__(self) -> str:
        total, accepted, wrong = self.tested
        return (
            f"Acceptance(score ≤ {self.limit:.4g}: at least {100 * self.accuracy:.4g} % right with a confidence of "
            f"{self.confidence:.4g}; {accepted:,} of {total:,} held-out answers accepted, {wrong:,} of these wrong)"
        )


def check_accuracy(accuracy: float) -> None:
    """Refuse an ``accuracy`` that is no share between 0 and 1."""
    right = "the share of accepted answers that must be right, between 0 and 1"
    require(is_share(accuracy), "accuracy", accuracy, right)


def fewest_right(accuracy: float, confidence: float = 0.95) -> int:
    """Accepted rows, all of them right, that a promise needs: the smallest n with accuracyⁿ ≤ 1 − confidence.

    >>> fewest_right(0.99), fewest_right(0.9)
    (299, 29)
    """
    return math.ceil(math.log(1 - confidence) / math.log(accuracy))


def _counts(scores: np.ndarray, wrong: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows that each limit accepts, and wrong ones among these (L,)."""
    order = np.argsort(scores, kind="stable")
    accepted = np.searchsorted(scores[order], limits, side="right")
    return accepted.astype(float), np.r_[0.0, np.cumsum(wrong[order])][accepted]


def _p_value(accepted: float, wrong: float, accuracy: float) -> float:
    """P(Binomial(n, 1 − accuracy) ≤ k) = I_accuracy(n − k, k + 1); 1 where nothing right is accepted."""
    return beta_cdf(accepted - wrong, wrong + 1, accuracy) if accepted > wrong else 1.0


def _refusal(counts: list[list[float]], order: Sequence[int], total: int, accuracy: float, confidence: float) -> str:
    """Why no limit can be promised, what can, and how many rows would do."""
    n, k = counts[order[0]] if order else (0.0, 0.0)
    least = beta_quantile(n - k, k + 1, 1 - confidence) if n > k else 0.0
    start = (
        f"the {total:,} held-out rows that test the answers cannot promise that {100 * accuracy:.4g} % of those accepted are "
        f"right with a confidence of {confidence:g}, but {math.floor(1000 * least) / 10:g} %. Pass a lower accuracy, or"
    )
    if n and k / n >= 1 - accuracy:
        return f"{start} a better network: of those that look safest it is right on {100 * (1 - k / n):.1f} %"
    needed = 3.0 * fewest_right(accuracy, confidence)
    while n and _p_value(needed / total * n, needed / total * k, accuracy) > 1 - confidence:
        needed *= 1.1
    return f"{start} about {10 * math.ceil(needed / 10):,} such rows"


def _falling(scores: np.ndarray, right: np.ndarray) -> tuple[Tensor, Tensor]:
    """Scores at which a falling step function changes, and its steps: least squares to ``right`` (pool adjacent violators).

    Each step counts one right and one wrong answer more than it has, so that none is quite 0 or 1; steps that would rise by that
    are pooled, too.
    """
    order = np.argsort(scores, kind="stable")
    values, starts = np.unique(scores[order], return_index=True)
    sums, sizes = np.add.reduceat(right[order], starts), np.diff(np.r_[starts, len(scores)])
    steps = _pooled(_pooled(zip(values.tolist(), sums.tolist(), sizes.tolist(), strict=True), 0), 1)
    chances = np.array([(own + 1) / (size + 2) for _, own, size in steps])
    return torch.tensor([first for first, _, _ in steps[1:]], dtype=torch.float64), torch.from_numpy(chances)


def _pooled(steps: Iterable[tuple[float, float, float]], more: int) -> list[tuple[float, float, float]]:
    """Steps (first score, right answers, all answers) whose share of right ones falls; each counts so many of both kinds more."""
    kept: list[tuple[float, float, float]] = []
    for first, own, size in steps:
        while kept and (own + more) * (kept[-1][2] + 2 * more) >= (kept[-1][1] + more) * (size + 2 * more):
            first, before, others = kept.pop()
            own, size = own + before, size + others
        kept.append((first, own, size))
    return kept
