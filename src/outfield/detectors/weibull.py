"""Weibull's distribution of distances, F(x) = 1 − exp(−(x / scale)^shape), fitted by maximum likelihood."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.detectors.roots import increasing_root

SHAPES = (1e-2, 1e4)
"""Between these the shape is sought: values that are all but equal have no finite one."""
SMALLEST = 1e-12
"""Values below this share of the largest count as that much."""


def fit_weibull(values: Tensor) -> tuple[float, float]:
    """Scale and shape of largest likelihood.

    With y = log(x / max x) the shape k is the root of

        Σ exp(k y) y / Σ exp(k y) − 1 / k − mean y,

    which increases in k, and scale = max x · (mean exp(k y))^(1/k).

    Args:
        values: x (n,), float64, at least 0 and one of them above.
    """
    largest = values.max()
    y = (values / largest).clamp_min(SMALLEST).log()
    mean = float(y.mean())

    def equation(k: float) -> tuple[float, float]:
        weights = (k * y).softmax(0)
        centre = float((weights * y).sum())
        return centre - 1 / k - mean, float((weights * (y - centre).square()).sum()) + k**-2

    shape = increasing_root(equation, *SHAPES)
    return float(largest * (shape * y).exp().mean() ** (1 / shape)), shape


def weibull_cdf(x: Tensor, scale: Tensor, shape: Tensor) -> Tensor:
    """F(x) of distances x, at least 0; the three are broadcast."""
    return -torch.expm1(-((x / scale) ** shape))
