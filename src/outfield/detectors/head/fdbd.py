"""Distance of the feature to the classifier's decision boundaries (Liu & Qin 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_choice
from outfield.detectors.head.last_layer import HeadDetector, lengths
from outfield.detectors.registry import register
from outfield.errors import InputError
from outfield.features import FeatureSource

CENTRES = ("mean", "origin")
TINY = torch.finfo(torch.float64).tiny


@register
class fDBD(HeadDetector):  # noqa: N801  # the authors' name
    """Distance to the decision boundaries, relative to that to the mean (Liu & Qin 2024).

    score = −1 / (K − 1) Σ_{k ≠ c} (l_c − l_k) / ‖w_c − w_k‖ / ‖f − μ‖, with l = W f + b, c = argmax l, and μ the mean training
    feature: (l_c − l_k) / ‖w_c − w_k‖ is the distance of f to where the classes c and k are equally likely. Two classes with
    the same weights have no such place, and give no term.

    Args:
        centre: What μ is: "mean", as in the paper, or "origin", so that distances are divided by ‖f‖. OpenOOD takes whichever
            is better on OOD validation data.

    Attributes:
        centre_: μ (D,), float64.
    """

    learned = (*HeadDetector.learned, "centre float64 D")

    centre_: Tensor
    _inverse: Tensor
    """1 / ‖w_c − w_k‖ (K, K), and 0 where the weights are equal."""

    def __init__(self, centre: str = "mean") -> None:
        self.centre = centre

    def _check_settings(self) -> None:
        require_choice("centre", self.centre, CENTRES)

    def _learn(self, train: FeatureSource) -> None:
        mean = self._mean(train)
        self.centre_ = mean if self.centre == "mean" else torch.zeros_like(mean)
        self._moved()

    def _moved(self) -> None:
        super()._moved()
        if not hasattr(self, "centre_"):
            return
        if len(self.weight_) < 2:
            raise InputError(
                "head_weight has one row; fDBD needs a classifier of at least two classes, with a boundary between them"
            )
        apart = torch.cdist(self.weight_, self.weight_, compute_mode="donot_use_mm_for_euclid_dist")
        self._inverse = torch.where(apart > 0, 1 / apart.clamp_min(TINY), 0.0)

    def _score_features(self, features: Tensor) -> Tensor:
        logits = self._logits(features)
        top, index = logits.max(dim=1, keepdim=True)
        distance = ((top - logits) * self._inverse[index[:, 0]]).sum(1) / (len(self.weight_) - 1)
        return -distance / lengths(features - self.centre_).clamp_min(TINY)
