"""Feature shapers that learn percentiles: ReAct, VRA and DICE."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from outfield.config import require
from outfield.detectors.base import Detector
from outfield.detectors.head.last_layer import Shaper
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import EnergyLogits
from outfield.detectors.registry import register
from outfield.features import FeatureSource

BITS = 16  # how many bits of a number one pass finds
SHIFTS = (48, 32, 16, 0)  # where they stand in it, pass by pass
LOW_BITS = torch.iinfo(torch.int64).max  # all bits but the sign


@register
class ReAct(Shaper):
    """Logits of activations that are cut off from above (Sun et al. 2021).

    score = detector(W min(f, t) + b), with t a percentile of all activations of the training features, exact (data on disk is
    read five times for it, in pieces).

    Args:
        percentile: Which percentile t is, above 0 and at most 100.
        detector: Scores the logits: any detector that looks at logits alone; a copy of it is fitted.

    Attributes:
        threshold_: t (1,), float64.
    """

    learned = (*Shaper.learned, "threshold float64 1")

    def __init__(self, percentile: float = 90.0, detector: Detector = EnergyLogits()) -> None:
        self.percentile, self.detector = percentile, detector

    def _learn(self, train: FeatureSource) -> None:
        found = percentiles(lambda: self._pieces(train), [float(self.percentile)])
        self.threshold_ = torch.tensor(found, dtype=torch.float64, device=self.device)

    def _shaped(self, features: Tensor) -> Tensor:
        return features.minimum(self.threshold_)


@register
class VRA(Shaper):
    """Logits of activations of which low ones are dropped and high ones cut off (Xu et al. 2023).

    score = detector(W f′ + b), with f′_i = 0 where f_i < t_low, t_high where f_i > t_high, and f_i in between; both are
    percentiles of all activations of the training features, exact (data on disk is read five times for them, in pieces).
    (The defaults are OpenOOD's, which raises low activations to t_low where the paper drops them.)

    Args:
        low: Which percentile t_low is, above 0.
        high: Which percentile t_high is, above ``low`` and at most 100.
        detector: Scores the logits: any detector that looks at logits alone; a copy of it is fitted.

    Attributes:
        thresholds_: t_low and t_high (2,), float64.
    """

    learned = (*Shaper.learned, "thresholds float64 2")

    def __init__(self, low: float = 10.0, high: float = 90.0, detector: Detector = EnergyLogits()) -> None:
        self.low, self.high, self.detector = low, high, detector

    def _check_settings(self) -> None:
        super()._check_settings()
        require(self.low < self.high, "low", self.low, f"below high, which is {self.high}")

    def _learn(self, train: FeatureSource) -> None:
        found = percentiles(lambda: self._pieces(train), [float(self.low), float(self.high)])
        self.thresholds_ = torch.tensor(found, dtype=torch.float64, device=self.device)

    def _shaped(self, features: Tensor) -> Tensor:
        low, high = self.thresholds_
        return torch.where(features < low, 0.0, features.minimum(high))


@register
class DICE(Shaper):
    """Logits from the largest contributions of features to classes (Sun & Li 2022).

    score = detector((M ∘ W) f + b), where M keeps the weights whose mean contribution w_ki μ_i, with μ the mean training
    feature, is above a percentile of all K · D of them.

    Args:
        percentile: Share of the weights, in percent, that is left out, above 0 and at most 100.
        detector: Scores the logits: any detector that looks at logits alone; a copy of it is fitted.

    Attributes:
        weight_: M ∘ W (K, D), float64.
        bias_: b (K,), float64.
    """

    def __init__(self, percentile: float = 90.0, detector: Detector = EnergyLogits()) -> None:
        self.percentile, self.detector = percentile, detector

    def _learn(self, train: FeatureSource) -> None:
        contributions: Tensor = self.weight_ * self._mean(train)
        (limit,) = percentiles(lambda: [contributions], [float(self.percentile)])
        self.weight_ = self.weight_.where(contributions > limit, 0.0)


def percentiles(pieces: Callable[[], Iterable[Tensor]], wanted: Sequence[float]) -> list[float]:
    """Percentiles, exact: those of ``numpy.percentile``, with a line between neighbouring numbers.

    ``pieces`` gives the same finite floating numbers each time that it is called. A float64 and the integer that its bits spell
    are in the same order (once negative ones are turned around), so that four passes, each counting the next 16 bits of those
    numbers that agree with what is known, find the number of any rank with 65,536 counters.
    """
    total = sum(piece.numel() for piece in pieces())
    positions = [(total - 1) * percent / 100 for percent in wanted]
    ranks = sorted({int(rank) for position in positions for rank in (math.floor(position), math.ceil(position))})
    found = dict(zip(ranks, _of_ranks(pieces, ranks), strict=True))
    ends = [(found[math.floor(position)], found[math.ceil(position)], position % 1) for position in positions]
    return [low + (high - low) * share for low, high, share in ends]


def _of_ranks(pieces: Callable[[], Iterable[Tensor]], ranks: Sequence[int]) -> list[float]:
    """The numbers of these ranks, from 0 for the smallest."""
    known = [0] * len(ranks)  # the first bits of each number, as an integer
    rest = list(ranks)  # the rank among the numbers that begin so
    for shift in SHIFTS:
        first = shift == SHIFTS[0]
        lowest = -(1 << (BITS - 1)) if first else 0  # the first bits have a sign
        counts: dict[int, Tensor] = {}
        for piece in pieces():
            keys = _ordered(piece)
            for begin in set(known):
                here = keys if first else keys[(keys >> (shift + BITS)) == begin]
                digits = (here >> shift) - (begin << BITS) - lowest
                count = torch.bincount(digits, minlength=1 << BITS).cpu()
                counts[begin] = counts[begin] + count if begin in counts else count
        for i, begin in enumerate(known):
            below = counts[begin].cumsum(0)
            digit = int(torch.searchsorted(below, rest[i], right=True))
            rest[i] -= int(below[digit - 1]) if digit else 0
            known[i] = (begin << BITS) + digit + lowest
    keys = torch.tensor(known, dtype=torch.int64)
    return torch.where(keys < 0, keys ^ LOW_BITS, keys).view(torch.float64).tolist()


def _ordered(piece: Tensor) -> Tensor:
    """Integers (n,) in the order of the numbers."""
    bits = piece.reshape(-1).double().contiguous().view(torch.int64)
    return torch.where(bits < 0, bits ^ LOW_BITS, bits)
