"""Nearest neighbours and one Gaussian of power-transformed features, in one score."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.bank import fill
from outfield.detectors.base import Batch, Detector
from outfield.detectors.neighbours import Neighbours
from outfield.detectors.once import once
from outfield.detectors.power import best_powers, powered
from outfield.detectors.registry import register
from outfield.detectors.state import take
from outfield.energy.projection import normalise
from outfield.errors import FileFormatError, TooFewSamplesError
from outfield.features.set import FeatureSet

LEAST_SQUARE = 1e-12
"""A squared distance counts as at least this: that of a training row to itself has no logarithm."""
FARTHEST = 1e100
"""Transformed values are cut off here, so that products of them stay finite."""


@register
class CombOOD(Detector):
    """Distance to the k-th neighbour with a Mahalanobis distance (Rajasekaran et al. 2024).

    score = √D log ‖z − z_(k)‖² + xᵀ (S + I)⁻¹ x, with z the normalised feature of D numbers, z_(k) its k-th nearest training
    feature, x = z standardised, transformed column by column by the power of Yeo & Johnson (2000) that makes it most nearly
    normal, and standardised again, and S the covariance of x over the training rows. No labels are used.

    The authors combine either distance with either of two kinds of features. This is their combination of the penultimate
    features with themselves, and so not the row of their tables: there x holds the smallest and largest activation in front of
    every ReLU, which no field of a FeatureSet has.

    Args:
        k: which neighbour, at most the number of training rows.
        on: The field that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        bank_: normalised training features (N, D), float32.
        centre_: mean of z (D,), float64, as all that follow.
        scale_: its standard deviation (D,), 1 where it is 0.
        powers_: the powers (D,), from −10 to 10.
        mean_: mean of the transformed z (D,).
        whitening_: A (D, D) with xᵀ (S + I)⁻¹ x = ‖A (transformed z − mean)‖².
    """

    bank_: Tensor
    centre_: Tensor
    scale_: Tensor
    powers_: Tensor
    mean_: Tensor
    whitening_: Tensor

    _neighbours: Neighbours | None = None
    """Made when it is first needed, on the device."""

    def __init__(self, k: int = 50, on: str = "features") -> None:
        self.k = k
        self.on = on

    def _check_settings(self) -> None:
        require_number("k", self.k, least=1, whole=True)

    def _fit(self, train: FeatureSet) -> None:
        if max(2, self.k) > len(train):
            raise TooFewSamplesError(
                f"k is {self.k} but there are only {len(train)} training samples; lower k, or give at least two samples"
            )
        bank = torch.empty(train.shapes["features"], dtype=torch.float32, device=self.device)
        self.bank_ = fill(bank, train, "features", self.rows_at_once, normalise)
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
        self._moved()

    def _transformed(self, standardised: Tensor) -> Tensor:
        return powered(standardised, self.powers_).clamp(-FARTHEST, FARTHEST)

    def _score(self, batch: Batch) -> Tensor:
        found = self._neighbours
        if found is None:
            found = self._neighbours = Neighbours(self.bank_)
        z = once(normalise, batch["features"])
        squares = found.kth_distance(z, int(self.k)).double().square()
        x = self._transformed((z.double() - self.centre_) / self.scale_) - self.mean_
        mahalanobis_sq = (x @ self.whitening_.T).square().sum(1)
        return math.sqrt(z.shape[1]) * squares.clamp_min(LEAST_SQUARE).log() + mahalanobis_sq

    def _moved(self) -> None:
        self._neighbours = None
        for name, value in self.__dict__.items():
            if isinstance(value, Tensor):
                self.__dict__[name] = value.to(self.device)

    def _state(self) -> dict[str, Tensor]:
        names = ("bank", "centre", "scale", "powers", "mean", "whitening")
        return {name: getattr(self, f"{name}_") for name in names}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        self.bank_ = take(state, "bank", (None, self._width))
        if self.k > len(self.bank_):
            raise FileFormatError(f"k is {self.k}, but bank has {len(self.bank_)} rows")
        for name in ("centre", "scale", "powers", "mean"):
            setattr(self, f"{name}_", take(state, name, (self._width,), torch.float64))
        if not bool((self.scale_ > 0).all()):
            raise FileFormatError("scale has entries that are not above 0")
        self.whitening_ = take(state, "whitening", (self._width, self._width), torch.float64)
        self._moved()


def _spread(rows: Tensor) -> Tensor:
    """Standard deviation of each column, 1 where it is 0."""
    found = rows.std(dim=0, correction=0)
    return torch.where(found > 0, found, 1.0)
