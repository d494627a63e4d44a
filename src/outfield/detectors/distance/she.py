"""Agreement with the stored pattern of the predicted class."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.detectors.base import Batch, Detector
from outfield.detectors.distance.class_means import ClassSums
from outfield.detectors.registry import register
from outfield.features import FeatureSource


@register
class SHE(Detector):
    """Simplified Hopfield energy of the predicted class's pattern (Zhang et al. 2023).

    score = −f · μ_c, with f the features as they come, c the class of the largest logit, and μ_c the mean feature of the training
    rows of class c that are classified right. Where none is, it is the mean of all rows of the class; a class without rows
    has the pattern 0. The length of a feature counts: OOD features are shorter, in most networks.

    Args:
        on: The field that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        patterns_: μ_c of every class (K, D), float64.
    """

    fit_needs = ("labels", "logits")
    score_needs = ("features", "logits")
    fits_in_pieces = True
    learned = ("patterns float64 K D",)

    patterns_: Tensor

    def __init__(self, on: str = "features") -> None:
        self.on = on

    def _fit(self, train: FeatureSource) -> None:
        width, classes = train.shapes["features"][1], train.shapes["logits"][1]
        everything, right = ClassSums(width, self.device), ClassSums(width, self.device)
        for piece in train.batches(self.rows_at_once, ("features", "labels", "logits")):
            features, labels = piece["features"].to(self.device), piece["labels"].to(self.device)
            hit = piece["logits"].to(self.device).argmax(1) == labels
            everything.add(features, labels)
            right.add(features[hit], labels[hit])
        self.patterns_ = torch.zeros(classes, width, dtype=torch.float64, device=self.device)
        for seen, means in (everything.means(), right.means()):
            self.patterns_[seen] = means

    def _check_width(self, data: FeatureSource) -> None:
        super()._check_width(data)
        self._check_columns(data, "logits", len(self.patterns_))

    def _score(self, batch: Batch) -> Tensor:
        own = self.patterns_[batch["logits"].argmax(1)]
        return -(batch["features"].double() * own).sum(1)
