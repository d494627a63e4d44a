"""The Beta distribution against SciPy's and against closed forms."""

from __future__ import annotations

import math

import pytest
from scipy.special import betainc, betaincinv

from outfield.scores.beta import beta_cdf, beta_quantile

SHAPES = [
    (1, 1),
    (2, 1),
    (1, 50_000),
    (19, 1),
    (950, 51),
    (9_501, 500),
    (475_001, 25_000),
    (3, 1_000),
    (0.5, 0.5),
    (7, 3),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_agrees_with_scipy(a, b):
    for share in (1e-6, 0.05, 0.3, 0.5, 0.95, 1 - 1e-6):
        x = beta_quantile(a, b, share)
        assert x == pytest.approx(betaincinv(a, b, share), rel=1e-9)
        assert beta_cdf(a, b, x) == pytest.approx(betainc(a, b, x), rel=1e-9)


def test_closed_forms():
    for n in (1, 2, 10):
        assert beta_cdf(n, 1, 0.7) == pytest.approx(0.7**n, rel=1e-12)
        assert beta_cdf(1, n, 0.7) == pytest.approx(1 - 0.3**n, rel=1e-12)
    assert beta_cdf(0.5, 0.5, 0.2) == pytest.approx(2 / math.pi * math.asin(math.sqrt(0.2)), rel=1e-12)


def test_the_ends_are_the_ends():
    assert [beta_quantile(3, 4, share) for share in (0.0, 1.0)] == [0.0, 1.0]
    assert [beta_cdf(3, 4, x) for x in (-1.0, 0.0, 1.0, 2.0)] == [0.0, 0.0, 1.0, 1.0]
