"""Size of the gradient at the classifier's last layer (Huang, Geng & Li 2021), without any backward pass."""

from __future__ import annotations

from torch import Tensor

from outfield.detectors.head.last_layer import HeadDetector
from outfield.detectors.registry import register


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
