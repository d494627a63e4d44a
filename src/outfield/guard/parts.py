"""What the images of a guard are for, and whether their labels are those of the network."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outfield.errors import InputError, TooFewSamplesError
from outfield.features.set import FeatureSet
from outfield.guard.held_out import TO_CHOOSE, needed, split_off, stratified
from outfield.images.part import part_of
from outfield.images.source import ImageSource

log = logging.getLogger(__name__)
SHOWN = 8
"""Names of classes in a message."""


@dataclass(frozen=True)
class Parts:
    """The images of a guard by what they are for.

    Attributes:
        train: the detector is fitted on them.
        choose: the members of a sum are chosen and calibrated on them; None where the detector has none.
        calibrate: the threshold is chosen on their scores, and nothing else saw them.
        split: whether the held-out images were split off from those that the guard is built of.
    """

    train: ImageSource
    choose: ImageSource | None
    calibrate: ImageSource
    split: bool


def divide(
    images: ImageSource, held_out: ImageSource | None, keep: float, chooses: bool, seed: int, most: int | None = None
) -> Parts:
    """Who is fitted, and who calibrates.

    Args:
        images: what the guard is built of.
        held_out: what calibrates it; some of the images if None.
        keep: share of ID images that the threshold is to keep.
        chooses: whether the detector calibrates itself, too.
        seed: of what is drawn.
        most: images that the detector is fitted on, of each class in proportion; all if None.

    Raises:
        TooFewSamplesError: there are too few images.
    """
    least, split = needed(keep, chooses), held_out is None
    train = images
    if held_out is None:
        out = split_off(images.labels, len(images), least, seed)
        train, held_out = part_of(images, np.flatnonzero(~out)), part_of(images, np.flatnonzero(out))
        log.info(
            "%s of %s images are held out to calibrate the guard; a network knows images that it was trained on too well, so "
            "that a guard rejects more new ones than it should: held-out images that the network has not seen are better",
            f"{len(held_out):,}",
            f"{len(images):,}",
        )
    if most is not None and len(train) > most:
        log.info("the detector is fitted on %s of %s images", f"{most:,}", f"{len(train):,}")
        train = part_of(train, np.flatnonzero(stratified(train.labels, len(train), most, seed + 2)))
    if len(held_out) < least:
        raise TooFewSamplesError(
            f"{held_out.name} has {len(held_out)} held-out images; at least {least} are needed for a guard that keeps {keep:.4g} "
            "of ID images"
        )
    if not chooses:
        return Parts(train, None, held_out, split)
    count = TO_CHOOSE + (len(held_out) - least) // 2
    first = stratified(held_out.labels, len(held_out), count, seed + 1)
    if int(first.sum()) < TO_CHOOSE:  # classes of one image each
        first = stratified(None, len(held_out), count, seed + 1)
    return Parts(train, part_of(held_out, np.flatnonzero(first)), part_of(held_out, np.flatnonzero(~first)), split)


def with_network_labels(images: ImageSource, names: Sequence[str]) -> ImageSource:
    """Images whose labels count the network's classes, found by name; others as they are, where names are not known.

    Raises:
        InputError: a class of the images is none of the network's.
    """
    if not names or images.classes is None or images.labels is None or images.classes == tuple(names):
        return images
    for name in images.classes:
        if name not in names:
            raise InputError(
                f"{images.name} has a class {name!r:.100}, which the network does not know; its classes are "
                f"{', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}: name the folders so, or put all images into "
                "one folder, without classes"
            )
    number = np.array([names.index(name) for name in images.classes])
    renamed = copy.copy(images)
    renamed.labels, renamed.classes = number[images.labels], tuple(names)
    return renamed


def means_the_same(images: ImageSource, classes: int) -> bool:
    """Whether the labels of images are the classes of a network with so many, going by their number."""
    if images.labels is None:
        return False
    return int(images.labels.max()) < classes and (images.classes is None or len(images.classes) == classes)


def that_were_read(images: ImageSource, rows: FeatureSet) -> ImageSource:
    """Those of the images that have a row: others could not be read."""
    if len(rows) == len(images) or images.names is None or rows.names is None:
        return images
    read = set(rows.names)
    return part_of(images, np.array([index for index, name in enumerate(images.names) if name in read]))


def labelled(rows: FeatureSet) -> FeatureSet:
    """The same rows with the network's own predictions as their labels, where they have none."""
    tensors = rows.tensors()
    return FeatureSet(**{"labels": tensors["logits"].argmax(1), **tensors}, about=rows.about)
