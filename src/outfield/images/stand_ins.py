"""Stand-ins for OOD data, made of ID images: lazily, the same for the same seed and image, whatever else is asked for."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from outfield.config import require_number
from outfield.errors import InputError
from outfield.images.listed import as_images, check_image
from outfield.images.source import ImageSource
from outfield.images.stand_in_kinds import KINDS, Kind
from outfield.stand_in import Partners, StandIns, chosen_kinds

VERSION = 1
"""Part of the fingerprint; raised when a kind makes other images than before."""


class StandInImages(ImageSource):
    """Images of one kind of stand-in, each made when it is asked for; made by :func:`stand_ins`.

    Args:
        images: what they are made of.
        kind: what is done to each.
        seed: of what is drawn; another image of the set draws another number.
        chosen: numbers of the images that are taken.
    """

    def __init__(self, images: ImageSource, kind: Kind, seed: int, chosen: Sequence[int]) -> None:
        self.images, self.kind, self.seed, self.chosen = images, kind, seed, chosen
        self.name, self.labels, self.classes = f"{images.name}, {kind.name}", None, None
        self.names = None if images.names is None else tuple(images.names[i] for i in chosen)
        self._partners = Partners(len(images), images.labels) if kind.partners else None

    @property
    def level(self) -> str:
        """What they stand for, "near" or "far"."""
        return self.kind.level

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> np.ndarray:
        number = int(self.chosen[index])
        rng = np.random.default_rng([self.seed, zlib.crc32(self.kind.name.encode()), number])
        partners = [] if self._partners is None else self._draw(self._partners, number, rng)
        image, *others = (self._image(one) for one in (number, *partners))
        return np.ascontiguousarray(self.kind.change(image, others, rng))

    def _image(self, number: int) -> np.ndarray:
        image = self.images[number]
        check_image(image, f"image {number} of {self.images.name}")  # a source may be anybody's
        return image

    def _draw(self, partners: Partners, number: int, rng: np.random.Generator) -> list[int]:
        """Different ones, where there are enough."""
        choices, wanted = int(partners.choices(number)), self.kind.partners
        picked = rng.choice(choices, wanted, replace=choices < wanted)
        found: list[int] = partners.of(number, picked).tolist()
        return found

    @property
    def size(self) -> tuple[int, int] | None:
        size = self.images.size
        return size[::-1] if size is not None and self.kind.turns else size

    def __repr__(self) -> str:
        return f"StandInImages({self.name}: {len(self):,} images, {self.level})"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"stand-ins {VERSION}|{self.kind.name}|{self.seed}|".encode())
        digest.update(np.asarray(self.chosen, np.int64).tobytes() + self.images.fingerprint().encode())
        return digest.hexdigest()


def stand_ins(
    images: Any, kinds: Iterable[str] | None = None, seed: int = 0, count: int | None = None
) -> StandIns[StandInImages]:
    """Images that stand for OOD data, made of ID images, by the name of their kind.

    What a kind does to an image depends on the seed and on the image's number alone. Where images are mixed, the others are of
    another class if labels are known. Images keep their own size (height and width change places in ``turned90``).

    Args:
        images: ID images that no detector was fitted on: an :class:`outfield.ImageSource`, an array (N, H, W, 3), or a list.
        kinds: Which kinds; all of :data:`outfield.images.stand_in_kinds.KINDS` if None.
        seed: Another seed mixes other images and lays tiles otherwise.
        count: How many images are made of each kind, of images evenly spread over the set; one of each image if None.

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
