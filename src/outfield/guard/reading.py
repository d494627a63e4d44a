"""Images on their way to a guard's network: decoded and resized as the network wants them, broken ones told apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from outfield.backbone.backbone import Backbone
from outfield.backbone.loader import read
from outfield.config import require_choice
from outfield.errors import OutfieldError
from outfield.guard.inputs import pixels
from outfield.images.source import ImageArray, ImageSource

ON_ERROR = ("fail", "skip")
"""What happens to an image that cannot be read: an error, or a verdict that tells of it."""


class Piece(NamedTuple):
    """Some consecutive images.

    Attributes:
        pixels: of those that could be read (n, h, w, C); None where none could.
        errors: why others could not, by their number among all images.
        stop: the number of the first image behind this piece.
    """

    pixels: Tensor | None
    errors: dict[int, str]
    stop: int


def prepared(backbone: Backbone, item: object, where: str = "the image") -> Tensor:
    """One image (a path, bytes, a PIL image or an array) as bytes (1, h, w, C) that only have to be normalised."""
    return torch.from_numpy(backbone.pixels(pixels(item, where)))[None]


def pieces(images: ImageSource, backbone: Backbone, rows: int, workers: int | None, on_error: str) -> Iterator[Piece]:
    """All images, in order.

    Args:
        images: where from.
        backbone: whose preprocessing they need.
        rows: of a piece, at most.
        workers: processes that decode; see :func:`outfield.backbone.loader.read`.
        on_error: one of :data:`ON_ERROR`.

    Raises:
        OutfieldError: an image cannot be read, and ``on_error`` is "fail".
    """
    require_choice("on_error", on_error, ON_ERROR)
    if on_error == "skip" and not isinstance(images, ImageArray):
        yield from _one_by_one(images, backbone, rows)
        return
    stop = 0
    for batch in read(images, backbone.preprocessing, rows, workers, pinned=backbone.device.type == "cuda"):
        stop += len(batch)
        yield Piece(batch, {}, stop)


def _one_by_one(images: ImageSource, backbone: Backbone, rows: int) -> Iterator[Piece]:
    for start in range(0, len(images), rows):
        chosen = range(start, min(start + rows, len(images)))
        found: list[Tensor] = []
        errors: dict[int, str] = {}
        for index in chosen:
            try:
                found.append(prepared(backbone, images[index]))
            except OutfieldError as error:
                errors[index] = str(error)
        yield Piece(torch.cat(found) if found else None, errors, chosen.stop)
