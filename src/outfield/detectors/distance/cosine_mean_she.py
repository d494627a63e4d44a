"""Detectors of class means: CosineMean and SHE."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.detectors.base import Batch, Detector
from outfield.detectors.distance.kde_nnguide_relation import directions
from outfield.detectors.registry import register
from outfield.features import FeatureSource, normalise


@register
class CosineMean(Detector):
    """Cosine to the nearest class mean (Mensink et al. 2013).

    score = 1 − max_c cos(z, μ_c), with μ_c the mean of the normalised training features of class c: the nearest class mean as a
    measure of novelty. One minus it, so that rows that lie close to a mean keep their order.

    Args:
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        directions_: μ_c / ‖μ_c‖ of every class that was seen (K', D), float64.
    """

    fit_needs = ("labels",)
    fits_in_pieces = True
    learned = ("directions float64 K D",)

    def __init__(self, field: str = "features") -> None:
        self.field = field

    def _fit(self, train: FeatureSource) -> None:
        sums = ClassSums(train.shapes["features"][1], self.device)
        for features, labels in self._read(train, "features", "labels"):
            sums.add(directions(normalise(features)), labels)
        self.directions_ = directions(sums.means()[1])

    def _score(self, batch: Batch) -> Tensor:
        z = directions(normalise(batch["features"]))
        return 1 - (z @ self.directions_.T).amax(1)


@register
class SHE(Detector):
    """Simplified Hopfield energy of the predicted class's pattern (Zhang et al. 2023).

    score = −f · μ_c, with f the features as they come, c the class of the largest logit, and μ_c the mean feature of the training
    rows of class c that are classified right. Where none is, it is the mean of all rows of the class; a class without rows
    has the pattern 0. The length of a feature counts: OOD features are shorter, in most networks.

    Args:
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        patterns_: μ_c of every class (K, D), float64.
    """

    fit_needs = ("labels", "logits")
    score_needs = ("features", "logits")
    fits_in_pieces = True
    learned = ("patterns float64 K D",)

    def __init__(self, field: str = "features") -> None:
        self.field = field

    def _fit(self, train: FeatureSource) -> None:
        width, classes = train.shapes["features"][1], train.shapes["logits"][1]
        everything, right = ClassSums(width, self.device), ClassSums(width, self.device)
        for features, labels, logits in self._read(train, "features", "labels", "logits"):
            hit = logits.argmax(1) == labels
            everything.add(features, labels)
            right.add(features[hit], labels[hit])
        self.patterns_ = torch.zeros(classes, width, dtype=torch.float64, device=self.device)
        for seen, means in (everything.means(), right.means()):
            self.patterns_[seen] = means

    def _widths(self) -> dict[str, int | None]:
        return {**super()._widths(), "logits": len(self.patterns_)}

    def _score(self, batch: Batch) -> Tensor:
        own = self.patterns_[batch["logits"].argmax(1)]
        return -(batch["features"].double() * own).sum(1)


class ClassSums:
    """Gathers the sum of the rows (n, D) of each class; memory grows with the number of classes, not of rows."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.classes = torch.empty(0, dtype=torch.int64, device=device)
        self.counts = torch.empty(0, dtype=torch.int64, device=device)
        self.sums = torch.empty(0, width, dtype=torch.float64, device=device)

    def add(self, rows: Tensor, classes: Tensor) -> None:
        """Take one piece: rows (n, D), their classes (n,), perhaps none."""
        seen = torch.cat([self.classes, classes])
        self.classes, place = seen.unique(return_inverse=True)
        counts = torch.cat([self.counts, torch.ones_like(classes)])
        sums = torch.cat([self.sums, rows.double()])
        self.counts = counts.new_zeros(len(self.classes)).index_add_(0, place, counts)
        self.sums = sums.new_zeros(len(self.classes), sums.shape[1]).index_add_(0, place, sums)

    def means(self) -> tuple[Tensor, Tensor]:
        """The classes that were seen (K',), int64, ascending, and the mean of the rows of each (K', D), float64."""
        return self.classes, self.sums / self.counts[:, None]
