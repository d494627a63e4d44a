"""Random shifts and flips of a whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from outfield.classifier.augment import are_numbers
from outfield.config import configurable, require, require_number


@configurable
@dataclass(frozen=True)
class PadAndShift:
    """A shift by up to ``pad`` pixels in each direction, black where nothing is, and a flip: most CIFAR recipes' augmentation.

    Args:
        pad: most pixels of a shift.
        flip: probability of a horizontal flip.
    """

    pad: int = 4
    flip: float = 0.5

    def __post_init__(self) -> None:
        require_number("pad", self.pad, least=0, whole=True)
        require(are_numbers((self.flip,)) and 0 <= self.flip <= 1, "flip", self.flip, "a probability")

    def __call__(self, images: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Augment images (N, C, H, W), floating; those of another size are resized to ``size`` first."""
        n, _, height, width = images.shape
        if (height, width) != tuple(size):
            images = functional.interpolate(images, size, mode="bilinear", antialias=True)
        uniform = torch.rand(3, n, device=images.device, dtype=torch.float32, generator=generator)
        down, right = ((uniform[:2] * (2 * self.pad + 1)).floor() - self.pad).to(torch.int64)
        vertical, horizontal = (_shifted(by, side, images.dtype) for by, side in ((down, size[0]), (right, size[1])))
        horizontal = torch.where((uniform[2] < self.flip)[:, None, None], horizontal.flip(1), horizontal)
        return vertical[:, None] @ images @ horizontal[:, None].transpose(2, 3)


def _shifted(by: Tensor, side: int, dtype: torch.dtype) -> Tensor:
    """Matrices (N, side, side) that move pixels by ``by`` (N,): row i is pixel i + by, or nothing."""
    pixel = torch.arange(side, device=by.device)
    return (pixel[None, None, :] == pixel[None, :, None] + by[:, None, None]).to(dtype)
