"""Images on their way to a guard's network: decoded and resized as the network wants them, broken ones told apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from outfield.backbone.backbone import Backbone
from outfield.backbone.loader import read
from outfield.config import require_choice
from outfield.guard.inputs import pixels
from outfield.images.skipped import ON_ERROR
from outfield.images.source import ImageSource


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
    """All images, in order, decoded in worker processes while the network runs.

    Args:
        images: where from.
        backbone: whose preprocessing they need.
        rows: of a piece, at most.
        workers: processes that decode; see :func:`outfield.backbone.loader.read`.
        on_error: "fail" or "skip".

    Raises:
        OutfieldError: an image cannot be read, and ``on_error`` is "fail".
    """
    require_choice("on_error", on_error, ON_ERROR)
    errors: dict[int, str] | None = {} if on_error == "skip" else None
    pinned, start = backbone.device.type == "cuda", 0
    for batch in read(images, backbone.preprocessing, rows, workers, pinned, errors):
        stop, left = start, len(batch)
        while left:
            left -= stop not in (errors or ())
            stop += 1
        yield Piece(
            batch, {index: errors[index] for index in range(start, stop) if index in errors} if errors else {}, stop
        )
        start = stop
    if start < len(images):
        yield Piece(None, dict(errors or {}), len(images))
