"""Detectors that are the mixture itself: SSD (distance to the nearest class) and the mixture's energy."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor

from outfield.detectors.base import Batch, Detector, register
from outfield.features import FeatureSet
from outfield.gaussian import MixturePrior
from outfield.projection import normalise


class MixtureDetector(Detector):
    """Base of the detectors that need only the mixture.

    Args:
        floor: see :class:`outfield.gaussian.MixturePrior`.

    Attributes:
        mixture_: the fitted mixture of the L2-normalised features.
    """

    fit_needs = ("labels",)

    def __init__(self, floor: float = 1e-6) -> None:
        self.floor = floor
        self.mixture_ = MixturePrior(floor)

    def partial_fit(self, batch: FeatureSet) -> Self:
        """Learn from one more batch of ID training data; for features larger than memory."""
        self._accept(batch, self.fit_needs, "partial_fit")
        self._check_width(batch)
        self._learn(batch)
        return self._now_fitted(batch)

    def _fit(self, train: FeatureSet) -> None:
        self.mixture_ = MixturePrior(self.floor)
        self._learn(train)

    def _learn(self, data: FeatureSet) -> None:
        for piece in data.batches(2 * self.rows_at_once):
            self.mixture_.partial_fit(normalise(piece["features"].to(self.device)), piece["labels"])

    def _state(self) -> dict[str, Tensor]:
        return self.mixture_.state()

    def _load_state(self, state: dict[str, Any]) -> None:
        self.mixture_ = MixturePrior(self.floor).load_state(state)


@register
class SSD(MixtureDetector):
    """Mahalanobis distance on normalised features (Lee et al. 2018, Sehwag et al. 2021).

    score = min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c).
    """

    def _score(self, batch: Batch) -> Tensor:
        return self.mixture_.mahalanobis_sq(normalise(batch["features"])).amin(1)


@register
class GaussianMixture(MixtureDetector):
    """Energy of the mixture of Gaussians ("ours without energy" in the paper).

    score = −log Σ_c π_c exp(−½ (z − μ_c)ᵀ Σ⁻¹ (z − μ_c)).
    """

    def _score(self, batch: Batch) -> Tensor:
        return self.mixture_.energy(normalise(batch["features"]))
