"""Which images calibrate a guard: split off by class from those that it is built of, and divided by what they are for."""

from __future__ import annotations

import numpy as np

from outfield.detectors.summed import LEAST
from outfield.errors import TooFewSamplesError
from outfield.scores.threshold import fewest

SHARE = 0.2
"""Of the images that is held out where nobody gives held-out images."""
ENOUGH = 240
"""So many held-out images are wanted where a fifth is less: up to a third of all are then held out."""
MOST = 5000
"""And no more than these, or than are needed: the threshold hardly becomes better."""
TO_CHOOSE = 2 * LEAST
"""Held-out images that choose and calibrate the members of a sum, at least; others choose the threshold."""


def needed(keep: float, chooses: bool) -> int:
    """Held-out images that a guard needs.

    Args:
        keep: share of ID images that the threshold is to keep.
        chooses: whether the detector calibrates itself, and so needs images that the threshold is not chosen on.
    """
    return fewest(keep) + (TO_CHOOSE if chooses else 0)


def split_off(labels: np.ndarray | None, total: int, least: int, seed: int, what: str = "images") -> np.ndarray:
    """Which images are held out (total,): a fifth of each class, more where there are few; every class keeps one.

    Args:
        labels: class of each image, or None.
        total: how many images there are.
        least: how many must be held out.
        seed: of the choice.
        what: they are, for messages.

    Raises:
        TooFewSamplesError: they would be more than half of all.
    """
    count = max(least, min(MOST, max(round(SHARE * total), min(ENOUGH, total // 3))))
    chosen = stratified(labels, total, count, seed)
    if 2 * count > total or int(chosen.sum()) < count:
        raise TooFewSamplesError(
            f"there are {total} {what}, of which {count} would have to be held out to calibrate the guard; pass at least "
            f"{2 * count} {what}, or held-out ones: --held-out, in Python held_out=…"
        )
    return chosen


def stratified(labels: np.ndarray | None, total: int, count: int, seed: int) -> np.ndarray:
    """Which of some images to take (total,): so many, of each class in proportion, and never all of one class.

    Within a class of n images the j-th in a random order has the place (j + u) / n, with u in [0, 1) of its own; the images
    with the lowest places are taken.
    """
    rng = np.random.default_rng(seed)
    classes = np.zeros(total, np.int64) if labels is None else np.asarray(labels)
    order = rng.permutation(total)
    by_class = order[np.argsort(classes[order], kind="stable")]
    sizes = np.unique(classes, return_counts=True)[1]
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    rank, size = np.arange(total) - first, np.repeat(sizes, sizes)
    places = np.where(rank == size - 1, np.inf, (rank + rng.random(total)) / size)
    lowest = np.argsort(places, kind="stable")[: min(count, int(np.isfinite(places).sum()))]
    chosen = np.zeros(total, dtype=bool)
    chosen[by_class[lowest]] = True
    return chosen
