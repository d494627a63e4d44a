"""From a network and images to what a guard is made of: rows, labels, the detector, and the threshold."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from outfield.backbone.backbone import Backbone, accuracy
from outfield.backbone.views import Views
from outfield.detectors.auto import Auto
from outfield.detectors.base import Detector
from outfield.detectors.fused import Fused
from outfield.detectors.members import fresh
from outfield.detectors.registry import DETECTORS
from outfield.detectors.summed import Summed
from outfield.devices import resolve_device
from outfield.errors import InputError
from outfield.features.set import FeatureSet
from outfield.files.paths import PathLike
from outfield.guard import saving
from outfield.guard.asked import opened_images
from outfield.guard.parts import Parts, divide, labelled, means_the_same, that_were_read, with_network_labels
from outfield.guard.running import look_into
from outfield.guard.views import chosen_views
from outfield.images.source import ImageSource
from outfield.images.stand_ins import stand_ins
from outfield.percent import percent
from outfield.scores.threshold import Threshold

log = logging.getLogger(__name__)
STAND_INS = 500
"""Images of each kind of stand-in, at most."""


def build(
    backbone: Backbone | str,
    images: ImageSource | PathLike,
    held_out: ImageSource | PathLike | None,
    *,
    detector: Detector | str | None,
    keep: float,
    views: Views | None,
    seed: int,
    half: bool,
    most: int | None,
    device: str | torch.device,
    on_error: str,
    **extraction: Any,
) -> saving.Content:
    """What a guard is made of; see :meth:`outfield.Guard.build`."""
    model = _detector(detector, seed).to(device)
    source = opened_images(images, on_error)
    held = None if held_out is None else opened_images(held_out, on_error)
    network = _opened(backbone, device, half)
    source = with_network_labels(source, network.names)
    held = None if held is None else with_network_labels(held, network.names)
    parts = divide(source, held, keep, isinstance(model, Summed), seed, most)
    rounded = saving.rounded if half else _as_it_is
    given = {**extraction, "on_error": on_error}
    if views is None:
        views = chosen_views(network, parts, model, seed, STAND_INS, given)
    fitted = fit(network, parts, model, keep=keep, views=views, seed=seed, rounded=rounded, **given)
    if not network.names and source.classes is not None and len(source.classes) == network.classes:
        network.names = tuple(source.classes)
    notes = {**fitted.notes, "seed": seed}
    precision = extraction["precision"]
    return saving.Content(
        network, network.fingerprint(), fitted.detector, fitted.threshold, views, precision, half, notes
    )


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
        good = that_were_read(parts.choose, choose)
        made = stand_ins(good, seed=seed, count=min(STAND_INS, len(good))).map(lambda images: extract(images, False))
        detector.fit(train, choose, made)
        tried = 0 if detector.choice_ is None else len(detector.choice_.trials)
        log.info("took %s, as the best of %s sums vote", " + ".join(detector.names), f"{tried:,}")
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


def _detector(given: Detector | str | None, seed: int) -> Detector:
    if given is None:
        return Auto(seed=seed)
    if isinstance(given, str):
        cls = DETECTORS[given]
        return cls()
    return fresh(given, "auto")


def _opened(backbone: Backbone | str, device: str | torch.device, half: bool) -> Backbone:
    if isinstance(backbone, str):
        network = Backbone.open(backbone, device)
    elif isinstance(backbone, Backbone):
        resolve_device(device)
        network = copy.copy(backbone)
    else:
        raise InputError(
            f"backbone is a {type(backbone).__name__}; wrap a network, outfield.Backbone(network, size=…, mean=…, std=…), or "
            "name one, such as 'timm:resnet18'"
        )
    if network.projects:
        raise InputError(
            f"{network.name} was trained without labels: it gives features and no logits, so that a guard could not name the "
            "class of an image; extract its features (outfield extract) and build a guard of these rows (outfield guard rows)"
        )
    saving.check_origin(network)
    if half:
        network.network = copy.deepcopy(network.network)
        saving.round_network(network.network)
    return network


def _as_it_is(detector: Detector) -> Detector:
    return detector
