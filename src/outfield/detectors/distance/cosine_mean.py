"""Angle to the nearest class mean."""

from __future__ import annotations

from torch import Tensor

from outfield.detectors.base import Batch, Detector
from outfield.detectors.distance.class_means import ClassSums
from outfield.detectors.distance.cosines import directions
from outfield.detectors.memo import once
from outfield.detectors.registry import register
from outfield.energy import normalise
from outfield.features import FeatureSource


@register
class CosineMean(Detector):
    """Cosine to the nearest class mean (Mensink et al. 2013).

    score = 1 − max_c cos(z, μ_c), with μ_c the mean of the normalised training features of class c: the nearest class mean as a
    measure of novelty. One minus it, so that rows that lie close to a mean keep their order.

    Args:
        on: The field that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        directions_: μ_c / ‖μ_c‖ of every class that was seen (K', D), float64.
    """

    fit_needs = ("labels",)
    fits_in_pieces = True
    learned = ("directions float64 K D",)

    directions_: Tensor

    def __init__(self, on: str = "features") -> None:
        self.on = on

    def _fit(self, train: FeatureSource) -> None:
        sums = ClassSums(train.shapes["features"][1], self.device)
        for piece in train.batches(self.rows_at_once, ("features", "labels")):
            sums.add(directions(normalise(piece["features"].to(self.device))), piece["labels"].to(self.device))
        self.directions_ = directions(sums.means()[1])

    def _score(self, batch: Batch) -> Tensor:
        z = once(directions, once(normalise, batch["features"]))
        return 1 - (z @ self.directions_.T).amax(1)
