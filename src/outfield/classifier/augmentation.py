"""Augmentation of a whole batch at once, on the device where the images lie: random crops, shifts and other colours.

Every crop is a pair of small matrices: rows and columns of the result are weighted sums of rows and columns of the image. The
weights are those of a bilinear resize with antialiasing, as in Pillow and torchvision, restricted to the crop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from outfield.config import configurable, require, require_number

ATTEMPTS = 10  # Draws of a crop before the largest one in the middle is taken, as in torchvision
LUMA = (0.299, 0.587, 0.114)  # What red, green and blue give to brightness


@configurable
@dataclass(frozen=True)
class Augmentation:
    """A crop of random area and shape, resized to the input's size, and a flip. The defaults are torchvision's.

    ``scale`` is the least and largest share of the image's area, ``ratio`` of width / height, drawn uniformly in its logarithm,
    ``flip`` the probability of a horizontal flip.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        for name, most in (("scale", 1.0), ("ratio", math.inf)):
            value = getattr(self, name)
            require(isinstance(value, tuple | list) and len(value) == 2, name, value, "two numbers, such as [0.5, 1.0]")
            for number in value:
                require_number(name, number, above=0, most=most)
            require(value[0] <= value[1], name, value, "two numbers, the smaller first")
        require_number("flip", self.flip, least=0, most=1)

    def __call__(self, images: Tensor, size: tuple[int, int], generator: torch.Generator) -> Tensor:
        """Images (N, C, *size) of images (N, C, H, W), floating; the generator is on their device."""
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
    proportional to max(0, 1 − |j + ½ − c| / max(1, s)). ``start`` and ``length`` are whole pixels (N,).
    """
    scale = (length / outside)[:, None, None]
    made, pixel = (torch.arange(pixels, device=start.device, dtype=start.dtype) for pixels in (outside, inside))
    centre = start[:, None, None] + (made[:, None] + 0.5) * scale
    weights = (1 - (pixel + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    first, last = start[:, None, None], (start + length)[:, None, None]
    weights = weights * ((pixel >= first) & (pixel < last))
    return weights / weights.sum(2, keepdim=True)


@configurable
@dataclass(frozen=True)
class PadAndShift:
    """A shift by up to ``pad`` pixels in each direction, black where nothing is, and a flip: most CIFAR recipes' augmentation."""

    pad: int = 4
    flip: float = 0.5

    def __post_init__(self) -> None:
        require_number("pad", self.pad, least=0, whole=True)
        require_number("flip", self.flip, least=0, most=1)

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


@configurable
@dataclass(frozen=True)
class Recoloured:
    """A crop and a flip with other brightness, contrast, saturation and hue, or grey: for training without labels.

    Without it, two crops of an image would be told apart from others by their colours alone (Chen et al. 2020).

    Factors of brightness, contrast and saturation lie within 1 ± 0.8 · ``strength``, hue turns by up to 0.2 · ``strength`` of the
    circle; ``share`` and ``grey`` are the probabilities that colours change and that an image becomes grey.
    """

    crop: Augmentation = Augmentation(scale=(0.2, 1.0))
    strength: float = 0.5
    share: float = 0.8
    grey: float = 0.2

    def __post_init__(self) -> None:
        require(isinstance(self.crop, Augmentation), "crop", self.crop, "an Augmentation")
        for name in ("strength", "share", "grey"):
            require_number(name, getattr(self, name), least=0, most=1)

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
