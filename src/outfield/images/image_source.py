"""Sources of images: colour pixels as bytes, labels where they are known, a digest; in memory, or some images of another."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from outfield.errors import InputError, OutfieldError
from outfield.files import class_labels
from outfield.percent import counted
from outfield.progress import bar


class ImageSource(ABC):
    """N images, in memory (:class:`ImageArray`) or decoded one by one (:class:`outfield.images.folder.ImageFiles`).

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
    def size(self) -> tuple[int, int] | None:
        """Height and width where all images share them, and that is known, else None."""
        return None

    def __repr__(self) -> str:
        classes = "" if self.labels is None else f", {counted(len(np.unique(self.labels)), 'class')}"
        return f"{type(self).__name__}({self.name}: {counted(len(self), 'image')}{self._shape()}{classes})"

    def _shape(self) -> str:
        """What a line for people says behind the number of images."""
        return ""

    def content(self, index: int) -> bytes:
        """What makes an image equal to another: its file, or its shape and pixels."""
        image = self[index]
        return f"{image.shape}|".encode() + np.ascontiguousarray(image).tobytes()

    def fingerprint(self) -> str:
        """SHA-256 of the content, pixels (or files) and labels: equal for equal data wherever it lies."""
        digest = hashlib.sha256(f"images|{len(self)}|".encode())
        for index in range(len(self)):
            content = self.content(index)
            digest.update(f"{len(content)}|".encode() + content)
        return self._with_labels(digest)

    def _set_labels(self, labels: ArrayLike | None, classes: Sequence[str] | None) -> None:
        """Store labels and names of classes, checked against each other and the number of images."""
        self.labels = None if labels is None else class_labels(labels).numpy()
        self.classes = None if classes is None else tuple(classes)
        if self.labels is None:
            return
        if len(self.labels) != len(self):
            raise InputError(f"{self.name} has {counted(len(self), 'image')} but {counted(len(self.labels), 'label')}")
        if self.classes is not None and self.labels.max() >= len(self.classes):
            known = f"only {len(self.classes)} names of classes"
            raise InputError(f"{self.name} has a label {self.labels.max()} but {known}")

    def _with_labels(self, digest: Any) -> str:
        """The digest of the images and of their labels."""
        if self.labels is not None:
            digest.update(b"labels|" + np.ascontiguousarray(self.labels).tobytes())
        found: str = digest.hexdigest()
        return found


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
        if not _is_pixels(images, 4):
            raise InputError(
                f"images of {name}: {_kind(images)}; they must be a numpy array, uint8 (N, H, W, 3), not empty: grey images "
                "become colour by numpy.repeat(images[..., None], 3, axis=3), channels go last by images.transpose(0, 2, 3, 1), "
                "values in [0, 1] become bytes by (255 * images).round().astype(numpy.uint8)"
            )
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

    def _shape(self) -> str:
        return f" of {self.size[0]} × {self.size[1]}"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"images|{self.images.shape}|".encode())
        for start in range(0, len(self), 4096):
            digest.update(np.ascontiguousarray(self.images[start : start + 4096]).data)
        return self._with_labels(digest)


class ImageList(ImageSource):
    """Images of different sizes in memory, each uint8 (H, W, 3)."""

    def __init__(self, images: Sequence[np.ndarray]) -> None:
        self.images, self.name, self.labels, self.classes = tuple(images), "images", None, None
        if not self.images:
            raise InputError("there are no images; at least one is needed")
        for index, image in enumerate(self.images):
            check_image(image, f"image {index}")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.images[index]

    @property
    def size(self) -> tuple[int, int] | None:
        sizes = {(image.shape[0], image.shape[1]) for image in self.images}
        return sizes.pop() if len(sizes) == 1 else None


def check_source(images: object) -> None:
    """Refuse what is no source of images."""
    if not isinstance(images, ImageSource):
        what = f"images is a {type(images).__name__}; wrap an array, uint8 (N, H, W, 3), in outfield.ImageArray(array)"
        raise InputError(f"{what}, or open a folder or file, outfield.open_images(path)")


def check_image(image: Any, what: str) -> None:
    """Refuse what is not uint8 (H, W, 3), or empty."""
    if not _is_pixels(image, 3):
        raise InputError(f"{what} is {_kind(image)}; images are numpy arrays, uint8 (H, W, 3)")


def _is_pixels(found: Any, dimensions: int) -> bool:
    plain = isinstance(found, np.ndarray) and found.dtype == np.uint8
    return plain and found.ndim == dimensions and 0 not in found.shape and found.shape[-1] == 3


def _kind(found: object) -> str:
    return f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"


def as_images(images: Any) -> ImageSource:
    """A source of images as it is; an array (N, H, W, 3) or a list of images (H, W, 3) as one."""
    if isinstance(images, list | tuple):
        return ImageList(images)
    if isinstance(images, np.ndarray):
        return ImageArray(images)
    check_source(images)
    return images  # type: ignore[no-any-return]


class PartOfImages(ImageSource):
    """Chosen images of a set that decodes them one by one, by their numbers in the order in which they are wanted."""

    def __init__(self, images: ImageSource, index: np.ndarray) -> None:
        self.images, self.index, self.name, self.classes = images, index, images.name, images.classes
        self.labels = None if images.labels is None else np.asarray(images.labels)[index]
        self.names = None if images.names is None else tuple(images.names[i] for i in index.tolist())

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.images[int(self.index[index])]

    def content(self, index: int) -> bytes:
        return self.images.content(int(self.index[index]))

    @property
    def size(self) -> tuple[int, int] | None:
        return self.images.size

    def fingerprint(self) -> str:
        chosen = np.ascontiguousarray(self.index, np.int64).tobytes()
        return hashlib.sha256(b"part|" + chosen + self.images.fingerprint().encode()).hexdigest()

    def _shape(self) -> str:
        return f" of {len(self.images):,}"


def part_of(images: ImageSource, index: np.ndarray) -> ImageSource:
    """Some images of a set, in the order of the index (n,); those in memory stay an :class:`ImageArray`."""
    if not isinstance(images, ImageArray):
        return PartOfImages(images, index)
    labels = None if images.labels is None else images.labels[index]
    return ImageArray(images.images[index], labels, images.name, images.classes)


def image_copies(images: ImageSource) -> np.ndarray:
    """The number of the first equal image for each image (N,), int64; one that cannot be read is equal to none."""
    first: dict[object, int] = {}
    numbers = []
    with bar(f"copies in {images.name}", len(images), "images") as advance:
        for index in range(len(images)):
            try:
                key: object = hashlib.blake2b(images.content(index), digest_size=16).digest()
            except OutfieldError:
                key = index
            numbers.append(first.setdefault(key, index))
            advance(index + 1)
    return np.array(numbers)
