"""The interval of a share: its ends solve the equation, and it holds the truth at every look."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outfield.scores.shares import anytime_interval


def evidence(q, k, t):
    """ln of the mixture's likelihood over q's."""
    return math.lgamma(k + 1) + math.lgamma(t - k + 1) - math.lgamma(t + 2) - k * math.log(q) - (t - k) * math.log1p(-q)


@pytest.mark.parametrize(("k", "t"), [(1, 1000), (50, 1000), (999, 1000), (3, 7)])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_ends_are_where_the_evidence_is_enough(k, t, confidence):
    for end in anytime_interval(k, t, confidence):
        assert evidence(end, k, t) == pytest.approx(-math.log(1 - confidence), rel=1e-6)


def test_edges():
    assert anytime_interval(0, 0, 0.95) == (0.0, 1.0)
    low, high = anytime_interval(0, 100, 0.95)
    assert low == 0
    assert (1 - high) ** 100 == pytest.approx(0.05 / 101)
    low, high = anytime_interval(100, 100, 0.95)
    assert high == 1
    assert low**100 == pytest.approx(0.05 / 101)


def test_it_holds_the_truth_at_every_look():
    missed = 0
    for seed in range(300):
        hits = np.cumsum(np.random.default_rng(seed).random(500) < 0.05)
        looks = [anytime_interval(int(hits[t - 1]), t, 0.9) for t in (1, 5, 20, 50, 100, 200, 300, 400, 500)]
        missed += not all(low <= 0.05 <= high for low, high in looks)
    assert 0 < missed <= 0.1 * 300
