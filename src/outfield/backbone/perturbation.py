"""Perturbation of images along a gradient: ODIN's, which makes the classifier more certain, and that of a detector's score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outfield.config import configurable, require, require_number
from outfield.errors import InputError, NotFittedError
from outfield.modes import own_modes, products

# What is differentiated is multiplied by this, so that gradients in half precision do not vanish; their sign is the same
GRADIENT_SCALE = 256.0


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
        """x̃ (N, 3, H, W) of the images (N, 3, H, W), from which the logits (N, K) were computed with gradients."""
        # log S times T, which leaves its sign: at T = 1000 the gradient of log S itself is too small for half precision.
        objective = self.temperature * (logits.float() / self.temperature).log_softmax(1).max(1).values
        return images.detach() + self.epsilon * _gradient(objective.sum(), images, "ODIN", "logits").sign()


@dataclass(frozen=True)
class Perturb:
    """The input perturbation of Lee et al. 2018, for images x that are normalised as the network takes them.

    x̃ = x − ε sign(∇ₓ s(f(x))),

    with s the score of a fitted detector and f(x) the features. With :class:`outfield.SSD` it is theirs, which raises the
    confidence −min_c d_c². ID images are lowered more than others, or so the idea. The detector is fitted on features of images
    as they are; ID and OOD images to be scored are perturbed alike. Lee et al. perturb anew for each layer, and choose ε on OOD
    images; here there is one step for all fields of an image, and ε must be known beforehand.

    Args:
        detector: fitted, of the features alone, and with a score that can be differentiated: SSD, GaussianMixture, EBM,
            EnergyCorrected and others.
        epsilon: ε.

    Raises:
        InputError: a setting that cannot be.
        NotFittedError: the detector is not fitted.
    """

    detector: Any  # the room of detectors lies above this one
    epsilon: float = 0.0014

    def __post_init__(self) -> None:
        require_number("epsilon", self.epsilon, least=0)
        is_one = hasattr(self.detector, "needs_to_score") and not isinstance(self.detector, type)
        require(is_one, "detector", self.detector, "a fitted detector")
        if not self.detector._fitted:
            raise NotFittedError(f"{self.detector!r:.100} is not fitted; Perturb takes a fitted detector")
        if self.detector.needs_to_score != ("features",):
            what = f"detector is {self.detector!r:.100}, which scores {' and '.join(self.detector.needs_to_score)}"
            raise InputError(f"{what}; it must be one that scores features alone")

    def __str__(self) -> str:
        """What a set of perturbed images' features says of it."""
        return f"{self.detector.fingerprint()}, epsilon {self.epsilon:g}"

    def perturb(self, images: Tensor, features: Tensor) -> Tensor:
        """x̃ (N, 3, H, W) of the images (N, 3, H, W), from which the features (N, D) were computed with gradients."""
        along = (features * self._uphill(features.detach()).to(features.dtype)).sum()
        return images.detach() - self.epsilon * _gradient(along, images, "Perturb", "features").sign()

    def _uphill(self, features: Tensor) -> Tensor:
        """∇s at the features (N, D), each row divided by its largest entry, so that half precision takes it."""
        device, width = self.detector.device, self.detector._width
        if width is not None and features.shape[1] != width:
            what = f"the network gives {features.shape[1]} features, but the detector of Perturb was fitted on {width}"
            raise InputError(f"{what}; use what the same backbone gave")
        with own_modes(device), products(device), torch.enable_grad():
            here = features.to(device, torch.float32).requires_grad_()
            score = self.detector._score({"features": here})
            if not score.requires_grad:
                what = f"detector is {self.detector!r:.100}, whose score cannot be differentiated"
                raise InputError(f"{what}; those of SSD and GaussianMixture can")
            (gradient,) = torch.autograd.grad(score.sum(), here)
        largest = gradient.abs().amax(1, keepdim=True)
        direction = (gradient / largest.clamp_min(torch.finfo(torch.float32).tiny)).nan_to_num(0.0, 0.0, 0.0)
        return direction.to(features.device)


def _gradient(objective: Tensor, images: Tensor, who: str, what: str) -> Tensor:
    """The gradient of a number with respect to the images, times a constant."""
    gradient = None
    if objective.requires_grad:
        (gradient,) = torch.autograd.grad(GRADIENT_SCALE * objective, images, allow_unused=True)
    if gradient is None:
        needed = f"{who} needs the gradient of the {what} with respect to the images"
        raise InputError(f"{needed}, which this network cuts off, as torch.no_grad or detach do")
    return gradient
