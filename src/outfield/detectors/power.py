"""The power transform of Yeo & Johnson 2000, which brings a column of numbers nearer to a normal distribution.

ψ(x, λ) = ((1 + x)^λ − 1) / λ for x ≥ 0 and −((1 − x)^(2 − λ) − 1) / (2 − λ) for x < 0, with the logarithms log(1 + x) at λ = 0
and −log(1 − x) at λ = 2. λ = 1 changes nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FARTHEST = 10.0
"""Powers are looked for between −FARTHEST and FARTHEST."""
STEPS = 45
"""Of the search: 20 · 0.618^45 is 8e-9."""
COLUMNS = 32
"""Columns looked at together."""
GOLDEN = (math.sqrt(5) - 1) / 2


def powered(x: Tensor, powers: Tensor) -> Tensor:
    """ψ(x, λ) of numbers (N, D) with a power λ for each column (D,)."""
    return _from_logarithms(x.abs().log1p(), x < 0, powers)


def _from_logarithms(logarithms: Tensor, negative: Tensor, powers: Tensor) -> Tensor:
    """ψ from log(1 + |x|), and which x are negative: (exp(a log(1 + |x|)) − 1) / a with the sign of x, a being λ or 2 − λ."""
    a = torch.where(negative, 2 - powers, powers)
    sizes = torch.where(a == 0, logarithms, torch.expm1(a * logarithms) / torch.where(a == 0, 1.0, a))
    return torch.where(negative, -sizes, sizes)


def best_powers(x: Tensor) -> Tensor:
    """For each column of numbers (N, D), float64, the power (D,) that makes it most likely as a normal sample.

    The log-likelihood −N/2 log var ψ(x, λ) + (λ − 1) Σ sign(x) log(1 + |x|) is concave in λ (Marchand et al. 2022), so that a
    golden-section search finds its maximum. 1 for a column whose numbers are all equal.
    """
    return torch.cat([_best(columns) for columns in x.split(COLUMNS, dim=1)])


def _best(x: Tensor) -> Tensor:
    logarithms, negative = x.abs().log1p(), x < 0
    slope = torch.where(negative, -logarithms, logarithms).sum(0)

    def likelihood(powers: Tensor) -> Tensor:
        variance = _from_logarithms(logarithms, negative, powers).var(dim=0, correction=0)
        return (powers - 1) * slope - 0.5 * len(x) * variance.log()

    low, high = torch.full_like(slope, -FARTHEST), torch.full_like(slope, FARTHEST)
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = likelihood(left), likelihood(right)
    for _ in range(STEPS):
        lower = at_left > at_right  # the maximum lies left of ``right``
        low, high = torch.where(lower, low, left), torch.where(lower, right, high)
        kept, at_kept = torch.where(lower, left, right), torch.where(lower, at_left, at_right)
        new = torch.where(lower, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        at_new = likelihood(new)
        left, right = torch.where(lower, new, kept), torch.where(lower, kept, new)
        at_left, at_right = torch.where(lower, at_new, at_kept), torch.where(lower, at_kept, at_new)
    constant = (x == x[:1]).all(0)
    return torch.where(constant, 1.0, (low + high) / 2)
