"""What a network expects of an image: its size and normalisation.

Pixels stay bytes as long as they can: on their way to the device they take a quarter of the room of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from outfield.config import require, require_number

MOST_SIDE = 2**14  # Height and width of an input, at most


@dataclass(frozen=True)
class Input:
    """What a network expects of an image.

    Args:
        size: height and width; images of another size are resized to it.
        mean: of each channel, in [0, 1], subtracted.
        std: of each channel, by which the result is divided.

    Raises:
        InputError: a setting that cannot be.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        check_size(self.size)
        grey = isinstance(self.mean, tuple) and len(self.mean) == 1
        check_normalisation(self.mean, self.std, 1 if grey else 3)

    @classmethod
    def of(cls, size: Any, mean: Any, std: Any) -> Self:
        """From one side or two, and from a number for each channel in a sequence, array or tensor."""
        return cls(as_pair(size), as_tuple(mean), as_tuple(std))

    def preparation(
        self, device: torch.device, dtype: torch.dtype, layout: torch.memory_format
    ) -> Callable[[Tensor], Tensor]:
        """A function from bytes (N, H, W, 3) on any device to what the network takes, (N, C, h, w) on this one.

        It gives (resized / 255 − mean) / std. A network with one mean and std takes grey images: C is 1, and so may be the
        last dimension of the bytes.
        """
        mean, std = _planes(device, self.mean, self.std)

        def prepare(pixels: Tensor) -> Tensor:
            there = pixels.to(device, non_blocking=True)
            resized = resize(to_grey(there) if len(self.mean) == 1 else there, self.size)
            images = resized.permute(0, 3, 1, 2).to(torch.float32, memory_format=layout)
            return images.div_(255).sub_(mean).div_(std).to(dtype)

        return prepare


def to_grey(pixels: Tensor) -> Tensor:
    """Bytes (N, H, W, 3) as grey ones (N, H, W, 1), to the bit as Pillow converts colour; grey ones stay as they are."""
    if pixels.shape[-1] == 1:
        return pixels
    red, green, blue = pixels.to(torch.int32).unbind(-1)
    return (((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).to(torch.uint8)).unsqueeze(-1)


def normalised(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(images / 255 − mean) / std in place, of float32 (…, C, H, W)."""
    centre, width = _planes(images.device, mean, std)
    return images.div_(255).sub_(centre).div_(width)


def _planes(device: torch.device, *values: tuple[float, ...]) -> list[Tensor]:
    """A number for each channel, (C, 1, 1)."""
    return [torch.tensor(value, device=device, dtype=torch.float32)[:, None, None] for value in values]


def resize(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Bytes (N, H, W, C) to another height and width, (N, h, w, C), by bilinear interpolation with antialiasing.

    The result is rounded to bytes, so that it does not depend on who resizes: a worker, this process, or the device.
    """
    if tuple(pixels.shape[1:3]) == size:
        return pixels
    images = pixels.permute(0, 3, 1, 2).to(torch.float32)
    resized = functional.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
    return resized.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def as_tuple(value: Any) -> Any:
    """A sequence, array or tensor of numbers as a tuple; anything else as it is, to be refused by a check."""
    found = value.tolist() if isinstance(value, np.ndarray | np.generic | Tensor) else value
    return tuple(found) if isinstance(found, Sequence) and not isinstance(found, str | bytes) else found


def as_pair(value: Any) -> Any:
    """Two sides, of which one may be told for both."""
    sides = as_tuple(value)
    whole = isinstance(sides, Integral) and not isinstance(sides, bool)
    return (int(sides), int(sides)) if whole else sides


def check_size(size: Any, name: str = "size") -> None:
    """Refuse what is no height and width."""
    require(isinstance(size, tuple) and len(size) == 2, name, size, "a height and a width")
    for side in size:
        require_number(name, side, least=1, most=MOST_SIDE, whole=True)


def check_normalisation(mean: Any, std: Any, channels: int = 3) -> None:
    """Refuse what are no means and standard deviations of three channels, or of one."""
    count = "one number" if channels == 1 else "three numbers"
    for name, value, above in (("mean", mean, -math.inf), ("std", std, 0.0)):
        require(isinstance(value, tuple) and len(value) == channels, name, value, count)
        for number in value:
            require_number(name, number, above=above)


def shown_numbers(numbers: Iterable[float]) -> str:
    """Numbers as people read them."""
    return f"({', '.join(f'{number:.4g}' for number in numbers)})"


def check_names(names: Any, name: str = "names") -> None:
    """Refuse what are no names of classes."""
    good = isinstance(names, tuple) and all(isinstance(one, str) for one in names)
    require(good, name, names, "the names of the classes, each a text")
