"""Small folders that look like published sets."""

import numpy as np
from PIL import Image


def pixels(n: int = 4, side: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, "PNG")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def textures_folder(folder):
    for name, image in zip(("dotted/a.jpg", "banded/b.jpg", "banded/c.jpg"), pixels(), strict=False):
        save(folder / "images" / name, image)
    write(folder / "labels/test1.txt", "dotted/a.jpg\nbanded/c.jpg\n")
    write(folder / "labels/train1.txt", "banded/b.jpg\n")
