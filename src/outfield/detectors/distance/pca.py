"""What is left of a feature outside the directions in which training features vary."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch, Detector, once, wide
from outfield.detectors.distance.ssd_mixture_rmds import statistics_of
from outfield.detectors.registry import register
from outfield.features import FeatureSource, normalise
from outfield.modes import on_one_core


@register
class PCA(Detector):
    """Reconstruction error of the leading principal components (Guan et al. 2023).

    score = ‖U (z − μ)‖, with z normalised, μ the mean of the training features, and the rows of U an orthonormal basis of the
    directions outside the leading components: the fewest that hold ``share`` of the variance. At least one direction is
    outside.

    Args:
        share: Share of the variance that the leading components hold.
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        mean_: μ (D,), float64.
        outside_: U (D − m, D), float64.
    """

    fits_in_pieces = True
    learned = ("mean float64 D", "outside float64 O D")

    def __init__(self, share: float = 0.95, field: str = "features") -> None:
        self.share, self.field = share, field

    def _check_settings(self) -> None:
        require_number("share", self.share, above=0, most=1)

    def _fit(self, train: FeatureSource) -> None:
        found, width = statistics_of(train, self.device, labelled=False), train.shapes["features"][1]
        values, vectors = on_one_core(lambda: torch.linalg.eigh((found.scatter + found.scatter.T) / 2))
        self.mean_ = found.means[0]
        self.outside_ = vectors[:, : width - self._components(values)].T.contiguous()

    def _components(self, values: Tensor) -> int:
        """How many of the largest eigenvalues hold the share."""
        held = values.cpu().flip(0).clamp_min(0).cumsum(0)  # on a GPU its sum would depend on chance
        return min(int((held < float(self.share) * held[-1]).sum()) + 1, len(values) - 1)

    def _score(self, batch: Batch) -> Tensor:
        z = once(wide, once(normalise, batch["features"])) - self.mean_
        left: Tensor = torch.linalg.vector_norm(z @ self.outside_.T, dim=1)
        return left
