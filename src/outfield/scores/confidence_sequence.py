"""An interval of a share that may be looked at after every sample."""

from __future__ import annotations

import math
from collections.abc import Callable


def anytime_interval(hits: int, count: int, confidence: float) -> tuple[float, float]:
    """A confidence sequence for a share: with probability ``confidence`` it holds the true share at *every* count at once.

    With k hits among t samples, the shares q that the mixture bet of Robbins has not refuted:

        ∫ x^k (1 − x)^(t−k) dx / (q^k (1 − q)^(t−k)) < 1 / (1 − confidence).

    Wider than Clopper and Pearson's interval, which holds at one count that was chosen beforehand.

    Args:
        hits: how many of the samples, 0 to ``count``.
        count: how many samples.
        confidence: between 0 and 1.

    >>> low, high = anytime_interval(50, 1000, 0.95)
    >>> round(low, 4), round(high, 4)
    (0.0282, 0.0802)
    >>> anytime_interval(0, 0, 0.95)
    (0.0, 1.0)
    """
    misses = count - hits
    mixture = math.lgamma(hits + 1) + math.lgamma(misses + 1) - math.lgamma(count + 2)
    limit = mixture + math.log1p(-confidence)

    def stands(share: float) -> bool:
        likelihood = (hits * math.log(share) if hits else 0.0) + (misses * math.log1p(-share) if misses else 0.0)
        return likelihood > limit

    middle = hits / count if count else 0.5
    low = 0.0 if not hits else _edge(0.0, middle, stands)
    high = 1.0 if not misses else _edge(1.0, middle, stands)
    return low, high


def _edge(out: float, inside: float, stands: Callable[[float], bool]) -> float:
    """The last share on the way from ``out``, which does not stand, to ``inside``, which does; by bisection."""
    while out != (middle := (out + inside) / 2) != inside:
        if stands(middle):
            inside = middle
        else:
            out = middle
    return inside
