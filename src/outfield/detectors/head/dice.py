"""The classifier's last layer with its weak contributions left out (Sun & Li 2022)."""

from __future__ import annotations

from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Detector
from outfield.detectors.head.percentiles import percentiles
from outfield.detectors.head.shaper import Shaper
from outfield.detectors.logits.msp_odin_energy import EnergyLogits
from outfield.detectors.registry import register
from outfield.features import FeatureSource


@register
class DICE(Shaper):
    """Logits from the largest contributions of features to classes (Sun & Li 2022).

    score = detector((M ∘ W) f + b), where M keeps the weights whose mean contribution w_ki μ_i, with μ the mean training
    feature, is above a percentile of all K · D of them.

    Args:
        percentile: Share of the weights, in percent, that is left out, above 0 and at most 100.
        detector: Scores the logits: any detector that looks at logits alone; a copy of it is fitted.

    Attributes:
        weight_: M ∘ W (K, D), float64.
        bias_: b (K,), float64.
        detector_: the fitted detector of logits.
    """

    def __init__(self, percentile: float = 90.0, detector: Detector = EnergyLogits()) -> None:
        self.percentile = percentile
        self.detector = detector

    def _check_settings(self) -> None:
        super()._check_settings()
        require_number("percentile", self.percentile, above=0, most=100)

    def _learn(self, train: FeatureSource) -> None:
        contributions: Tensor = self.weight_ * self._mean(train)
        (limit,) = percentiles(lambda: [contributions], [float(self.percentile)])
        self.weight_ = self.weight_.where(contributions > limit, 0.0)
