"""Random resized crop and flip of a whole batch at once, on the device where the images lie.

Every crop is a pair of small matrices: rows and columns of the result are weighted sums of rows and columns of the image. The
weights are those of a bilinear resize with antialiasing, as in Pillow and torchvision, restricted to the crop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from outfield.config import configurable, require

ATTEMPTS = 10
"""Draws of a crop before the largest one in the middle is taken, as in torchvision."""


@configurable
@dataclass(frozen=True)
class Augmentation:
    """A crop of random area and shape, resized to the input's size, and a flip. The defaults are torchvision's.

    Args:
        scale: least and largest share of the image's area.
        ratio: least and largest width / height, drawn uniformly in its logarithm.
        flip: probability of a horizontal flip.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        for name, value in (("scale", self.scale), ("ratio", self.ratio)):
            require(are_numbers(value) and len(value) == 2, name, value, "two numbers, such as [0.5, 1.0]")
        require(are_numbers((self.flip,)), "flip", self.flip, "a probability")
        require(0 < self.scale[0] <= self.scale[1] <= 1, "scale", self.scale, "two shares in (0, 1], the smaller first")
        require(0 < self.ratio[0] <= self.ratio[1], "ratio", self.ratio, "two positive numbers, the smaller first")
        require(0 <= self.flip <= 1, "flip", self.flip, "a probability")

    def __call__(self, images: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Augment images.

        Args:
            images: (N, C, H, W), floating.
            size: height and width of the result.
            generator: on the images' device.

        Returns:
            (N, C, *size), of the images' type.
        """
        n, _, height, width = images.shape
        top, left, rows, columns = self.crops(n, height, width, generator)
        flipped = torch.rand(n, device=images.device, dtype=torch.float32, generator=generator) < self.flip
        vertical = resize_weights(top, rows, height, size[0]).to(images.dtype)
        horizontal = resize_weights(left, columns, width, size[1]).to(images.dtype)
        horizontal = torch.where(flipped[:, None, None], horizontal.flip(1), horizontal)
        return vertical[:, None] @ images @ horizontal[:, None].transpose(2, 3)

    def crops(
        self, n: int, height: int, width: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Top, left, height and width of n crops (n,), whole pixels, as torchvision draws them."""
        device = generator.device
        uniform = torch.rand(4, n, ATTEMPTS, device=device, dtype=torch.float32, generator=generator)
        area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * uniform[0])
        low, high = (math.log(bound) for bound in self.ratio)
        ratio = torch.exp(low + (high - low) * uniform[1])
        columns, rows = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        fits = (columns >= 1) & (columns <= width) & (rows >= 1) & (rows <= height)
        first = fits.int().argmax(1, keepdim=True)  # 0 where none fits
        found = fits.any(1)
        middle_rows, middle_columns = _largest(height, width, self.ratio)
        rows = torch.where(found, rows.gather(1, first)[:, 0], middle_rows)
        columns = torch.where(found, columns.gather(1, first)[:, 0], middle_columns)
        top = torch.where(found, (uniform[2, :, 0] * (height - rows + 1)).floor(), ((height - rows) / 2).round())
        left = torch.where(found, (uniform[3, :, 0] * (width - columns + 1)).floor(), ((width - columns) / 2).round())
        return top, left, rows, columns


def are_numbers(value: Any) -> bool:
    """Whether a setting is a list or tuple of finite numbers."""
    return isinstance(value, tuple | list) and all(
        isinstance(item, Real) and not isinstance(item, bool) and math.isfinite(item) for item in value
    )


def _largest(height: int, width: int, ratio: tuple[float, float]) -> tuple[float, float]:
    """Height and width of the largest crop whose shape is allowed."""
    shape = width / height
    if shape < ratio[0]:
        return float(round(width / ratio[0])), float(width)
    if shape > ratio[1]:
        return float(height), float(round(height * ratio[1]))
    return float(height), float(width)


def resize_weights(start: Tensor, length: Tensor, inside: int, outside: int) -> Tensor:
    """Weights W (N, outside, inside) that resize [start, start + length) of ``inside`` pixels to ``outside`` ones.

    Result pixel i lies at c = start + (i + ½) s with s = length / outside and takes pixel j of the crop with a weight
    proportional to max(0, 1 − |j + ½ − c| / max(1, s)).

    Args:
        start: first pixel of each crop (N,).
        length: pixels of each crop (N,).
        inside: pixels of the image.
        outside: pixels of the result.
    """
    scale = (length / outside)[:, None, None]
    centre = (
        start[:, None, None] + (torch.arange(outside, device=start.device, dtype=start.dtype)[:, None] + 0.5) * scale
    )
    pixel = torch.arange(inside, device=start.device, dtype=start.dtype)
    weights = (1 - (pixel + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    first, last = start[:, None, None], (start + length)[:, None, None]
    weights = weights * ((pixel >= first) & (pixel < last))
    return weights / weights.sum(2, keepdim=True)
