"""Base of the detectors that use the classifier's last layer, logits = W f + b."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from outfield.detectors.base import LARGEST, Batch, Detector
from outfield.detectors.memo import once
from outfield.features import HEAD, FeatureSource, head_of


def within_range(values: Tensor) -> Tensor:
    """The values as float64, cut off at float32's range, so that products and squares of them stay finite."""
    return values.double().clamp(-LARGEST, LARGEST)


def lengths(rows: Tensor) -> Tensor:
    """‖x‖ (n,) of each row (n, D)."""
    found: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return found


class HeadDetector(Detector):
    """A detector that learns the classifier's last layer, and perhaps more; a subclass says what, and how rows are scored.

    Features are taken as they come, since the layer was trained on them so: nothing is normalised. All numbers are float64,
    cut off at float32's range.

    Attributes:
        weight_: W (K, D), float64.
        bias_: b (K,), float64.
    """

    weight_: Tensor
    bias_: Tensor

    fit_needs = (HEAD,)
    fits_in_pieces = True
    learned: ClassVar[tuple[str, ...]] = ("weight float64 K D", "bias float64 K")

    def _fit(self, train: FeatureSource) -> None:
        head = head_of(train)
        self.weight_ = within_range(head.weight).to(self.device)
        self.bias_ = within_range(head.bias).to(self.device)
        self._learn(train)

    def _learn(self, train: FeatureSource) -> None:
        """Learn the rest; the layer is there already."""

    def _pieces(self, train: FeatureSource) -> Iterator[Tensor]:
        """The training features (n, D) piece by piece, as scoring will see them."""
        for piece in train.batches(self.rows_at_once, ("features",)):
            yield within_range(piece["features"].to(self.device))

    def _mean(self, train: FeatureSource) -> Tensor:
        """The mean training feature (D,)."""
        total = torch.zeros(self.weight_.shape[1], dtype=torch.float64, device=self.device)
        for features in self._pieces(train):
            total += features.sum(0)
        return total / len(train)

    def _logits(self, features: Tensor) -> Tensor:
        """W f + b (n, K) of features (n, D)."""
        return features @ self.weight_.T + self.bias_

    def _score(self, batch: Batch) -> Tensor:
        return self._score_features(once(within_range, batch["features"]))

    @abstractmethod
    def _score_features(self, features: Tensor) -> Tensor:
        """Scores (n,) of features (n, D), float64 on ``self.device``."""
