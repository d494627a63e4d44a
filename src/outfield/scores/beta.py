"""Quantiles of the Beta distribution, for intervals of a share: P(X ≤ x) = I_x(a, b), the incomplete beta function."""

from __future__ import annotations

import math

TINY = 1e-300
ENOUGH = 1e-15
"""Relative change at which the continued fraction has converged."""


def beta_cdf(a: float, b: float, x: float) -> float:
    """P(X ≤ x) for X ~ Beta(a, b), a, b > 0.

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
