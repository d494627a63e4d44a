"""Mahalanobis distance to the nearest class, relative to that of the whole."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.detectors.base import Batch
from outfield.detectors.distance.ssd import MixtureDetector
from outfield.detectors.memo import once, wide
from outfield.detectors.registry import register
from outfield.energy import ClassStatistics, MixturePrior, normalise
from outfield.features import FeatureSource


@register
class RMDS(MixtureDetector):
    """Mahalanobis distance to the nearest class less that to the whole (Ren et al. 2021).

    score = min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c) − (z − μ)ᵀ S⁻¹ (z − μ), with z normalised, Σ the covariance within classes, and
    μ and S mean and covariance of all rows together: S = Σ + Σ_c π_c (μ_c − μ)(μ_c − μ)ᵀ. What all training rows share, and
    what none of them has, counts in both and cancels.

    Args:
        floor: Eigenvalues of Σ, and then of S, below ``floor`` times the largest are raised to that
            (:class:`outfield.energy.priors.MixturePrior`).
        ridge: Added to Σ, as a multiple of its mean eigenvalue, and with it to S.
        on: The field that it works on: "features", or a stage of the network such as "stage2".
    """

    _whole: MixturePrior | None = None
    """The one Gaussian of all rows, made when it is first needed."""

    def _learn(self, data: FeatureSource) -> None:
        super()._learn(data)
        self._whole = None

    def _score(self, batch: Batch) -> Tensor:
        whole = self._whole
        if whole is None:
            whole = self._whole = self._one_gaussian()
        z = once(wide, once(normalise, batch["features"]))  # two large distances may differ by little
        near, far = self.mixture_.prepared(z), whole.prepared(z)
        return near.mahalanobis_sq(z).amin(1) - far.mahalanobis_sq(z)[:, 0]

    def _one_gaussian(self) -> MixturePrior:
        """The Gaussian that has the mixture's mean and covariance."""
        known = self.mixture_.parameters_
        away = (known.means - known.mean) * known.log_weights.exp().sqrt()[:, None]
        covariance = (known.eigenvectors * known.eigenvalues) @ known.eigenvectors.T + away.T @ away
        one = torch.ones(1, dtype=torch.float64, device=known.mean.device)
        return MixturePrior(self.floor).merge(ClassStatistics(0 * one.long(), one, known.mean[None], covariance))
