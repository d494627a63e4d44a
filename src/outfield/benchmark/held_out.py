"""What calibrates detectors in a benchmark: ID samples that are split off from the test set before anything is judged.

Detectors that calibrate themselves (:class:`outfield.detectors.summed.Summed`) are given them; of held-out images, stand-ins for
OOD data are made, too, for :class:`outfield.Auto` to choose by. Every detector is judged on the rest of the test set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from outfield.config import require_number
from outfield.detectors.auto import Auto
from outfield.detectors.base import Detector
from outfield.detectors.summed import LEAST, Summed
from outfield.errors import InputError
from outfield.features.part import Part
from outfield.features.set import FeatureSource
from outfield.images.part import part_of
from outfield.images.source import ImageSource
from outfield.images.stand_ins import stand_ins

HELD_OUT = "held_out"
"""How the held-out samples are called among a backbone's sets."""
STAND_IN = "stand-in "
"""What the names of stand-ins begin with there."""
SEED = 0
"""Of the choice of samples, and of the stand-ins."""
SHARE, MOST = 0.1, 1000
"""Of the test set, and how many samples at most, where nobody says how many."""


def held_out_count(wanted: int | None, detectors: Iterable[Detector], test: int) -> int:
    """How many of the samples of a test set are held out.

    Args:
        wanted: so many; None for a tenth of them, at most 1,000, where a detector calibrates itself, and none else.
        detectors: that will run.
        test: how many samples the test set has.

    Raises:
        InputError: more than half of them, or so few that they calibrate nothing.
    """
    if wanted is None:
        tenth = min(MOST, round(SHARE * test))
        return tenth if tenth >= 2 * LEAST and any(isinstance(one, Summed) for one in detectors) else 0
    require_number("held_out", wanted, least=0, whole=True)
    if wanted and not 2 * LEAST <= wanted <= test // 2:
        raise InputError(
            f"held_out is {wanted}; it must be 0, or from {2 * LEAST} to {test // 2}, half of the ID test set"
        )
    return int(wanted)


def split(total: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the samples that are judged and of those that are held out, each in ascending order."""
    order = np.random.default_rng(SEED).permutation(total)
    return np.sort(order[count:]), np.sort(order[:count])


def split_images(
    images: Mapping[str, ImageSource], test: str, count: int, detectors: Iterable[Detector]
) -> tuple[dict[str, ImageSource], dict[str, str]]:
    """Images with some of the test set held out, and the level that each set of stand-ins stands for.

    Args:
        images: by the name of their set.
        test: the set to split.
        count: how many images are held out.
        detectors: that will run; stand-ins are made where one chooses by them.
    """
    if not count:
        return dict(images), {}
    judged, held_out = split(len(images[test]), count)
    kept = part_of(images[test], held_out)
    made = stand_ins(kept, seed=SEED) if any(isinstance(one, Auto) for one in detectors) else None
    found = {**images, test: part_of(images[test], judged), HELD_OUT: kept}
    if made is None:
        return found, {}
    return found | {STAND_IN + name: one for name, one in made.items()}, {
        STAND_IN + name: level for name, level in made.levels.items()
    }


def split_features(sets: Mapping[str, FeatureSource], test: str, count: int) -> dict[str, FeatureSource]:
    """Features with some rows of the test set held out, unless held-out rows are there."""
    if HELD_OUT in sets or not count:
        return dict(sets)
    mask = torch.zeros(len(sets[test]), dtype=torch.bool)
    mask[torch.from_numpy(split(len(sets[test]), count)[1])] = True
    return {**sets, test: Part(sets[test], ~mask).in_memory(), HELD_OUT: Part(sets[test], mask).in_memory()}
