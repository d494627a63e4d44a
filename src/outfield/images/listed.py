"""Images in memory, each of its own size."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from outfield.errors import InputError
from outfield.images.source import ImageArray, ImageSource


class ImageList(ImageSource):
    """Images of different sizes in memory.

    Args:
        images: Each uint8 (H, W, 3).
        labels: (N,), integers from 0.
        name: See :class:`ImageSource`.
        classes: Names of the classes, by label.

    Raises:
        InputError: No image, one of another type or shape, or labels that do not fit.
    """

    def __init__(
        self,
        images: Sequence[np.ndarray],
        labels: ArrayLike | None = None,
        name: str = "images",
        classes: Sequence[str] | None = None,
    ) -> None:
        self.images, self.name = tuple(images), name
        if not self.images:
            raise InputError(f"{name} has no images; at least one is needed")
        for index, image in enumerate(self.images):
            check_image(image, f"image {index} of {name}")
        self._set_labels(labels, classes)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.images[index]

    @property
    def size(self) -> tuple[int, int] | None:
        sizes = {(image.shape[0], image.shape[1]) for image in self.images}
        return sizes.pop() if len(sizes) == 1 else None

    def __repr__(self) -> str:
        return f"ImageList({self.name}: {len(self):,} images)"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"list of images|{len(self)}|".encode())
        for image in self.images:
            digest.update(f"{image.shape}|".encode() + np.ascontiguousarray(image).tobytes())
        if self.labels is not None:
            digest.update(b"labels|" + np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


def check_image(image: Any, what: str) -> None:
    """Refuse what is no image.

    Raises:
        InputError: It is something else than uint8 (H, W, 3), or empty.
    """
    is_array = isinstance(image, np.ndarray)
    good = is_array and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    if not good or 0 in image.shape or np.ma.is_masked(image):
        shown = f"{image.dtype} of shape {image.shape}" if is_array else type(image).__name__
        raise InputError(f"{what} is {shown}; images are numpy arrays, uint8 (H, W, 3)")


def as_images(images: Any) -> ImageSource:
    """A source of images as it is; an array (N, H, W, 3) or a list of images (H, W, 3) as one.

    Raises:
        InputError: It is none of these.
    """
    if isinstance(images, ImageSource):
        return images
    if isinstance(images, list | tuple):
        return ImageList(images)
    if isinstance(images, np.ndarray):
        return ImageArray(images)
    raise InputError(
        f"images is a {type(images).__name__}; it must be uint8 (N, H, W, 3), a list of images, or what "
        "outfield.open_images(path) gives"
    )
