"""Feature shapers that look at a row's largest activations: ASH, SCALE and LTS."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_choice
from outfield.detectors.base import Detector
from outfield.detectors.head.last_layer import Shaper
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import EnergyLogits
from outfield.detectors.registry import register

KINDS = ("B", "S", "P")
# ratios are cut off here, far above those of any network, so that their exponential is finite in float64
MOST_RATIO = 500.0


class Sharpener(Shaper):
    """Base of the shapers that look at the k largest activations of a row, k = D − round(D · percentile / 100), at least 1."""

    percentile: float

    def _kept(self, width: int) -> int:
        return max(1, width - round(width * float(self.percentile) / 100))

    def _largest(self, features: Tensor) -> Tensor:
        """Where (n, D) the k largest activations of each row are; of equal ones the first count, on every device."""
        order = features.argsort(descending=True, stable=True)[:, : self._kept(features.shape[1])]
        return torch.zeros_like(features, dtype=torch.bool).scatter(1, order, True)

    def _ratio(self, features: Tensor) -> Tensor:
        """r = Σ_i f_i / Σ_{i largest} f_i (n, 1) of the positive parts of the features; 1 for a row without any."""
        positive = features.relu()
        top = positive.topk(self._kept(features.shape[1])).values.sum(1, keepdim=True)
        ratio = torch.where(top > 0, positive.sum(1, keepdim=True) / top, 1.0)
        return ratio.clamp_max(MOST_RATIO)


@register
class ASH(Sharpener):
    """Logits of the largest activations alone, reshaped (Djurisic et al. 2023).

    score = detector(W f′ + b), where f′ is 0 but for the k largest activations of the row. Those become

    - "B": Σ_i f_i / k each, the sum over the whole row;
    - "S": f_i · exp(r), with r = Σ_i f_i / Σ_{i largest} f_i, of the positive parts;
    - "P": what they were.

    Args:
        kind: "B", "S" or "P", the authors' ASH-B, ASH-S and ASH-P. OpenOOD runs ASH-B.
        percentile: Share of the activations, in percent, that is dropped: k = D − round(D · percentile / 100), at least 1.
        detector: Scores the logits: any detector that looks at logits alone; a copy of it is fitted.
    """

    def __init__(self, kind: str = "B", percentile: float = 90.0, detector: Detector = EnergyLogits()) -> None:
        self.kind, self.percentile, self.detector = kind, percentile, detector

    def _check_settings(self) -> None:
        super()._check_settings()
        require_choice("kind", self.kind, KINDS)

    def _shaped(self, features: Tensor) -> Tensor:
        largest = self._largest(features)
        if self.kind == "B":
            return largest * (features.sum(1, keepdim=True) / self._kept(features.shape[1]))
        kept = features.where(largest, 0.0)
        return kept if self.kind == "P" else kept * self._ratio(features).exp()


@register
class SCALE(Sharpener):
    """Logits of activations that are scaled by how few of them make up their sum (Xu et al. 2024).

    score = detector(W (f · exp(r)) + b), with r = Σ_i f_i / Σ_{i largest} f_i over the k largest activations of the row. Sums
    are of the positive parts, which for the output of a ReLU is the authors' formula.

    Args:
        percentile: Share of the activations, in percent, that is not among the largest: k = D − round(D · percentile / 100), at
            least 1.
        detector: Scores the logits: any detector that looks at logits alone; a copy of it is fitted.
    """

    def __init__(self, percentile: float = 85.0, detector: Detector = EnergyLogits()) -> None:
        self.percentile, self.detector = percentile, detector

    def _shaped(self, features: Tensor) -> Tensor:
        return features * self._ratio(features).exp()


@register
class LTS(Sharpener):
    """Logits that are scaled by how few activations make up their sum (Djurisic, Liu & Nikolic 2024).

    score = detector(r² (W f + b)), with r = Σ_i f_i / Σ_{i largest} f_i over the k largest activations of the row. Sums are of
    the positive parts, as the authors' code takes them.

    Args:
        percentile: Share of the activations, in percent, that is not among the largest: k = D − round(D · percentile / 100), at
            least 1.
        detector: Scores the logits: any detector that looks at logits alone; a copy of it is fitted.
    """

    def __init__(self, percentile: float = 95.0, detector: Detector = EnergyLogits()) -> None:
        self.percentile, self.detector = percentile, detector

    def _shaped_logits(self, features: Tensor) -> Tensor:
        return self._ratio(features).square() * self._logits(features)
