"""Views of an image at test time: itself, its mirror image, slightly shifted and zoomed copies, whose outputs are averaged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from outfield.config import configurable, require, require_number

FARTHEST = 0.5  # A shift, as a share of the side, at most: what comes in is a reflection of what is there
SHIFTS = ((3 / 32, 1 / 32), (1 / 32, -3 / 32), (-3 / 32, -1 / 32), (-1 / 32, 3 / 32))
ZOOMS = (32 / 30, 32 / 28)
NAMED = {"one": 1, "flip": 2, "six": 6}  # Names of the usual numbers of views
MOST_NAMED = 2 + len(SHIFTS) + len(ZOOMS)


@configurable
@dataclass(frozen=True)
class Views:
    """The image itself and these changed copies of it.

    Args:
        flip: Its mirror image, left and right exchanged.
        shifts: Copies moved down and to the right by these shares of the height and width (negative: up, left), rounded to
            whole pixels. What comes in at the border is a reflection.
        zoom: Copies enlarged by these factors about the middle (below 1: made smaller, with a reflection around it).

    Raises:
        InputError: a setting that cannot be.

    >>> len(Views()), len(Views.of("six")), str(Views.of(6))
    (2, 6, 'six')
    """

    flip: bool = True
    shifts: tuple[tuple[float, float], ...] = ()
    zoom: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(isinstance(self.flip, bool), "flip", self.flip, "True or False")
        pairs = isinstance(self.shifts, tuple) and all(isinstance(one, tuple) and len(one) == 2 for one in self.shifts)
        require(pairs, "shifts", self.shifts, "pairs of shares of the height and width, such as ((0.1, 0.0),)")
        for share in (share for shift in self.shifts for share in shift):
            require_number("shifts", share, least=-FARTHEST, most=FARTHEST)
        require(isinstance(self.zoom, tuple), "zoom", self.zoom, "factors, such as (1.1,)")
        for factor in self.zoom:
            require_number("zoom", factor, least=0.5, most=2)

    @classmethod
    def of(cls, views: Any) -> Self:
        """Views by name or number: "one", "flip" (2), "six", or a number from 1 to 8; None is one, and Views stay what they are.

        Six are the image, its mirror image and four copies shifted by up to 3/32 of the side; seven and eight have a copy or
        two more that are slightly enlarged; fewer leave the last ones out.

        Raises:
            InputError: there are no such views.
        """
        if isinstance(views, cls):
            return views
        text = "one" if views is None else str(views)
        count = int(text) if text.isdecimal() else NAMED.get(text, 0)
        right = f"flip, six, a number from 1 to {MOST_NAMED}, or Views"
        require(1 <= count <= MOST_NAMED, "views", views, right)
        changed = max(0, count - 2)
        return cls(flip=count > 1, shifts=SHIFTS[:changed], zoom=ZOOMS[: max(0, changed - len(SHIFTS))])

    def __len__(self) -> int:
        return 1 + self.flip + len(self.shifts) + len(self.zoom)

    def __str__(self) -> str:
        """What a set of features says of its views: a name, a number, or all of it."""
        if len(self) <= MOST_NAMED and self == Views.of(len(self)):
            return next((name for name, count in NAMED.items() if count == len(self)), f"{len(self)} views")
        shifts = " ".join(f"{down:.6g},{right:.6g}" for down, right in self.shifts) or "none"
        zoom = " ".join(f"{factor:.6g}" for factor in self.zoom) or "none"
        return f"{'flip' if self.flip else 'no flip'}; shifts {shifts}; zoom {zoom}"

    def each(self, images: Tensor) -> Iterator[Tensor]:
        """The views of a batch (N, C, H, W), one after the other, each laid out in memory as the batch is."""
        if len(self) == 1:
            yield images  # of several no view is the batch itself: a network may write to what it is given
            return
        last = not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        yield images.clone()
        if self.flip:
            yield images.flip(3).contiguous(memory_format=layout)
        for down, right in self.shifts:
            yield shifted(images, down, right).contiguous(memory_format=layout)
        for factor in self.zoom:
            yield zoomed(images, factor).contiguous(memory_format=layout)


def shifted(images: Tensor, down: float, right: float) -> Tensor:
    """Images (N, C, H, W) moved by shares of their height and width, rounded to pixels; reflected at the border."""
    for axis, share in ((2, down), (3, right)):
        side = images.shape[axis]
        places = (torch.arange(side, device=images.device) - round(share * side)).abs()
        images = images.index_select(axis, torch.where(places < side, places, 2 * (side - 1) - places))
    return images


def zoomed(images: Tensor, factor: float) -> Tensor:
    """Images (N, C, H, W) enlarged about the middle, in the same size, by bilinear interpolation; reflected outside."""
    scale = torch.tensor([[1 / factor, 0.0, 0.0], [0.0, 1 / factor, 0.0]], device=images.device, dtype=torch.float32)
    with torch.autocast(images.device.type, enabled=False):
        grid = functional.affine_grid(scale.expand(images.shape[0], 2, 3), list(images.shape), align_corners=False)
        found = functional.grid_sample(images.float(), grid, "bilinear", "reflection", align_corners=False)
    return found.to(images.dtype)
