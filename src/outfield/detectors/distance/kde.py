"""Density of directions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch
from outfield.detectors.distance.bank import BankDetector, cosines
from outfield.detectors.registry import register


@register
class KDE(BankDetector):
    """Kernel density of the directions of features (Hall et al. 1987).

    score = −log mean_i exp(κ (cos(z, z_i) − 1)) over all training features z_i: minus the logarithm of a density on the sphere
    with von Mises–Fisher kernels, up to a constant. It is 0 where all training features have the direction of z.

    Args:
        kappa: κ, the concentration of a kernel; its width is about 1 / √κ.
        on: The field that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        bank_: normalised training features (N, D), float32.
    """

    def __init__(self, kappa: float = 100.0, on: str = "features") -> None:
        self.kappa, self.on = kappa, on

    def _check_settings(self) -> None:
        require_number("kappa", self.kappa, above=0)

    def _score(self, batch: Batch) -> Tensor:
        total = torch.full((len(batch["features"]),), -torch.inf, dtype=torch.float64, device=self.device)
        for _, table in cosines(batch["features"], self.bank_):
            total = torch.logaddexp(total, (float(self.kappa) * (table - 1)).logsumexp(1))
        return math.log(len(self.bank_)) - total
