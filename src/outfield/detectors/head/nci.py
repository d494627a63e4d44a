"""How near the centred feature is to the weights of its class, and how large it is (Liu & Qin 2025)."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.head.last_layer import HeadDetector, lengths
from outfield.detectors.registry import register
from outfield.features import FeatureSource

TINY = torch.finfo(torch.float64).tiny


@register
class NCI(HeadDetector):
    """Nearness of the centred feature to its class's weights, as neural collapse has it (Liu & Qin 2025).

    score = −w_c·(f − μ) / ‖f − μ‖ − α ‖f‖₁, with c = argmax (W f + b) and μ the mean training feature.

    OpenOOD has the same formula and chooses α among 0.0001, 0.001, 0.01 and 0.1 on OOD validation data; the default here is
    the one that its settings name, for all data.

    Args:
        alpha: α, the weight of the feature's size.

    Attributes:
        mean_: μ (D,), float64.
    """

    learned = (*HeadDetector.learned, "mean float64 D")

    mean_: Tensor

    def __init__(self, alpha: float = 1e-4) -> None:
        self.alpha = alpha

    def _check_settings(self) -> None:
        require_number("alpha", self.alpha, above=0)

    def _learn(self, train: FeatureSource) -> None:
        self.mean_ = self._mean(train)

    def _score_features(self, features: Tensor) -> Tensor:
        away = features - self.mean_
        of_class = self.weight_[self._logits(features).argmax(1)]
        nearness = (of_class * away).sum(1) / lengths(away).clamp_min(TINY)
        return -nearness - float(self.alpha) * features.abs().sum(1)
