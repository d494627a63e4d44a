"""Feature shapers that cut activations off: ReAct and VRA."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require, require_number
from outfield.detectors.base import Detector
from outfield.detectors.head.percentiles import percentiles
from outfield.detectors.head.shaper import Shaper
from outfield.detectors.logits.msp_odin_energy import EnergyLogits
from outfield.detectors.registry import register
from outfield.features import FeatureSource


@register
class ReAct(Shaper):
    """Logits of activations that are cut off from above (Sun et al. 2021).

    score = detector(W min(f, t) + b), with t a percentile of all activations of the training features, exact (data on disk is
    read five times for it, in pieces).

    Args:
        percentile: Which percentile t is, above 0 and at most 100.
        detector: Scores the logits: any detector that looks at logits alone; a copy of it is fitted.

    Attributes:
        threshold_: t (1,), float64.
        detector_: the fitted detector of logits.
    """

    learned = (*Shaper.learned, "threshold float64 1")

    threshold_: Tensor

    def __init__(self, percentile: float = 90.0, detector: Detector = EnergyLogits()) -> None:
        self.percentile = percentile
        self.detector = detector

    def _check_settings(self) -> None:
        super()._check_settings()
        require_number("percentile", self.percentile, above=0, most=100)

    def _learn(self, train: FeatureSource) -> None:
        found = percentiles(lambda: self._pieces(train), [float(self.percentile)])
        self.threshold_ = torch.tensor(found, dtype=torch.float64, device=self.device)

    def _shaped(self, features: Tensor) -> Tensor:
        return features.minimum(self.threshold_)


@register
class VRA(Shaper):
    """Logits of activations of which low ones are dropped and high ones cut off (Xu et al. 2023).

    score = detector(W f′ + b), with f′_i = 0 where f_i < t_low, t_high where f_i > t_high, and f_i in between; both are
    percentiles of all activations of the training features, exact (data on disk is read five times for them, in pieces).
    (The defaults are OpenOOD's, which raises low activations to t_low where the paper drops them.)

    Args:
        low: Which percentile t_low is, above 0.
        high: Which percentile t_high is, above ``low`` and at most 100.
        detector: Scores the logits: any detector that looks at logits alone; a copy of it is fitted.

    Attributes:
        thresholds_: t_low and t_high (2,), float64.
        detector_: the fitted detector of logits.
    """

    learned = (*Shaper.learned, "thresholds float64 2")

    thresholds_: Tensor

    def __init__(self, low: float = 10.0, high: float = 90.0, detector: Detector = EnergyLogits()) -> None:
        self.low = low
        self.high = high
        self.detector = detector

    def _check_settings(self) -> None:
        super()._check_settings()
        require_number("high", self.high, above=0, most=100)
        require_number("low", self.low, above=0)
        require(self.low < self.high, "low", self.low, f"below high, which is {self.high}")

    def _learn(self, train: FeatureSource) -> None:
        found = percentiles(lambda: self._pieces(train), [float(self.low), float(self.high)])
        self.thresholds_ = torch.tensor(found, dtype=torch.float64, device=self.device)

    def _shaped(self, features: Tensor) -> Tensor:
        low, high = self.thresholds_
        return torch.where(features < low, 0.0, features.minimum(high))
