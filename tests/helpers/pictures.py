"""Generated images that a small network can learn: a class is a colour and the direction of its stripes."""

import numpy as np

from outfield.images import ImageArray


def make_pictures(n: int = 96, classes: int = 4, size: int = 16, seed: int = 0, name: str = "pictures") -> ImageArray:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    y, x = np.mgrid[:size, :size] / size
    images = np.empty((n, size, size, 3), np.uint8)
    for i, label in enumerate(labels):
        angle = np.pi * label / classes + rng.normal(0, 0.1)
        wave = np.sin(2 * np.pi * (3 * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform()))
        colour = 0.5 + 0.4 * np.cos(2 * np.pi * (label / classes + np.arange(3) / 3))
        pixels = 255 * (colour * (0.6 + 0.4 * wave[..., None])) + rng.normal(0, 12, (size, size, 3))
        images[i] = pixels.clip(0, 255).astype(np.uint8)
    return ImageArray(images, labels, name=name)


def make_noise(n: int = 60, size: int = 16, seed: int = 0, name: str = "noise") -> ImageArray:
    images = np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    return ImageArray(images, name=name)
