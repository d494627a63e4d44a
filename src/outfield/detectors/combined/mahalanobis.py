"""Mahalanobis distances of several layers as one score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outfield.config import require, require_number
from outfield.detectors.base import Detector
from outfield.detectors.combined.members import ComposedDetector
from outfield.detectors.distance.ssd import SSD
from outfield.detectors.registry import register
from outfield.energy import MixturePrior
from outfield.features import spaces

EQUAL = "equal"


@register
class Mahalanobis(ComposedDetector):
    """Mahalanobis distances of several layers, added up (Lee et al. 2018).

    score = Σ_l w_l t_l, where t_l is min_c (z_l − μ_lc)ᵀ Σ_l⁻¹ (z_l − μ_lc) for the rows z_l of layer l, with class means and one
    covariance for each layer (:class:`outfield.SSD`), less its mean and over its standard deviation on the training rows.

    Lee et al. learn w_l by logistic regression on OOD or adversarial samples. There are only ID rows here, so that every layer
    counts the same unless weights are given. Rows are normalised to length 1, as SSD does and Lee et al. do not. Their input
    perturbation belongs to the extraction of features: :class:`outfield.Perturb`.

    Args:
        layers: the fields, "features" and stages such as "stage2"; by default the blocks of a ResNet.
        weights: w_l, one number from 0 on for each layer, or "equal" for 1 each.
        floor: see :class:`outfield.energy.priors.MixturePrior`.
        ridge: see there too.
    """

    def __init__(
        self,
        layers: Sequence[str] = ("features", "stage1", "stage2", "stage3"),
        weights: str | Sequence[float] = EQUAL,
        floor: float = 1e-6,
        ridge: float = 0.0,
    ) -> None:
        self.layers = layers
        self.weights = weights
        self.floor = floor
        self.ridge = ridge

    def _check_settings(self) -> None:
        good = isinstance(self.layers, tuple | list) and len(self.layers) > 0
        good = good and all(isinstance(name, str) and name in spaces() for name in self.layers)
        good = good and len({*self.layers}) == len(self.layers)
        require(good, "layers", self.layers, f"a list of different fields among {', '.join(spaces())}")
        if not self._is_equal():
            numbers = isinstance(self.weights, tuple | list) and len(self.weights) == len(self.layers)
            require(numbers, "weights", self.weights, f"{EQUAL!r} or a list of {len(self.layers)} numbers, one a layer")
            for weight in self.weights:
                require_number("weights", weight, least=0)
        MixturePrior(self.floor, self.ridge)  # which says what they must be

    def _is_equal(self) -> bool:
        return isinstance(self.weights, str) and self.weights == EQUAL

    def _recipe(self) -> Sequence[Detector]:
        return tuple(SSD(self.floor, on=name, ridge=self.ridge) for name in self.layers)

    def _combine(self, terms: Tensor) -> Tensor:
        if self._is_equal():
            return terms.sum(1)
        weights = [float(weight) for weight in self.weights]
        return terms @ torch.tensor(weights, dtype=terms.dtype, device=terms.device)
