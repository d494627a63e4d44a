"""Stand-ins for OOD data, made of ID images: lazily, the same for the same seed and image, whatever else is asked for."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from outfield.config import require_number
from outfield.errors import InputError, StorageError, as_ours
from outfield.extras import library
from outfield.files import PathLike, as_path
from outfield.images.image_source import ImageSource, as_images, check_image
from outfield.partners import Partners, StandIns, chosen_kinds
from outfield.progress import bar

VERSION = 1  # Part of the fingerprint; raised when a kind makes other images than before
FINE = 8  # Small tiles and blocks are an eighth of the side: 4 of 32 pixels
# What a kind does to an image (H, W, 3), images of any size to mix it with, as many as it asks for, and a generator
Change = Callable[[np.ndarray, Sequence[np.ndarray], np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Kind:
    """A kind of stand-in: its name, what it stands for, what is done to an image, with how many others; whether sides swap."""

    name: str
    level: str
    meaning: str
    change: Change
    partners: int = 0
    turns: bool = False


class StandInImages(ImageSource):
    """Images of one kind of stand-in, each made when it is asked for, of the images whose numbers are ``chosen``."""

    def __init__(self, images: ImageSource, kind: Kind, seed: int, chosen: Sequence[int]) -> None:
        self.images, self.kind, self.seed, self.chosen = images, kind, seed, chosen
        self.name, self.labels, self.classes = f"{images.name}, {kind.name}", None, None
        self.names = None if images.names is None else tuple(images.names[i] for i in chosen)
        self._partners = Partners(len(images), images.labels) if kind.partners else None

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> np.ndarray:
        number = int(self.chosen[index])
        rng = np.random.default_rng([self.seed, zlib.crc32(self.kind.name.encode()), number])
        numbers = [number]
        if self._partners is not None:  # different ones, where there are enough
            choices, wanted = int(self._partners.choices(number)), self.kind.partners
            numbers += self._partners.of(number, rng.choice(choices, wanted, replace=choices < wanted)).tolist()
        image, *others = (self.images[one] for one in numbers)
        for one, found in zip(numbers, (image, *others), strict=True):
            check_image(found, f"image {one} of {self.images.name}")  # a source may be anybody's
        return np.ascontiguousarray(self.kind.change(image, others, rng))

    @property
    def size(self) -> tuple[int, int] | None:
        size = self.images.size
        return size[::-1] if size is not None and self.kind.turns else size

    def _shape(self) -> str:
        return f", {self.kind.level}"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"stand-ins {VERSION}|{self.kind.name}|{self.seed}|".encode())
        digest.update(np.asarray(self.chosen, np.int64).tobytes() + self.images.fingerprint().encode())
        return digest.hexdigest()


def stand_ins(
    images: Any,
    kinds: Iterable[str] | None = None,
    seed: int = 0,
    count: int | None = None,
    seen: Collection[str] = (),
) -> StandIns[StandInImages]:
    """Images that stand for OOD data, made of ID images, by the name of their kind.

    What a kind does to an image depends on the seed and on the image's number alone. Where images are mixed, the others are of
    another class if labels are known. Images keep their own size (height and width change places in ``turned90``).

    Args:
        images: ID images that no detector was fitted on: an :class:`outfield.ImageSource`, an array (N, H, W, 3), or a list.
        kinds: Which kinds; all of :data:`KINDS` if None.
        seed: Another seed mixes other images and lays tiles otherwise.
        count: How many images are made of each kind, of images evenly spread over the set; one of each image if None.
        seen: Kinds to leave out, for the network saw them in training (:attr:`outfield.Backbone.outliers`).

    Raises:
        UnknownNameError: There is no such kind.
        InputError: There are no images, or only one where images are mixed, or more are asked for than there are.

    >>> made = stand_ins(np.zeros((4, 32, 32, 3), np.uint8), kinds=["turned90", "blocks"])
    >>> made
    StandIns(turned90 (near), blocks (far))
    >>> made["blocks"][0].shape
    (32, 32, 3)
    """
    source, chosen = as_images(images), chosen_kinds(kinds, KINDS)
    chosen = {name: kind for name, kind in chosen.items() if name not in seen}
    require_number("seed", seed, least=0, most=2**63 - 1, whole=True)
    total = len(source)
    if count is not None:
        require_number("count", count, least=1, most=total, whole=True)
    for kind in chosen.values():
        if kind.partners and total < 2:
            raise InputError(f"there is one image in {source.name}; {kind.name} mixes images and needs at least two")
    numbers = range(total) if count is None else [i * total // int(count) for i in range(int(count))]
    made = {name: StandInImages(source, kind, int(seed), numbers) for name, kind in chosen.items()}
    return StandIns(made, {name: kind.level for name, kind in chosen.items()})


def turned90(image: np.ndarray, partners: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """A quarter turn to the left or to the right."""
    return np.rot90(image, int(rng.choice([1, 3])))


def turned180(image: np.ndarray, partners: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Upside down."""
    return np.rot90(image, 2)


def inverted(image: np.ndarray, partners: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """255 − x."""
    return 255 - image


def mixed(image: np.ndarray, partners: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """(x + x′) / 2, rounded up."""
    other = resized(partners[0], *image.shape[:2])
    found: np.ndarray = ((image.astype(np.uint16) + other + 1) // 2).astype(np.uint8)
    return found


def halves(image: np.ndarray, partners: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """The left or upper half of the image, the other half of its partner."""
    other, found = resized(partners[0], *image.shape[:2]), image.copy()
    axis = int(rng.integers(2))
    middle = (image.shape[axis] + 1) // 2
    part = (slice(middle, None), slice(None)) if axis == 0 else (slice(None), slice(middle, None))
    found[part] = other[part]
    return found


def quarters(image: np.ndarray, partners: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """A quarter of each of four images, each at its own place."""
    height, width = image.shape[:2]
    found = image.copy()
    rows, columns = (slice(0, (side + 1) // 2) for side in (height, width))
    lower, right = (slice((side + 1) // 2, side) for side in (height, width))
    for part, other in zip(((rows, right), (lower, columns), (lower, right)), partners, strict=True):
        found[part] = resized(other, height, width)[part]
    return found


def jigsaw(image: np.ndarray, partners: Sequence[np.ndarray], rng: np.random.Generator, grid: int) -> np.ndarray:
    """The ``grid`` × ``grid`` tiles of an image, each at another place; they overlap where the side is no multiple of it."""
    starts, sizes = zip(*(_cut(side, grid) for side in image.shape[:2]), strict=True)
    places = [(row, column) for row in starts[0] for column in starts[1]]
    found = np.empty_like(image)
    for (row, column), source in zip(places, _cycle(len(places), rng), strict=True):
        top, left = places[source]
        tile = image[top : top + sizes[0], left : left + sizes[1]]
        found[row : row + sizes[0], column : column + sizes[1]] = tile
    return found


def blocks(image: np.ndarray, partners: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Blocks of an eighth of the side, but of at least two pixels, each of its mean colour."""
    height, width = (max(1, min(FINE, side // 2)) for side in image.shape[:2])
    means = functional.adaptive_avg_pool2d(_as_tensor(image), (height, width))
    return _as_image(functional.interpolate(means, image.shape[:2], mode="nearest"))


def phase(image: np.ndarray, partners: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """The amplitudes of the image's frequencies with the phases of noise, the same for all channels; its mean colour stays."""
    spectrum = np.fft.rfft2(image.astype(np.float64), axes=(0, 1))
    noise = np.fft.rfft2(rng.standard_normal(image.shape[:2]))
    turn = noise / np.maximum(np.abs(noise), np.finfo(np.float64).tiny)
    turn[0, 0] = 1
    found = np.fft.irfft2(np.abs(spectrum) * turn[..., None], s=image.shape[:2], axes=(0, 1))
    return found.round().clip(0, 255).astype(np.uint8)


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image in another size, by bilinear interpolation with antialiasing."""
    if image.shape[:2] == (height, width):
        return image
    return _as_image(functional.interpolate(_as_tensor(image), (height, width), mode="bilinear", antialias=True))


def _as_tensor(image: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.ascontiguousarray(image), device="cpu", dtype=torch.float32).permute(2, 0, 1)[None]


def _as_image(tensor: torch.Tensor) -> np.ndarray:
    found: np.ndarray = tensor[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    return found


def _cut(side: int, grid: int) -> tuple[list[int], int]:
    """Where tiles of one size begin that cover a side, and that size."""
    pieces = min(grid, side)
    size = -(-side // pieces)
    return [(side - size) * i // max(1, pieces - 1) for i in range(pieces)], size


def _cycle(count: int, rng: np.random.Generator) -> list[int]:
    """A random order in which nothing is at its own place (Sattolo's algorithm)."""
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = int(rng.integers(i))
        order[i], order[j] = order[j], order[i]
    return order


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("turned90", "near", "The image is turned by 90°, to the left or to the right.", turned90, turns=True),
        Kind("turned180", "near", "The image is turned upside down.", turned180),
        Kind("mixed", "near", "The mean of two images of different classes.", mixed, 1),
        Kind("halves", "near", "One half of the image, the other half of an image of another class.", halves, 1),
        Kind("quarters", "near", "Four quarters of four images, the others of other classes.", quarters, 3),
        Kind("inverted", "near", "Light is dark and every colour its opposite.", inverted),
        Kind("jigsaw2", "near", "The four quarters of the image, each at another place.", partial(jigsaw, grid=2)),
        Kind("jigsaw8", "far", "Tiles of an eighth of the side, each at another place.", partial(jigsaw, grid=FINE)),
        Kind("blocks", "far", "Blocks of an eighth of the side, each of its mean colour.", blocks),
        Kind(
            "phase", "far", "The image's frequencies with phases of noise: its colours and grain, nothing in it.", phase
        ),
    )
}


# Stand-ins in a folder of PNG files, with a sheet of examples


SHEET = "examples.png"
EXAMPLES = 8  # Columns of the sheet
# In pixels: a side of an example, between two, around all, and the column of names
CELL, GAP, MARGIN, NAMES = 96, 6, 24, 128
PAPER, INK, FAINT = (255, 255, 255), (28, 32, 38), (112, 120, 130)


def write_stand_ins(made: StandIns[StandInImages], folder: PathLike) -> None:
    """Write ``LEVEL/KIND/NUMBER.png`` for each image, and ``examples.png``, to a folder that appears once all is written."""
    target = as_path(folder, "folder")
    check_free(target)
    wrong = as_ours(f"cannot write {target}", StorageError, OSError, after="; nothing was changed")
    with wrong, tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.absolute().parent) as scratch:
        new = Path(scratch) / target.name
        _fill(new, made)
        if target.is_dir():
            target.rmdir()
        os.rename(new, target)


def _fill(folder: Path, made: StandIns[StandInImages]) -> None:
    done = 0
    with bar("writing stand-ins", sum(len(images) for images in made.values()), "images") as advance:
        for name, images in made.items():
            inside = folder / made.levels[name] / name
            inside.mkdir(parents=True)
            for index, number in enumerate(images.chosen):
                (inside / f"{number:06d}.png").write_bytes(as_png(images[index]))
                done += 1
                advance(done)
    first = next(iter(made.values()))
    shown = sorted({i * len(first) // EXAMPLES for i in range(EXAMPLES)})
    rows = {"images": [first.images[first.chosen[index]] for index in shown]}
    rows |= {name: [images[index] for index in shown] for name, images in made.items()}
    (folder / SHEET).write_bytes(sheet(rows, {"images": "as they are", **made.levels}))


def check_free(folder: Path) -> None:
    """Refuse a folder that would be written over, and a place without a folder around it."""
    with as_ours(f"cannot read {folder}", StorageError, OSError):
        if os.path.lexists(folder) and (not os.path.isdir(folder) or next(os.scandir(folder), None) is not None):
            raise InputError(f"{folder} holds something, or is no folder; name one that is not there yet, or empty")
    if not os.path.isdir(folder.absolute().parent):
        raise StorageError(f"cannot write {folder}: there is no folder {folder.absolute().parent}")


def sheet(rows: Mapping[str, Sequence[np.ndarray]], notes: Mapping[str, str]) -> bytes:
    """A PNG with the images (H, W, 3) of each name in one row, and a note below the name."""
    pillow, draw = library("PIL.Image", extra="images"), library("PIL.ImageDraw", extra="images")
    fonts = library("PIL.ImageFont", extra="images")
    columns = max(len(images) for images in rows.values())
    width = 2 * MARGIN + NAMES + columns * (CELL + GAP) - GAP
    height = 2 * MARGIN + len(rows) * (CELL + GAP) - GAP
    page = pillow.new("RGB", (width, height), PAPER)
    pen = draw.Draw(page)
    for row, (name, images) in enumerate(rows.items()):
        top = MARGIN + row * (CELL + GAP)
        for text, below, colour, size in ((name, -20, INK, 18), (notes.get(name, ""), 4, FAINT, 14)):
            pen.text((MARGIN, top + CELL // 2 + below), text, colour, font=fonts.load_default(size))
        for column, image in enumerate(images):
            page.paste(_fitted(image), (MARGIN + NAMES + column * (CELL + GAP), top))
    return as_png(page)


def as_png(image: Any) -> bytes:
    """A PNG of pixels uint8 (H, W, 3), or of an image of Pillow's."""
    file = io.BytesIO()
    if isinstance(image, np.ndarray):
        image = library("PIL.Image", extra="images").fromarray(np.ascontiguousarray(image))
    image.save(file, "PNG")
    return file.getvalue()


def _fitted(image: np.ndarray) -> Any:
    """An image as a cell; pixels of a small one are enlarged as they are."""
    pillow, operations = library("PIL.Image", extra="images"), library("PIL.ImageOps", extra="images")
    how = pillow.Resampling.NEAREST if max(image.shape) < CELL else pillow.Resampling.LANCZOS
    return operations.pad(pillow.fromarray(np.ascontiguousarray(image)), (CELL, CELL), how, PAPER)
