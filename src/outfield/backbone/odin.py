"""ODIN's perturbation of images: a small step that makes the classifier more certain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outfield.config import configurable, require_number
from outfield.errors import InputError

GRADIENT_SCALE = 256.0
"""The objective of ODIN is multiplied by this, so that gradients in half precision do not vanish; their sign is the same."""


@configurable
@dataclass(frozen=True)
class Odin:
    """ODIN's perturbation of an image x, normalised as the network takes it (Liang et al. 2018).

    x̃ = x + ε sign(∇ₓ log S(x; T)),  S(x; T) = max_c softmax(l(x) / T)_c

    Args:
        temperature: T.
        epsilon: ε.
    """

    temperature: float = 1000.0
    epsilon: float = 0.0014

    def __post_init__(self) -> None:
        require_number("temperature", self.temperature, above=0)
        require_number("epsilon", self.epsilon, least=0)

    def perturb(self, images: Tensor, logits: Tensor) -> Tensor:
        """x̃ (N, 3, H, W) of the images (N, 3, H, W), from which the logits (N, K) were computed with gradients.

        Raises:
            InputError: the logits do not depend on the images in a way that can be differentiated.
        """
        # log S times T, which leaves its sign: at T = 1000 the gradient of log S itself is too small for half precision.
        objective = self.temperature * (logits.float() / self.temperature).log_softmax(1).max(1).values
        gradient = None
        if objective.requires_grad:
            (gradient,) = torch.autograd.grad(GRADIENT_SCALE * objective.sum(), images, allow_unused=True)
        if gradient is None:
            raise InputError(
                "ODIN needs the gradient of the logits with respect to the images, which this network does not give: it cuts it "
                "off, as torch.no_grad or detach do"
            )
        return images.detach() + self.epsilon * gradient.sign()
