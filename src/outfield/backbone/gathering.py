"""Rows of one pass over images, gathered piece by piece: what each field holds, and which images could not be read."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from outfield.errors import InputError, OutfieldWarning
from outfield.images.skipped import Skipped, summary
from outfield.images.source import ImageSource

OUTPUTS = ("logits", "odin_logits")
"""Fields that are what the last layer gives."""


class Gathered:
    """Room for the rows of images, which pieces fill one after the other.

    Args:
        images: whose rows they are.

    Attributes:
        fields: by name, (N, D) each, where N counts all images; none before the first piece.
        done: how many rows are filled.
        missing: numbers of the images that could not be read, and why. Whoever reads the images writes them here.
    """

    def __init__(self, images: ImageSource) -> None:
        self.images = images
        self.fields: dict[str, Tensor] = {}
        self.missing: dict[int, str] = {}
        self.done = 0

    def add(self, start: int, piece: dict[str, Tensor]) -> int:
        """Fill rows from ``start`` on; gives how many images are behind, with those that could not be read."""
        if not self.fields:
            count = len(self.images)
            self.fields = {name: value.new_empty(count, value.shape[1]) for name, value in piece.items()}
        for name, value in piece.items():
            self.fields[name][start : start + len(value)] = value
        self.done = start + len(piece["features"])
        return self.done + len(self.missing)

    def left_out(self) -> list[Skipped]:
        """What could not be read, with a warning where :meth:`outfield.Backbone.extract` was called.

        Raises:
            InputError: that is every image.
        """
        images, missing = self.images, self.missing
        names = images.names or [f"image {index}" for index in range(len(images))]
        found = [Skipped(names[index], reason) for index, reason in sorted(missing.items())]
        found += getattr(images, "refused", ())
        told = summary(found, len(images) + len(found) - len(missing), images.name) if found else ""
        if not self.done:
            raise InputError(told)
        if found:
            warnings.warn(told, OutfieldWarning, stacklevel=3)
        return found

    def rows(self, outputs: bool) -> dict[str, Tensor]:
        """Fields of the images that were read; those that the last layer gives only where ``outputs``."""
        return {name: value[: self.done] for name, value in self.fields.items() if outputs or name not in OUTPUTS}

    def labels(self, given: np.ndarray | None) -> np.ndarray | None:
        """Those labels, of one for each image, whose images were read."""
        return given if given is None or not self.missing else given[self._read()]

    def names(self) -> Sequence[str] | None:
        """The names of the images that were read, where they have any."""
        names = self.images.names
        return names if names is None or not self.missing else [names[index] for index in self._read()]

    def _read(self) -> np.ndarray:
        """Numbers of the images that were read."""
        return np.delete(np.arange(len(self.images)), list(self.missing))
