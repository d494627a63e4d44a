"""Density of directions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.bank import cosines, fill
from outfield.detectors.base import Batch, Detector
from outfield.detectors.registry import register
from outfield.detectors.state import take
from outfield.energy.projection import normalise
from outfield.features.set import FeatureSource


@register
class KDE(Detector):
    """Kernel density of the directions of features (Hall et al. 1987).

    score = −log mean_i exp(κ (cos(z, z_i) − 1)) over all training features z_i: minus the logarithm of a density on the sphere
    with von Mises–Fisher kernels, up to a constant. It is 0 where all training features have the direction of z.

    Args:
        kappa: κ, the concentration of a kernel; its width is about 1 / √κ.
        on: The field that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        bank_: normalised training features (N, D), float32.
    """

    fits_in_pieces = True

    bank_: Tensor

    def __init__(self, kappa: float = 100.0, on: str = "features") -> None:
        self.kappa = kappa
        self.on = on

    def _check_settings(self) -> None:
        require_number("kappa", self.kappa, above=0)

    def _fit(self, train: FeatureSource) -> None:
        bank = torch.empty(train.shapes["features"], dtype=torch.float32, device=self.device)
        self.bank_ = fill(bank, train, "features", self.rows_at_once, normalise)

    def _moved(self) -> None:
        if hasattr(self, "bank_"):
            self.bank_ = self.bank_.to(self.device)

    def _score(self, batch: Batch) -> Tensor:
        total = torch.full((len(batch["features"]),), -torch.inf, dtype=torch.float64, device=self.device)
        for _, table in cosines(batch["features"], self.bank_):
            total = torch.logaddexp(total, (float(self.kappa) * (table - 1)).logsumexp(1))
        return math.log(len(self.bank_)) - total

    def _state(self) -> dict[str, Tensor]:
        return {"bank": self.bank_}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        self.bank_ = take(state, "bank", (None, self._width)).to(self.device)
