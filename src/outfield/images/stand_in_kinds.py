"""What an image is turned into to stand for OOD data: one function for each kind, of one image at its own size.

Each takes the image (H, W, 3), images to mix it with (of any size, as many as the kind asks for) and a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

Image = np.ndarray
Change = Callable[[Image, Sequence[Image], np.random.Generator], Image]
FINE = 8
"""Small tiles and blocks are an eighth of the side: 4 of 32 pixels."""


@dataclass(frozen=True)
class Kind:
    """A kind of stand-in.

    Attributes:
        name: what it is called, and its folder.
        level: "near" or "far", what it stands for.
        meaning: one sentence on what is done to an image.
        change: does it.
        partners: how many other images it takes.
        turns: whether height and width change places.
    """

    name: str
    level: str
    meaning: str
    change: Change
    partners: int = 0
    turns: bool = False


def turned90(image: Image, partners: Sequence[Image], rng: np.random.Generator) -> Image:
    """A quarter turn to the left or to the right."""
    return np.rot90(image, int(rng.choice([1, 3])))


def turned180(image: Image, partners: Sequence[Image], rng: np.random.Generator) -> Image:
    """Upside down."""
    return np.rot90(image, 2)


def inverted(image: Image, partners: Sequence[Image], rng: np.random.Generator) -> Image:
    """255 − x."""
    return 255 - image


def mixed(image: Image, partners: Sequence[Image], rng: np.random.Generator) -> Image:
    """(x + x′) / 2, rounded up."""
    other = resized(partners[0], *image.shape[:2])
    found: Image = ((image.astype(np.uint16) + other + 1) // 2).astype(np.uint8)
    return found


def halves(image: Image, partners: Sequence[Image], rng: np.random.Generator) -> Image:
    """The left or upper half of the image, the other half of its partner."""
    other, found = resized(partners[0], *image.shape[:2]), image.copy()
    axis = int(rng.integers(2))
    middle = (image.shape[axis] + 1) // 2
    part = (slice(middle, None), slice(None)) if axis == 0 else (slice(None), slice(middle, None))
    found[part] = other[part]
    return found


def quarters(image: Image, partners: Sequence[Image], rng: np.random.Generator) -> Image:
    """A quarter of each of four images, each at its own place."""
    height, width = image.shape[:2]
    found = image.copy()
    rows, columns = (slice(0, (side + 1) // 2) for side in (height, width))
    lower, right = (slice((side + 1) // 2, side) for side in (height, width))
    for part, other in zip(((rows, right), (lower, columns), (lower, right)), partners, strict=True):
        found[part] = resized(other, height, width)[part]
    return found


def jigsaw2(image: Image, partners: Sequence[Image], rng: np.random.Generator) -> Image:
    """The four quarters of the image, each at another place."""
    return jigsaw(image, 2, rng)


def jigsaw8(image: Image, partners: Sequence[Image], rng: np.random.Generator) -> Image:
    """Tiles of an eighth of the side, each at another place."""
    return jigsaw(image, FINE, rng)


def jigsaw(image: Image, grid: int, rng: np.random.Generator) -> Image:
    """The ``grid`` × ``grid`` tiles of an image, each at another place.

    Where the side is no multiple of ``grid``, neighbouring tiles overlap by a pixel.
    """
    starts, sizes = zip(*(_cut(side, grid) for side in image.shape[:2]), strict=True)
    places = [(row, column) for row in starts[0] for column in starts[1]]
    found = np.empty_like(image)
    for (row, column), source in zip(places, _cycle(len(places), rng), strict=True):
        top, left = places[source]
        tile = image[top : top + sizes[0], left : left + sizes[1]]
        found[row : row + sizes[0], column : column + sizes[1]] = tile
    return found


def blocks(image: Image, partners: Sequence[Image], rng: np.random.Generator) -> Image:
    """Blocks of an eighth of the side, but of at least two pixels, each of its mean colour."""
    height, width = (max(1, min(FINE, side // 2)) for side in image.shape[:2])
    means = functional.adaptive_avg_pool2d(_as_tensor(image), (height, width))
    return _as_image(functional.interpolate(means, image.shape[:2], mode="nearest"))


def phase(image: Image, partners: Sequence[Image], rng: np.random.Generator) -> Image:
    """The amplitudes of the image's frequencies with the phases of noise, the same for all channels; its mean colour stays."""
    spectrum = np.fft.rfft2(image.astype(np.float64), axes=(0, 1))
    noise = np.fft.rfft2(rng.standard_normal(image.shape[:2]))
    turn = noise / np.maximum(np.abs(noise), np.finfo(np.float64).tiny)
    turn[0, 0] = 1
    found = np.fft.irfft2(np.abs(spectrum) * turn[..., None], s=image.shape[:2], axes=(0, 1))
    return found.round().clip(0, 255).astype(np.uint8)


def resized(image: Image, height: int, width: int) -> Image:
    """An image in another size, by bilinear interpolation with antialiasing."""
    if image.shape[:2] == (height, width):
        return image
    return _as_image(functional.interpolate(_as_tensor(image), (height, width), mode="bilinear", antialias=True))


def _as_tensor(image: Image) -> torch.Tensor:
    return torch.tensor(np.ascontiguousarray(image), device="cpu", dtype=torch.float32).permute(2, 0, 1)[None]


def _as_image(tensor: torch.Tensor) -> Image:
    found: Image = tensor[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    return found


def _cut(side: int, grid: int) -> tuple[list[int], int]:
    """Where tiles of one size begin that cover a side, and that size."""
    pieces = min(grid, side)
    size = -(-side // pieces)
    return [(side - size) * i // max(1, pieces - 1) for i in range(pieces)], size


def _cycle(count: int, rng: np.random.Generator) -> list[int]:
    """A random order in which nothing is at its own place (Sattolo's algorithm)."""
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = int(rng.integers(i))
        order[i], order[j] = order[j], order[i]
    return order


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("turned90", "near", "The image is turned by 90°, to the left or to the right.", turned90, turns=True),
        Kind("turned180", "near", "The image is turned upside down.", turned180),
        Kind("mixed", "near", "The mean of two images of different classes.", mixed, partners=1),
        Kind(
            "halves", "near", "One half of the image, the other half of an image of another class.", halves, partners=1
        ),
        Kind("quarters", "near", "Four quarters of four images, the others of other classes.", quarters, partners=3),
        Kind("inverted", "near", "Light is dark and every colour its opposite.", inverted),
        Kind("jigsaw2", "near", "The four quarters of the image, each at another place.", jigsaw2),
        Kind("jigsaw8", "far", "Tiles of an eighth of the side, each at another place.", jigsaw8),
        Kind("blocks", "far", "Blocks of an eighth of the side, each of its mean colour.", blocks),
        Kind(
            "phase", "far", "The image's frequencies with phases of noise: its colours and grain, nothing in it.", phase
        ),
    )
}
"""Every kind of stand-in made of images, by name."""
