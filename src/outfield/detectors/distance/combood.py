"""Nearest neighbours and one Gaussian of power-transformed features, in one score."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outfield.detectors.base import Batch
from outfield.detectors.distance.neighbours import BankDetector
from outfield.detectors.registry import register
from outfield.errors import TooFewSamplesError
from outfield.features import FeatureSource, normalise

LEAST_SQUARE = 1e-12  # a squared distance counts as at least this: that of a training row to itself has no logarithm
FARTHEST = 1e100  # transformed values are cut off here, so that products of them stay finite
LARGEST_POWER = 10.0  # powers are looked for between −LARGEST_POWER and LARGEST_POWER
STEPS = 45  # of the search: 20 · 0.618^45 is 8e-9
COLUMNS = 32  # columns looked at together
GOLDEN = (math.sqrt(5) - 1) / 2


@register
class CombOOD(BankDetector):
    """Distance to the k-th neighbour with a Mahalanobis distance (Rajasekaran et al. 2024).

    score = √D log ‖z − z_(k)‖² + xᵀ (S + I)⁻¹ x, with z the normalised feature of D numbers, z_(k) its k-th nearest training
    feature, x = z standardised, transformed column by column by the power of Yeo & Johnson (2000) that makes it most nearly
    normal, and standardised again, and S the covariance of x over the training rows. No labels are used.

    The authors combine either distance with either of two kinds of features. This is their combination of the penultimate
    features with themselves, and so not the row of their tables: there x holds the smallest and largest activation in front of
    every ReLU, which no field of a FeatureSet has.

    Args:
        k: which neighbour, at most the number of training rows.
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        bank_: normalised training features (N, D), float32.
        centre_: mean of z (D,), float64, as all that follow.
        scale_: its standard deviation (D,), 1 where it is 0.
        powers_: the powers (D,), from −10 to 10.
        mean_: mean of the transformed z (D,).
        whitening_: A (D, D) with xᵀ (S + I)⁻¹ x = ‖A (transformed z − mean)‖².
    """

    learned = (
        *BankDetector.learned,
        *("centre float64 D", "scale float64+ D", "powers float64 D", "mean float64 D", "whitening float64 D D"),
    )
    whitening_: Tensor

    def __init__(self, k: int = 50, field: str = "features") -> None:
        self.k, self.field = k, field

    def _fit(self, train: FeatureSource) -> None:
        if max(2, self.k) > len(train):
            what = f"k is {self.k} but there are only {len(train)} training samples"
            raise TooFewSamplesError(f"{what}; two are the least")
        super()._fit(train)
        z = self.bank_.double()
        self.centre_, self.scale_ = z.mean(0), _spread(z)
        z = (z - self.centre_) / self.scale_
        self.powers_ = best_powers(z)
        z = self._transformed(z)
        self.mean_, spread = z.mean(0), _spread(z)
        z = (z - self.mean_) / spread
        covariance = z.T @ z / (len(z) - 1) + torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
        root = torch.linalg.cholesky(covariance)
        self.whitening_ = torch.linalg.solve_triangular(root, torch.diag(1 / spread), upper=False)

    def _transformed(self, standardised: Tensor) -> Tensor:
        return powered(standardised, self.powers_).clamp(-FARTHEST, FARTHEST)

    def _score(self, batch: Batch) -> Tensor:
        z = normalise(batch["features"])
        squares = self._neighbours.kth_distance(z, int(self.k)).double().square()
        x = self._transformed((z.double() - self.centre_) / self.scale_) - self.mean_
        mahalanobis_sq = (x @ self.whitening_.T).square().sum(1)
        return math.sqrt(z.shape[1]) * squares.clamp_min(LEAST_SQUARE).log() + mahalanobis_sq


def _spread(rows: Tensor) -> Tensor:
    """Standard deviation of each column, 1 where it is 0."""
    found = rows.std(dim=0, correction=0)
    return torch.where(found > 0, found, 1.0)


def powered(x: Tensor, powers: Tensor) -> Tensor:
    """ψ(x, λ) of numbers (N, D) with a power λ for each column (D,), the transform of Yeo & Johnson 2000.

    ψ(x, λ) = ((1 + x)^λ − 1) / λ for x ≥ 0 and −((1 − x)^(2 − λ) − 1) / (2 − λ) for x < 0, with the logarithms log(1 + x) at
    λ = 0 and −log(1 − x) at λ = 2. λ = 1 changes nothing.
    """
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

    low, high = torch.full_like(slope, -LARGEST_POWER), torch.full_like(slope, LARGEST_POWER)
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
