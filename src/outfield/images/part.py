"""Some images of a set."""

from __future__ import annotations

import hashlib

import numpy as np

from outfield.images.source import ImageArray, ImageSource


class PartOfImages(ImageSource):
    """Chosen images of a set that decodes them one by one.

    Args:
        images: the set.
        index: numbers of the images, in the order in which they are wanted.
    """

    def __init__(self, images: ImageSource, index: np.ndarray) -> None:
        self.images, self.index, self.name, self.classes = images, index, images.name, images.classes
        self.labels = None if images.labels is None else np.asarray(images.labels)[index]
        self.names = None if images.names is None else tuple(images.names[i] for i in index.tolist())

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.images[int(self.index[index])]

    @property
    def size(self) -> tuple[int, int] | None:
        return self.images.size

    def fingerprint(self) -> str:
        chosen = np.ascontiguousarray(self.index, np.int64).tobytes()
        return hashlib.sha256(b"part|" + chosen + self.images.fingerprint().encode()).hexdigest()

    def __repr__(self) -> str:
        return f"PartOfImages({self.name}: {len(self):,} of {len(self.images):,} images)"


def part_of(images: ImageSource, index: np.ndarray) -> ImageSource:
    """Some images of a set, in the order of the index (n,); those in memory stay an :class:`ImageArray`."""
    if not isinstance(images, ImageArray):
        return PartOfImages(images, index)
    labels = None if images.labels is None else images.labels[index]
    return ImageArray(images.images[index], labels, images.name, images.classes)
