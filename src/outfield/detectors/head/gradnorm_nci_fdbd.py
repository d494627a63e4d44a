"""Detectors of the last layer's geometry: GradNorm, NCI and fDBD."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_choice, require_number
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

    _inverse: Tensor  # 1 / ‖w_c − w_k‖ (K, K), and 0 where the weights are equal

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
            raise InputError("head_weight has one row; fDBD needs at least two classes, with a boundary between them")
        apart = torch.cdist(self.weight_, self.weight_, compute_mode="donot_use_mm_for_euclid_dist")
        self._inverse = torch.where(apart > 0, 1 / apart.clamp_min(TINY), 0.0)

    def _score_features(self, features: Tensor) -> Tensor:
        logits = self._logits(features)
        top, index = logits.max(dim=1, keepdim=True)
        distance = ((top - logits) * self._inverse[index[:, 0]]).sum(1) / (len(self.weight_) - 1)
        return -distance / lengths(features - self.centre_).clamp_min(TINY)


@register
class GradNorm(HeadDetector):
    """Size of the gradient that pulls the softmax to the uniform distribution (Huang, Geng & Li 2021).

    score = −‖∂/∂W KL(u ‖ softmax(W f + b))‖₁ = −‖f‖₁ ‖p − u‖₁, with p = softmax(W f + b) and u = 1/K.

    No gradient is computed. KL(u ‖ p) = −1/K Σ_k log p_k − log K has the derivative p_k − 1/K by the logit l_k, and l_k the
    derivative f by the row w_k; so the gradient by W is the outer product (p − u) fᵀ, whose entries' absolute values sum to
    the product of the two sums. (The authors' code leaves out the factor 1/K of the sum over classes, which changes no order.)
    """

    def _score_features(self, features: Tensor) -> Tensor:
        probabilities = self._logits(features).softmax(1)
        return -features.abs().sum(1) * (probabilities - 1 / len(self.weight_)).abs().sum(1)


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
