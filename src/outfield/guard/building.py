"""Fitting what a guard needs: which images are for what, labels, the detector, and the threshold."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from outfield.backbone.backbone import Backbone, accuracy
from outfield.backbone.views import Views
from outfield.detectors.auto import Auto
from outfield.detectors.base import Detector
from outfield.detectors.fused import Fused
from outfield.detectors.summed import Summed
from outfield.errors import InputError, TooFewSamplesError
from outfield.features.set import FeatureSet
from outfield.guard.held_out import TO_CHOOSE, needed, split_off, stratified
from outfield.guard.running import look_into
from outfield.images.part import part_of
from outfield.images.source import ImageSource
from outfield.images.stand_ins import stand_ins
from outfield.percent import percent
from outfield.scores.threshold import Threshold

log = logging.getLogger(__name__)
STAND_INS = 500
"""Images of each kind of stand-in, at most."""
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


def labelled(rows: FeatureSet) -> FeatureSet:
    """The same rows with the network's own predictions as their labels, where they have none."""
    tensors = rows.tensors()
    return FeatureSet(**{"labels": tensors["logits"].argmax(1), **tensors}, about=rows.about)


@dataclass(frozen=True)
class Fitted:
    """What :func:`fit` made.

    Attributes:
        detector: fitted.
        threshold: chosen on images that the detector has not seen.
        accuracy: on the held-out images, where the labels mean the network's classes.
        notes: how it came about, ready for JSON.
    """

    detector: Detector
    threshold: Threshold
    accuracy: float | None
    notes: dict[str, Any]


def fit(
    backbone: Backbone,
    parts: Parts,
    detector: Detector,
    *,
    keep: float,
    views: Views,
    seed: int,
    rounded: Callable[[Detector], Detector],
    **extraction: Any,
) -> Fitted:
    """Run the network over the images, fit the detector, choose the threshold.

    Args:
        backbone: the network.
        parts: the images.
        detector: not fitted yet.
        keep: share of ID images that the threshold keeps.
        views: over which fields are averaged.
        seed: of stand-ins.
        rounded: what becomes of the fitted detector before the threshold is chosen.
        extraction: others of :meth:`outfield.Backbone.extract`.
    """
    stages, classes = look_into(backbone, _wants_stages(detector))
    known = means_the_same(parts.train, classes)

    def extract(images: ImageSource, labels: bool) -> FeatureSet:
        odin = {"odin": _odin()} if "odin_logits" in detector.needs_to_score else {}
        return backbone.extract(images, stages=stages, views=views, labels=labels, **odin, **extraction)

    train = extract(parts.train, known)
    calibrate = extract(parts.calibrate, known and means_the_same(parts.calibrate, classes))
    choose = None if parts.choose is None else extract(parts.choose, calibrate.labels is not None)
    right = _accuracy(backbone, calibrate if choose is None or calibrate.labels is None else _joined(choose, calibrate))
    if train.labels is None:
        log.info("there are no labels of the network's classes; its own predictions take their place")
    train, choose = labelled(train), None if choose is None else labelled(choose)
    if isinstance(detector, Auto) and choose is not None and parts.choose is not None:
        good = _that_were_read(parts.choose, choose)
        made = stand_ins(good, seed=seed, count=min(STAND_INS, len(good))).map(lambda images: extract(images, False))
        detector.fit(train, choose, made)
        tried = 0 if detector.choice_ is None else len(detector.choice_.trials)
        log.info("took %s, the best of %s sums", " + ".join(detector.names), f"{tried:,}")
    elif isinstance(detector, Fused) and choose is not None:
        detector.fit(train, choose)
    else:
        detector.fit(train)
    detector = rounded(detector)
    threshold = Threshold.fit(detector.score(calibrate), keep=keep, source=detector.fingerprint())
    notes = {
        "images": parts.train.name,
        "train": len(train),
        "choose": 0 if choose is None else len(choose),
        "calibrate": len(calibrate),
        "split_off": parts.split,
        "labels": "given" if known else "predicted",
        "accuracy": right,
        "stages": stages,
    }
    return Fitted(detector, threshold, right, notes)


def _that_were_read(images: ImageSource, rows: FeatureSet) -> ImageSource:
    """Those of the images that have a row: others could not be read."""
    if len(rows) == len(images) or images.names is None or rows.names is None:
        return images
    read = set(rows.names)
    return part_of(images, np.array([index for index, name in enumerate(images.names) if name in read]))


def _odin() -> Any:
    from outfield.backbone.odin import Odin

    return Odin()


def _joined(one: FeatureSet, other: FeatureSet) -> FeatureSet:
    """Logits and labels of both, which is all that accuracy needs."""
    logits, labels = (torch.cat([part.tensors()[name] for part in (one, other)]) for name in ("logits", "labels"))
    return FeatureSet(logits, logits=logits, labels=labels)


def _wants_stages(detector: Detector) -> bool:
    """Whether a detector may use what the network's blocks give."""
    wanted = (*detector.uses, *detector.needs_to_fit, *detector.needs_to_score)
    return any(name.startswith("stage") for name in wanted)


def _accuracy(backbone: Backbone, rows: FeatureSet) -> float | None:
    """Of labelled rows; a warning where always naming the most frequent class would be right as often."""
    if rows.labels is None:
        return None
    found, most = accuracy(rows), float(rows.labels.bincount().max()) / len(rows)
    log.info("accuracy of %s on %s held-out images: %s", backbone.name, f"{len(rows):,}", percent(found, 1))
    if found <= most and len(rows.labels.unique()) > 1:
        log.warning(
            "the network is right on %s of the held-out images, no more than by guessing; are the classes of the folders in the "
            "order of the network's?",
            percent(found, 1),
        )
    return found


def chooses(detector: Detector) -> bool:
    """Whether a detector calibrates itself on held-out rows."""
    return isinstance(detector, Summed)
