"""Some training images kept out of the training, to compare recipes on instead of on the test images."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outfield.classifier.pixels import Pixels
from outfield.config import require, require_number
from outfield.errors import InputError
from outfield.percent import percent

SEED = 0
"""Of the choice of images: the same for every training, so that recipes and seeds are compared on the same ones."""


@dataclass(frozen=True)
class HeldOut:
    """Accuracy on training images that were kept out of the training.

    Args:
        share: Share of each class that was kept out.
        images: How many that were.
        accuracy: Share of them that the trained network classifies rightly.
    """

    share: float
    images: int
    accuracy: float

    def __str__(self) -> str:
        return f"held-out accuracy {percent(self.accuracy, 2)} on {self.images:,} training images"


def check_share(share: float) -> None:
    """Raise an :class:`InputError` unless ``share`` is a number above 0 and below 1."""
    require_number("hold_out", share, above=0)
    require(share < 1, "hold_out", share, "a share of the training images, above 0 and below 1")


def split_off(pixels: Pixels, share: float) -> tuple[Pixels, Pixels]:
    """The images to train on, and those that are held out, both in the order they had.

    Of each class of n images round(share · n) are held out: the first of them in one random order of all images, which
    depends on their number alone. A larger share therefore holds out what a smaller one does, and more.

    Args:
        pixels: All training images.
        share: Share of each class to hold out, above 0 and below 1.

    Raises:
        InputError: ``share`` is no such number, would leave a class without training images, or holds out none at all.

    >>> two_of_each = Pixels(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 0, 1, 1]))
    >>> [part.labels.tolist() for part in split_off(two_of_each, 0.5)]
    [[0, 1], [0, 1]]
    """
    check_share(share)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(SEED))
    labels = pixels.labels.cpu()
    out = torch.zeros(len(pixels), dtype=torch.bool)
    for label in labels.unique().tolist():
        own = order[labels[order] == label]
        count = round(share * len(own))
        if count == len(own):
            raise InputError(
                f"hold_out is {share:g}; of the {count} images of class {label} none would be left to train on"
            )
        out[own[:count]] = True
    if not out.any():
        raise InputError(f"hold_out is {share:g}; that is less than half an image of each class of {pixels.name}")
    return pixels.select(~out), pixels.select(out)
