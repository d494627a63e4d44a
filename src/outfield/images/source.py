"""Images as a backbone reads them: colour pixels as bytes, labels where they are known, a digest of the content."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from outfield.errors import InputError
from outfield.files import checks


class ImageSource(ABC):
    """N images, in memory (:class:`ImageArray`) or decoded one by one (:class:`outfield.images.files.ImageFiles`).

    Attributes:
        name: what to call it in progress bars, tables and errors.
        labels: class of each image (N,), int64 from 0, or None.
        classes: names of the classes, or None.
        names: of the images, such as those of their files, or None.
    """

    name: str
    labels: np.ndarray | None
    classes: tuple[str, ...] | None
    names: tuple[str, ...] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> np.ndarray:
        """One image, uint8 (H, W, 3)."""

    @property
    @abstractmethod
    def size(self) -> tuple[int, int] | None:
        """Height and width where all images share them, else None."""

    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 of the content, pixels (or files) and labels: equal for equal data wherever it lies."""

    def _set_labels(self, labels: ArrayLike | None, classes: Sequence[str] | None) -> None:
        """Store labels and names of classes, checked against each other and the number of images."""
        self.labels = None if labels is None else checks.labels(labels).numpy()
        self.classes = None if classes is None else tuple(classes)
        if self.labels is None:
            return
        if len(self.labels) != len(self):
            raise InputError(f"{self.name} has {len(self)} images but {len(self.labels)} labels")
        if self.classes is not None and self.labels.max() >= len(self.classes):
            raise InputError(
                f"{self.name} has a label {self.labels.max()} but only {len(self.classes)} names of classes"
            )


class ImageArray(ImageSource):
    """Images of one size in memory, or in a memory-mapped file.

    Args:
        images: uint8 (N, H, W, 3).
        labels: (N,), integers from 0.
        name: see :class:`ImageSource`.
        classes: names of the classes, by label.

    Raises:
        InputError: another type or shape, no image, labels that do not fit.

    >>> ImageArray(np.zeros((2, 32, 32, 3), np.uint8), labels=[0, 1], name="black")
    ImageArray(black: 2 images of 32 × 32, 2 classes)
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: ArrayLike | None = None,
        name: str = "images",
        classes: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
            what = (
                f"{images.dtype} of shape {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
            )
            raise InputError(
                f"images of {name}: {what}; they must be a numpy array, uint8, of shape (N, H, W, 3){_advice(images)}"
            )
        if np.ma.is_masked(images):
            raise InputError(f"images of {name} have masked entries; every pixel must hold a number")
        if 0 in images.shape:
            raise InputError(f"images of {name} have shape {images.shape}: there is nothing in them")
        self.images, self.name = images, name
        self._set_labels(labels, classes)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        image: np.ndarray = self.images[index]
        return image

    @property
    def size(self) -> tuple[int, int]:
        return self.images.shape[1], self.images.shape[2]

    def __repr__(self) -> str:
        classes = "" if self.labels is None else f", {len(np.unique(self.labels))} classes"
        return f"ImageArray({self.name}: {len(self):,} images of {self.size[0]} × {self.size[1]}{classes})"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"images|{self.images.shape}|".encode())
        for start in range(0, len(self), 4096):
            digest.update(np.ascontiguousarray(self.images[start : start + 4096]).data)
        if self.labels is not None:
            digest.update(b"labels|" + np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


def _advice(images: object) -> str:
    """How to make images what they must be, where their shape and type tell."""
    if not isinstance(images, np.ndarray):
        return ""
    shape, steps = images.shape, []
    if len(shape) == 3 and shape[2] != 3:
        steps.append("grey images become colour by numpy.repeat(images[..., None], 3, axis=3)")
    elif len(shape) == 3:
        steps.append("a single image becomes a set of one by images[None]")
    elif len(shape) == 4 and shape[3] == 1:
        steps.append("grey images become colour by numpy.repeat(images, 3, axis=3)")
    elif len(shape) == 4 and shape[3] == 4:
        steps.append("drop the fourth channel by images[..., :3]")
    elif len(shape) == 4 and shape[1] == 3 != shape[3]:
        steps.append("channels go last by images.transpose(0, 2, 3, 1)")
    if images.dtype.kind == "f":
        steps.append("values in [0, 1] become bytes by (255 * images).round().astype(numpy.uint8)")
    elif images.dtype.kind in "iu" and images.dtype != np.uint8:
        steps.append("values in 0 … 255 become bytes by images.astype(numpy.uint8)")
    return "".join(f"; {step}" for step in steps)
