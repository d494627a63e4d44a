"""From scores to decisions: a threshold chosen on held-out ID scores, and a p-value for each sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.config import require, require_number
from outfield.errors import FileFormatError, InputError, TooFewSamplesError, as_ours
from outfield.files import PathLike, Record, read_record, write_record
from outfield.scores.vectors import as_scores, rank, source_of

TINY = 1e-300
ENOUGH = 1e-15  # relative change at which a continued fraction has converged


@dataclass(frozen=True, eq=False)
class Threshold:
    """A score above which a sample is called OOD, with how it was chosen.

    With the n held-out ID scores sorted, s_(1) ≤ … ≤ s_(n), the value is s_(r) with r = ⌈keep · (n + 1)⌉: a new ID sample
    then lies at or below it with probability at least ``keep``, whatever the distribution of the scores
    (split conformal prediction).

    Attributes:
        value: a sample is OOD when its score is larger.
        keep: share of ID samples that was to be kept.
        reference: the held-out scores, sorted (n,), float64.
        source: what gave the scores (``detector.fingerprint()``), or None where that was not said.
    """

    value: float
    keep: float
    reference: Tensor
    source: str | None = None

    def __post_init__(self) -> None:
        check_keep(self.keep)
        require_number("value", self.value)
        reference = as_scores("reference", self.reference)
        if not np.isfinite(reference).all() or (reference[1:] < reference[:-1]).any():
            raise InputError("reference must hold finite scores in ascending order; Threshold.fit sorts them")
        known = self.source is None or isinstance(self.source, str)
        require(known, "source", self.source, "a detector's fingerprint or None")
        object.__setattr__(self, "reference", torch.from_numpy(reference))

    @classmethod
    def fit(cls, held_out: Any, keep: float = 0.95, source: str | None = None) -> Threshold:
        """Choose the threshold on scores of ID samples that no detector was fitted on.

        Args:
            held_out: the scores (n,).
            keep: share of ID samples to accept.
            source: what gave the scores, ``detector.fingerprint()``; kept in the file, so that the threshold of one
                detector is not applied to another's scores. None takes it from the scores where they come straight from
                a detector.

        Raises:
            InputError: ``keep`` is not between 0 and 1, the scores are not a vector of finite numbers, or they are not
                of ``source``.
            TooFewSamplesError: no threshold can promise ``keep`` from so few samples (19 are needed for 0.95).
        """
        check_keep(keep)
        scores = np.sort(as_scores("held_out", held_out))
        if np.isinf(scores).any():
            raise InputError("held_out has infinite scores; a threshold needs finite ones")
        known = source_of(held_out)
        if source is not None and known not in (None, source):
            raise InputError(f"held_out are scores of {known}, not of {source}; pass those of the latter")
        n = len(scores)
        position = rank(keep, n + 1)
        if position > n:
            raise TooFewSamplesError(f"{n} held-out scores cannot keep {keep:.4g} of ID; pass at least {fewest(keep)}")
        return cls(float(scores[position - 1]), float(keep), torch.from_numpy(scores), source or known)

    def is_ood(self, scores: Any) -> Tensor:
        """True where the score is larger than the threshold (N,); the same as ``p_value(scores) <= p_limit``.

        Raises:
            InputError: the scores come straight from another detector than the one that the threshold was chosen for.
        """
        return torch.from_numpy(self._taken(scores) > self.value)

    def p_value(self, scores: Any) -> Tensor:
        """Share of ID samples expected to score at least as high (N,): (1 + #{i : s_i ≥ s}) / (n + 1).

        Raises:
            InputError: as for :meth:`is_ood`.
        """
        return torch.from_numpy(p_values(self.reference, self._taken(scores)))

    def _taken(self, scores: Any) -> np.ndarray:
        """Scores (N,), refused where they are known to be another detector's."""
        known = source_of(scores)
        if None not in (known, self.source) and known != self.source:
            what = f"these are scores of {known}, but the threshold was chosen on scores of {self.source}"
            raise InputError(f"{what}; choose one for each detector, with Threshold.fit on its own held-out scores")
        return as_scores("scores", scores)

    @property
    def p_limit(self) -> float:
        """The largest p-value of an OOD sample: (n + 1 − r) / (n + 1), 1 − keep rounded down to a multiple of 1 / (n + 1)."""
        n = len(self.reference)
        return (n + 1 - rank(self.keep, n + 1)) / (n + 1)

    def kept_interval(self, confidence: float = 0.9) -> tuple[float, float]:
        """Where the share of new ID samples that will be kept lies, given how many samples chose the threshold.

        The kept share follows Beta(r, n + 1 − r) for continuous scores; the interval is its central ``confidence`` part.
        """
        require_number("confidence", confidence, above=0, most=1)
        n = len(self.reference)
        position = rank(self.keep, n + 1)
        tail = (1 - confidence) / 2
        return beta_quantile(position, n + 1 - position, tail), beta_quantile(position, n + 1 - position, 1 - tail)

    def __repr__(self) -> str:
        low, high = self.kept_interval()
        return (
            f"Threshold({self.value:.6g}: keeps {self.keep:.4g} of ID, chosen on {len(self.reference):,} held-out scores"
            f"{f' of {self.source}' if self.source else ''}; "
            f"90 % interval of the kept share {low:.3f} to {high:.3f})"
        )

    def save(self, path: PathLike) -> None:
        """Write the value, how it was chosen and the held-out scores (``.safetensors``), atomically."""
        rule = f"held-out score of rank ceil(keep * (n + 1)) = {rank(self.keep, len(self.reference) + 1)}"
        header, tensors = self.record()
        write_record(path, "Threshold", Record({**header, "n": len(self.reference), "rule": rule}, tensors))

    @classmethod
    def load(cls, path: PathLike) -> Threshold:
        """Read what :meth:`save` wrote."""
        record = read_record(path, "Threshold")
        with as_ours(f"{path} holds a Threshold that cannot be one", FileFormatError, KeyError, InputError):
            return cls.from_record(record)

    def record(self) -> Record:
        """What a file holds of it."""
        header = {"value": self.value, "keep": self.keep, "source": self.source}
        return Record(header, {"reference": self.reference})

    @classmethod
    def from_record(cls, record: Record) -> Threshold:
        """What :meth:`record` gave; an error where the value does not follow from the scores."""
        said, scores = record.header, record.tensors["reference"]
        made = cls(said["value"], said["keep"], scores, said["source"])
        if made.value != cls.fit(scores, made.keep).value:
            raise FileFormatError("its threshold does not follow from its scores")
        return made


def p_values(reference: Tensor, scores: np.ndarray) -> np.ndarray:
    """(1 + #{i : s_i ≥ s}) / (n + 1) of each score s (N,), s_1 ≤ … ≤ s_n the reference (n,)."""
    found: np.ndarray = 1 + len(reference) - np.searchsorted(reference.numpy(), scores, side="left")
    return found / (len(reference) + 1)


def check_keep(keep: float) -> None:
    """Refuse a ``keep`` that is no share between 0 and 1."""
    require(is_share(keep), "keep", keep, "the share of ID samples to accept, between 0 and 1")


def is_share(value: float) -> bool:
    """Whether it is a number between 0 and 1."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < value < 1


def fewest(keep: float) -> int:
    """The smallest n with ⌈keep · (n + 1)⌉ ≤ n."""
    share = Fraction(f"{keep:.15g}")
    return math.ceil(share / (1 - share)) if share < 1 else 10**15


def same(one: Threshold | None, other: Threshold) -> bool:
    """Whether two thresholds are equal, with all their calibration scores."""
    if one is None or (one.value, one.keep, one.source) != (other.value, other.keep, other.source):
        return False
    return torch.equal(one.reference, other.reference)


def share_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Where a share lies of which ``count`` of ``total`` samples were seen (Clopper & Pearson 1934).

    >>> [round(end, 3) for end in share_interval(45, 50)], share_interval(0, 3)[0]
    ([0.782, 0.967], 0.0)
    """
    tail = (1 - confidence) / 2
    low = beta_quantile(count, total - count + 1, tail) if count else 0.0
    return low, beta_quantile(count + 1, total - count, 1 - tail) if count < total else 1.0


def beta_cdf(a: float, b: float, x: float) -> float:
    """P(X ≤ x) = I_x(a, b), the incomplete beta function, for X ~ Beta(a, b), a, b > 0.

    With f the continued fraction of DLMF 8.17.22, I_x(a, b) = x^a (1 − x)^b / (a B(a, b)) · f. It converges fast below the mean;
    above it I_x(a, b) = 1 − I_{1−x}(b, a) is used.

    >>> round(beta_cdf(2, 1, 0.5), 12), beta_cdf(3, 4, 0.0), beta_cdf(3, 4, 1.0)
    (0.25, 0.0, 1.0)
    """
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """1 / (1 + d_1 / (1 + d_2 / (1 + …))) by the modified Lentz algorithm, d_1 = −(a + b) x / (a + 1)."""
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value, factor, m = d, 0.0, 0
    while abs(factor - 1) > ENOUGH:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = _nonzero(1 + term / c), 1 / _nonzero(1 + term * d)
            factor = c * d
            value *= factor
    return value


def _nonzero(number: float) -> float:
    return number if abs(number) > TINY else TINY


def beta_quantile(a: float, b: float, share: float) -> float:
    """The x with P(X ≤ x) = share for X ~ Beta(a, b), by bisection down to neighbouring floats.

    >>> round(beta_quantile(2, 1, 0.25), 12), beta_quantile(5, 2, 0.0), beta_quantile(5, 2, 1.0)
    (0.5, 0.0, 1.0)
    """
    if share <= 0 or share >= 1:
        return float(share >= 1)
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if beta_cdf(a, b, middle) < share:
            low = middle
        else:
            high = middle
    return high


def discovery_limit(p_values: Any, rate: float) -> float:
    """The largest p-value of a discovery (Benjamini & Hochberg 1995); 0 where there is none.

    Of samples with p-values up to it, at most the share ``rate`` are ID in expectation: the largest p_(i) ≤ rate · i / n.

    >>> discovery_limit([0.001, 0.01, 0.2, 0.9], 0.1)
    0.01
    """
    require_number("rate (--fdr)", rate, above=0, most=1)
    p = np.sort(as_scores("p_values", p_values))
    good = np.flatnonzero(p <= rate * np.arange(1, len(p) + 1) / len(p))
    return float(p[good[-1]]) if len(good) else 0.0
