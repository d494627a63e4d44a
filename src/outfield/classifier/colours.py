"""Random crops in other colours, for training without labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from outfield.classifier.augment import Augmentation, are_numbers
from outfield.config import configurable, require

LUMA = (0.299, 0.587, 0.114)
"""What red, green and blue give to brightness."""


@configurable
@dataclass(frozen=True)
class Recoloured:
    """A crop and a flip with other brightness, contrast, saturation and hue, or grey: for training without labels.

    Without it, two crops of an image would be told apart from others by their colours alone (Chen et al. 2020).

    Args:
        crop: the crop and flip.
        strength: of the colours' change: factors of brightness, contrast and saturation lie within 1 ± 0.8 · strength, hue
            turns by up to 0.2 · strength of the circle.
        share: probability that colours change.
        grey: probability that an image becomes grey.
    """

    crop: Augmentation = Augmentation(scale=(0.2, 1.0))
    strength: float = 0.5
    share: float = 0.8
    grey: float = 0.2

    def __post_init__(self) -> None:
        require(isinstance(self.crop, Augmentation), "crop", self.crop, "an Augmentation")
        for name in ("strength", "share", "grey"):
            value = getattr(self, name)
            require(are_numbers((value,)) and 0 <= value <= 1, name, value, "a number from 0 to 1")

    def __call__(self, images: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Augment images (N, 3, H, W), floating, of 0 … 255."""
        made = self.crop(images, size, generator)
        uniform = torch.rand(6, len(made), device=made.device, dtype=torch.float32, generator=generator)
        change = 2 * uniform[:4] - 1
        brighter, contrast, saturation = 1 + 0.8 * self.strength * change[:3]
        angle = 2 * math.pi * 0.2 * self.strength * change[3]
        colours = _colours(saturation, angle, uniform[5] < self.grey) * brighter[:, None, None]
        keep = uniform[4] >= self.share
        grey_alone = _colours(torch.ones_like(angle), torch.zeros_like(angle), uniform[5] < self.grey)
        colours = torch.where(keep[:, None, None], grey_alone, colours).to(made.dtype)
        contrast = torch.where(keep, torch.ones_like(contrast), contrast).to(made.dtype)[:, None, None, None]
        made = torch.einsum("nij,njhw->nihw", colours, made)
        middle = torch.einsum("c,nchw->n", made.new_tensor(LUMA), made) / (size[0] * size[1])
        return (middle[:, None, None, None] + contrast * (made - middle[:, None, None, None])).clamp(0, 255)


def _colours(saturation: Tensor, angle: Tensor, grey: Tensor) -> Tensor:
    """Matrices (N, 3, 3) of colours: brightness stays; chroma is turned by an angle, lengthened, or gone where grey.

    In the basis of brightness Y = LUMA · (r, g, b) and the chroma (r, g, b) − Y, the turn is about the grey axis.
    """
    saturation = torch.where(grey, torch.zeros_like(saturation), saturation)
    y = angle.new_tensor(LUMA).expand(3, 3)  # every row gives the brightness
    axis = angle.new_tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3)  # × (1, 1, 1) / √3
    chroma = torch.eye(3, device=angle.device) - y
    cosine, sine = angle.cos()[:, None, None], angle.sin()[:, None, None]
    turned = cosine * chroma + sine * (chroma @ axis @ chroma)
    return y + saturation[:, None, None] * turned
