"""Building a guard: split the samples, extract their rows, fit the detector, choose the threshold."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from outfield.backbone import MOST_NAMED, Backbone, Odin, Views, accuracy, match_labels
from outfield.config import require, require_choice, require_number
from outfield.detectors import AUTO, CHOICES, DETECTORS, LEAST, Auto, Detector, Rows, choose_views, labels_of
from outfield.errors import (
    FileFormatError,
    InputError,
    OutfieldError,
    StorageError,
    TooFewSamplesError,
    as_ours,
)
from outfield.features import (
    HEAD_FIELDS,
    NETWORK,
    TEXT,
    FeatureSet,
    FeatureSource,
    TablePreprocessing,
    columns_by_field,
    copies_of,
    read_columns,
    read_table,
    rows_of,
    stratified_rows,
)
from outfield.features import TABLE_ENDINGS as ENDINGS
from outfield.files import PathLike, Record, as_path
from outfield.guard.decision import GLOBAL, PER_CLASS, Decision, acceptance_of, divided, predicted, thresholds_per_class
from outfield.guard.guard import Guard
from outfield.guard.readers import ImageReader, Reader, TableReader, looked_into
from outfield.guard.texts import LABEL, Texts
from outfield.images import KINDS as STAND_IN_KINDS
from outfield.images import ON_ERROR, ImageSource, image_copies, open_images, part_of, stand_ins
from outfield.modes import resolve_device
from outfield.percent import counted, percent
from outfield.scores import Threshold, check_accuracy, check_keep, fewest, fewest_right

log = logging.getLogger(__name__)
STAND_INS = 500
"""Images of each kind of stand-in, at most."""
SHARE, ENOUGH, MOST = 0.2, 240, 5000
"""A fifth of the samples is held out; up to a third where that is fewer than 240; no more than 5,000, or than are needed."""
TO_CHOOSE = 2 * LEAST
"""Held-out samples that choose and calibrate the members of a sum, at least; others choose the threshold."""
SHOWN = 8
"""Names of classes in a message."""
JUDGED = 100
"""Images of each kind of stand-in, at most, that tell how good the guard is; made of images that only set the threshold."""
LOOKED_AT, GOOD, FAR_BELOW, SIZES = 256, 0.9, 0.1, (32, 64, 128, 224)
"""Before the long part, so many images tell how long it takes. If fewer of them are classified rightly than is good, other sizes
are tried, and one that is so much better is told."""
GIVEN, FOLDERS, PREDICTED = "given", "folders", "predicted"
"""Labels of images: classes of the network, other classes of the folders, or predictions of the network."""
OF_LOGITS = ("logits", "odin_logits", *HEAD_FIELDS)
"""Fields that follow from a network's classes."""


@dataclass(frozen=True)
class Plan:
    """Settings that every guard is built with, see :meth:`outfield.Guard.build`; they check themselves."""

    detector: Detector | str | None = None
    keep: float = 0.95
    seed: int = 0
    max_train: int | None = 10_000
    device: str | torch.device = "auto"
    threshold: str = GLOBAL
    accuracy: float | None = None
    float16: bool = False

    def __post_init__(self) -> None:
        right = isinstance(self.detector, Detector | str | None)
        require(right, "detector", self.detector, "a detector, its name, or None")
        check_keep(self.keep)
        require_choice("threshold", self.threshold, (GLOBAL, PER_CLASS))
        if self.accuracy is not None:
            check_accuracy(self.accuracy)
        require_number("seed", self.seed, least=0, whole=True)
        if self.max_train is not None:
            require_number("max_train", self.max_train, least=1, whole=True)
        resolve_device(self.device)
        require(isinstance(self.float16, bool), "float16", self.float16, "True or False")
        self.unfitted()

    def unfitted(self, train: FeatureSource | None = None) -> Detector:
        """The detector that is to be fitted, one that is named with settings that suit the training rows."""
        if self.detector is None:
            return Auto(seed=int(self.seed)).to(self.device)
        if not isinstance(self.detector, str):
            return self.detector.fresh().to(self.device)
        smallest = 0 if train is None else int(labels_of(train).unique(return_counts=True)[1].min())
        return DETECTORS[self.detector].suited(smallest).to(self.device)

    def least(self, model: Detector) -> int:
        """Held-out samples that are needed: some for the threshold, more for a detector that calibrates itself."""
        return self.to_decide + (TO_CHOOSE if model.uses_held_out else 0)

    @property
    def to_decide(self) -> int:
        """Held-out samples that set the threshold and test an accuracy, at least."""
        return fewest(self.keep) + (0 if self.accuracy is None else fewest_right(self.accuracy))

    def enough(self, least: int) -> int:
        """Held-out samples that are likely to do: two thirds of those that choose no members test an accuracy."""
        more = 0 if self.accuracy is None else math.ceil(3 / 2 * 3 * fewest_right(self.accuracy)) - self.to_decide
        return least + (1 if least == self.to_decide else 2) * more

    def held_out(
        self, labels: Any, total: int, least: int, unit: str, copies: np.ndarray | Tensor | None = None
    ) -> np.ndarray:
        """Which samples are held out (total,): a share of each class, of which every class keeps a sample.

        Samples with an equal entry in ``copies`` stay on one side, where enough are left to be held out so.
        """
        count = max(least, min(MOST, max(round(SHARE * total), min(ENOUGH, total // 3))))
        chosen = stratified_rows(total, count, seed=self.seed, labels=labels, copies=copies).numpy()
        if int(chosen.sum()) < count and copies is not None:
            return self.held_out(labels, total, least, unit)
        if 2 * count > total or int(chosen.sum()) < count:
            count, few = max(count, self.enough(least)), 2 * self.enough(self.to_decide)
            fewer = f", or one detector, such as SSD, for which {few:,} are enough" if least > self.to_decide else ""
            raise TooFewSamplesError(
                f"found {counted(total, unit[:-1])}, and {count:,} would have to be held out to calibrate the guard; pass at "
                f"least {2 * count:,} {unit}, or held-out ones (--held-out, in Python held_out=…){fewer}"
            )
        return chosen

    def to_choose(self, labels: Any, total: int, least: int, unit: str) -> np.ndarray:
        """Which held-out samples (total,) choose and calibrate the members of a sum; the others choose the threshold."""
        if total < least:
            left, told = total - least + self.to_decide, f"at least {self.enough(least):,} are needed"
            if self.accuracy is not None and (tests := left - max(fewest(self.keep), left // 3)) > 0:
                best, about = math.floor(1000 * 0.05 ** (1 / tests)) / 10, 10 * math.ceil(self.enough(least) / 10)
                told = (
                    f"even if the network were always right, they could promise {best:g} % right answers at most, not "
                )
                told += f"{100 * self.accuracy:.4g} %; pass a lower accuracy, or about {about:,} held-out {unit}"
            raise TooFewSamplesError(f"found {counted(total, f'held-out {unit[:-1]}')}; {told}")
        if least == self.to_decide:
            return np.zeros(total, bool)
        count = TO_CHOOSE + (total - least) // 2
        first = stratified_rows(total, count, seed=self.seed + 1, labels=labels)
        if int(first.sum()) < TO_CHOOSE:  # classes of one sample each
            first = stratified_rows(total, count, seed=self.seed + 1)
        return first.numpy()

    def to_train(self, labels: Any, total: int, unit: str) -> np.ndarray:
        """Which of the samples that are not held out (total,) the detector is fitted on."""
        if self.max_train is None or total <= self.max_train:
            return np.ones(total, bool)
        log.info("the detector is fitted on %s of %s %s", f"{self.max_train:,}", f"{total:,}", unit)
        return stratified_rows(total, self.max_train, seed=self.seed + 2, labels=labels).numpy()

    def fit(self, rows: Rows, calibrate: FeatureSet) -> tuple[Detector, Threshold, Decision | None, dict[str, Any]]:
        """The fitted detector, threshold and decision on rows that it has not seen, and notes on these."""
        model = self.unfitted(rows.train).fit(rows.train, held_out=rows.held_out, stand_ins=rows.stand_ins)
        if rows.stand_ins is not None:
            log.info("chose %s, with weights fitted on the stand-ins", " + ".join(model.names))  # type: ignore[attr-defined]
        model = self._kept(model)
        limits, tests = divided(calibrate, self.keep, self.accuracy, self.seed + 3)
        scores = model.score(limits)
        threshold = Threshold.fit(scores, keep=self.keep, source=model.fingerprint())
        decision, train = Decision(), rows.train.in_memory()
        if self.threshold == PER_CLASS:
            decision = Decision(thresholds_per_class(model, train, limits, scores, self.keep))
        if self.accuracy is not None and tests is not None:
            first, second = (
                (part, *decision.known(model.score(part), predicted(part), threshold)) for part in (limits, tests)
            )
            ranker, rule, by_p_value = acceptance_of(train, first, second, self.accuracy, self._kept, self.device)
            decision = Decision(decision.per_class, ranker, rule, by_p_value)
            log.info("%s", rule)
        counts = {"train": len(rows.train), "choose": len(rows.held_out or ()), "calibrate": len(limits)}
        notes = {**counts, "seed": int(self.seed)}
        return model, threshold, None if decision == Decision() else decision, notes

    def _kept(self, model: Detector) -> Detector:
        """The detector as the file will have it."""
        with as_ours(f"float16 is True, but {type(model).__name__} cannot be kept so", InputError, OutfieldError):
            return Detector.from_record(model.record().narrowed()).to(model._device) if self.float16 else model


# Images


class Parts(NamedTuple):
    """The images of a guard: the detector is fitted on the first, its members are chosen on the second (None where it has none),
    the threshold on the scores of the third, which nothing else saw."""

    train: ImageSource
    choose: ImageSource | None
    calibrate: ImageSource


@dataclass(frozen=True)
class ImagePlan(Plan):
    """Settings of a guard of images."""

    views: Views | str | int | None = None
    precision: str = "float32"
    batch_size: int = 512
    workers: int | None = None
    on_error: str = "skip"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.named_views()
        require_choice("on_error", self.on_error, ON_ERROR)

    def named_views(self) -> Views | None:
        """The views that are averaged over; None for "auto", where stand-ins choose."""
        if isinstance(self.views, str) and self.views == AUTO:
            if not (model := self.unfitted()).uses_stand_ins:
                name, known = type(model).__name__, ", ".join(CHOICES)
                raise InputError(f"views are chosen for Auto alone; with {name} name them: {known}")
            return None
        try:
            return Views.of(self.views)
        except InputError as error:
            right = f"flip, six, a number from 1 to {MOST_NAMED}, {AUTO}, or in Python an outfield.Views"
            raise InputError(f"views is {self.views!r:.100}; it must be {right}") from error

    def images(self, given: ImageSource | PathLike) -> ImageSource:
        """The images of a folder or an ``.npz``; a source stays what it is."""
        if isinstance(given, ImageSource):
            return given
        path = as_path(given, "images")
        if not os.path.lexists(path):
            raise StorageError(f"cannot read {path}: there is no such file or folder; images are a folder or an .npz")
        return open_images(path, on_error=self.on_error)

    def refuse(self, names: Sequence[str], unit: str) -> None:
        """Refuse settings that guards of such inputs cannot have."""
        for name in names:
            if getattr(self, name) != getattr(ImagePlan, name):
                raise InputError(
                    f"{name} is {getattr(self, name)!r}, which a guard of {unit} cannot have; leave it out"
                )

    def build(self, backbone: Any, images: Any, held_out: Any = None) -> Guard:
        """See :meth:`outfield.Guard.build`."""
        model, source = self.unfitted(), self.images(images)
        held = None if held_out is None else self.images(held_out)
        network, stages, classes, whole = _of_folders(self._opened(backbone), model, (source, held))
        source, labels = _matched(source, network, classes)
        held, held_labels = (None, labels) if held is None else _matched(held, network, classes)
        if self.accuracy is not None and not labels == held_labels == GIVEN:
            what = "accuracy needs images whose class is known: put them into folders named after the network's classes"
            raise InputError(f"{what}, the held-out ones too")
        own, held_own = labels != PREDICTED, labels == held_labels != PREDICTED
        needed = {*model.needs_to_fit, *model.needs_to_score}
        alone = (labels == FOLDERS or not whole) and needed.isdisjoint(OF_LOGITS)
        parts = self.divide(source, held, self.least(model))
        odin = Odin() if "odin_logits" in model.needs_to_score else None
        views = self.named_views()
        passes = 9 if views is None else len(views) * (1 if odin is None else 3)
        self._first_look(network, source, parts, labels, passes)
        if alone:
            what = f"the folders are not the network's {classes:,} classes"
            log.info("%s: the detector uses its features, not its logits", what)

        def extract(images: ImageSource, views: Views | str, labels: bool = False) -> FeatureSet:
            return network.extract(
                images, stages=stages, views=views, odin=odin, labels=labels, precision=self.precision,
                batch_size=self.batch_size, workers=self.workers, on_error=self.on_error,
            )  # fmt: skip

        def rows(views: Views | str) -> Rows:
            train, choose, made = _labelled(extract(parts.train, views, own), alone), None, None
            if parts.choose is not None:
                choose = _labelled(extract(parts.choose, views, held_own), alone)
                if model.uses_stand_ins:
                    good = _read(parts.choose, choose)
                    images = stand_ins(good, None, self.seed, min(STAND_INS, len(good)), network.outliers)
                    made = images.map(lambda one: extract(one, views))
            return Rows(train, choose, made)  # type: ignore[arg-type]  # which may be None where nothing is chosen

        if views is None:
            found = choose_views(rows, str(network.device))
            log.info("views %s", found)
            views = Views.of(found.views)
        fitted, calibrate = rows(views), extract(parts.calibrate, views, held_own)
        right = None
        if labels == held_labels == GIVEN:
            right = _accuracy(network.name, "images", [one for one in (fitted.held_out, calibrate) if one is not None])
        fitted_model, threshold, decision, counts = self.fit(fitted, calibrate)
        good = _read(parts.calibrate, calibrate)
        judging = stand_ins(good, None, self.seed, min(JUDGED, len(good)), network.outliers)
        made = judging.map(lambda one: extract(one, views))
        caught = made.map(lambda one: float(threshold.is_ood(fitted_model.score(one)).double().mean())).by_level()
        if not network.names and source.classes is not None and len(source.classes) == network.classes:
            network.names = tuple(source.classes)
        notes = {"images": parts.train.name, "split_off": held is None, "labels": labels, "accuracy": right}
        notes |= {"caught": {level: sum(found.values()) / len(found) for level, found in caught.items()}}
        reader = ImageReader(network, views=views, precision=self.precision, float16=self.float16)
        known = {**counts, **notes, "stages": stages}
        return Guard(reader, fitted_model, threshold, provenance=known, decision=decision)

    def divide(self, images: ImageSource, held_out: ImageSource | None, least: int) -> Parts:
        """Which images train, choose and calibrate."""
        train = images
        if held_out is None:
            out = self.held_out(images.labels, len(images), least, "images", image_copies(images))
            train, held_out = part_of(images, np.flatnonzero(~out)), part_of(images, np.flatnonzero(out))
            _tell_held_out(len(held_out), len(images), "images")
        taken = self.to_train(train.labels, len(train), "images")
        train = train if taken.all() else part_of(train, np.flatnonzero(taken))
        first = self.to_choose(held_out.labels, len(held_out), least, "images")
        if not first.any():
            return Parts(train, None, held_out)
        return Parts(train, part_of(held_out, np.flatnonzero(first)), part_of(held_out, np.flatnonzero(~first)))

    def _first_look(self, network: Backbone, images: ImageSource, parts: Parts, labels: str, passes: int) -> None:
        """Before the long part: say what will be done and how long it takes; warn of a size that does not suit the network."""
        chosen = np.linspace(0, len(images) - 1, min(LOOKED_AT, len(images))).astype(int)
        some, way = part_of(images, chosen), network.preprocessing

        def right(size: tuple[int, int]) -> float:
            """The share of these images that the network classifies rightly, at a size; 0 where it cannot take them."""
            tried = copy.copy(network)
            if size != way.size:
                tried.preprocessing = replace(way, resize=size, crop=None, fit="exact")
            with warnings.catch_warnings(), contextlib.suppress(Exception):  # of a network that is made for one size
                warnings.simplefilter("ignore")
                rows = tried.extract(some, labels=labels == GIVEN, workers=self.workers, on_error="skip")
                return accuracy(rows) if rows.labels is not None else 0.0
            return 0.0

        began = time.monotonic()
        now = right(way.size)
        each = (time.monotonic() - began) / len(some)
        counts = [0 if part is None else len(part) for part in parts]
        made = len(STAND_IN_KINDS) * (min(STAND_INS, counts[1]) + min(JUDGED, counts[2]))
        uses = ("images fit the detector", "choose its members", "set its threshold")
        told = [f"{count:,} {use}" for count, use in zip(counts, uses, strict=True) if count]
        takes = f"at least {_duration(each * passes * (sum(counts) + made))} for the network"
        log.info("%s; %s made-up images (stand-ins) play OOD: %s", ", ".join(told), f"{made:,}", takes)
        if labels != GIVEN or now >= GOOD:
            if labels == PREDICTED:
                what = "the images are not in folders named after the network's classes"
                log.info("%s: its predictions serve as labels", what)
            return
        sides = {(side, side) for side in SIZES} | ({images.size} if images.size else set())
        others = {size: right(size) for size in sides if size != way.size and max(size) <= 2 * max(way.size)}
        best = max(others, key=lambda size: others[size], default=way.size)
        if others.get(best, 0.0) > now + FAR_BELOW:
            log.warning(
                "the network is right on %s of %s images at %s × %s pixels, but on %s at %s × %s: if it was trained at that "
                "size, say so with --size %s, in Python size=%s",
                percent(now, 1), len(some), *way.size, percent(others[best], 1), *best, "x".join(map(str, best)), best,
            )  # fmt: skip

    def _opened(self, backbone: Any) -> Backbone:
        if not isinstance(backbone, Backbone | str):
            found = type(backbone).__name__
            raise InputError(f"backbone is a {found}; wrap a network, outfield.Backbone(network, size=…), or name one")
        network = Backbone.open(backbone, self.device) if isinstance(backbone, str) else copy.copy(backbone)
        if network.projects:
            raise InputError(
                f"{network.name} was trained without labels: it gives no logits, so that a guard could not name the class of an "
                "image; extract its features (outfield extract) and build a guard of these rows (outfield guard rows)"
            )
        _check_origin(network)
        if self.float16:
            network.network = copy.deepcopy(network.network)
            state = {name: value for name, value in network.network.state_dict().items() if isinstance(value, Tensor)}
            network.network.load_state_dict(Record({}, state).narrowed().tensors, strict=False)
        return network


def _check_origin(backbone: Backbone) -> None:
    """Find out before long work whether a file can hold the network: whether its library builds it again as it is.

    Some networks change once they have their weights.
    """
    if backbone.origin is None:
        return
    why = "some of its layers have other settings"
    try:
        state = {name: value.cpu() for name, value in backbone.origin.state(backbone.network).items()}
        same = _settings_of(backbone.origin.build(state, backbone.name)) == _settings_of(backbone.network)
    except OutfieldError as error:
        same, why = False, str(error)
    if not same:
        raise InputError(
            f"a guard cannot hold {backbone.name}, because its library does not build the same network from its weights ({why}); "
            "build the guard in Python, of outfield.Backbone(network, preprocessing=…), and pass the network when it is loaded"
        )


def _settings_of(network: nn.Module) -> list[tuple[str, str, dict[str, Any]]]:
    """Every module of a network with its type and those of its attributes that are plain values."""
    plain = bool | int | float | str
    return [
        (name, type(one).__qualname__, {k: v for k, v in vars(one).items() if isinstance(v, plain) and k != "training"})
        for name, one in network.named_modules()
    ]


def _of_folders(
    network: Backbone, model: Detector, sources: Sequence[ImageSource | None]
) -> tuple[Backbone, bool, int, bool]:
    """The network, cut to the classes that the folders have where these are some of its own; whether rows have what its blocks
    give, if the detector may use it; how many classes it has; and whether these are the folders'."""
    stages, logits = _looked_into(network, model)
    folders = {name for one in sources if one is not None for name in one.classes or ()}
    kept = [index for index, name in enumerate(network.names) if name in folders]
    if len(kept) in (0, len(network.names)) or len(kept) < len(folders):
        return network, stages, logits.shape[1], True
    smaller = network.narrowed(kept)
    if smaller is None or not torch.allclose(_looked_into(smaller, model)[1], logits[:, kept], atol=1e-4, rtol=1e-4):
        return network, stages, logits.shape[1], False
    log.info("of the network's %s classes the guard keeps the %s that are folders", f"{logits.shape[1]:,}", len(kept))
    return smaller, stages, len(kept), True


def _looked_into(backbone: Backbone, model: Detector) -> tuple[bool, Tensor]:
    """Whether rows have what the network's blocks give, if the detector may use it; and logits of two images of noise."""
    wanted, one = (*model.uses, *model.needs_to_fit, *model.needs_to_score), Views.of(None)
    stages = any(name.startswith("stage") for name in wanted)
    try:
        fields = looked_into(backbone, stages, one)[1]
    except InputError:
        if not stages:
            raise
        stages, fields = False, looked_into(backbone, False, one)[1]  # whatever else is wrong with it is said there
    return stages, fields["logits"]


def _matched(images: ImageSource, network: Backbone, classes: int) -> tuple[ImageSource, str]:
    """Images whose labels count the network's classes, or those of the folders, and which of these they do."""
    labels, why = match_labels(images, network.names, classes)
    if why and not {*network.names}.isdisjoint(images.classes or ()):
        raise InputError(
            f"{images.name} cannot be used: {why}; its classes are {', '.join(network.names[:SHOWN])}"
            f"{', …' * (len(network.names) > SHOWN)}: name the folders so, or put all images into one folder, without classes"
        )
    if images.labels is None or int(images.labels.max() if labels is None else labels.max()) >= classes:
        return images, PREDICTED
    given = copy.copy(images)
    if labels is None:
        given.classes = None  # so that their labels are taken as they are
        return given, FOLDERS
    if network.names and images.classes is not None:
        given.labels, given.classes = labels, tuple(network.names)
    return given, GIVEN


def _read(images: ImageSource, rows: FeatureSet) -> ImageSource:
    """Those of the images that have a row: others could not be read."""
    if len(rows) == len(images) or images.names is None or rows.names is None:
        return images
    read = set(rows.names)
    return part_of(images, np.array([index for index, name in enumerate(images.names) if name in read]))


def _labelled(rows: FeatureSet, alone: bool = False) -> FeatureSet:
    """The same rows with predictions as their labels, where they have none; all of one class where there are no logits.

    With ``alone`` they are left without logits and all that follows from these.
    """
    fields = rows.tensors()
    if rows.labels is None:
        known = rows.logits is not None
        fields["labels"] = rows.logits.argmax(1) if known else torch.zeros(len(rows), dtype=torch.int64)  # type: ignore[union-attr]
    elif not alone:
        return rows
    kept = {name: value for name, value in fields.items() if not alone or name not in OF_LOGITS}
    return FeatureSet(**kept, about=rows.about, names=rows.names)


def _tell_held_out(count: int, total: int, unit: str) -> None:
    log.info(
        "%s of %s %s are held out to set the threshold; if the network was trained on them, it will refuse too many new %s: then "
        "give %s that it has not seen, with --held-out, in Python held_out=…",
        f"{count:,}", f"{total:,}", unit, unit, unit,
    )  # fmt: skip


def _duration(seconds: float) -> str:
    return f"{max(1, seconds):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _accuracy(network: str, unit: str, parts: Sequence[FeatureSource]) -> float:
    """Of labelled rows; a warning where always naming the most frequent class would be right as often."""
    known = [part.in_memory().tensors() for part in parts if "logits" in part.shapes]
    logits, labels = (torch.cat([fields[name] for fields in known]) for name in ("logits", "labels"))
    found = accuracy(FeatureSet(logits, logits=logits, labels=labels))
    log.info("accuracy of %s on %s held-out %s: %s", network, f"{len(labels):,}", unit, percent(found, 1))
    if found <= float(labels.bincount().max()) / len(labels) and len(labels.unique()) > 1:
        what = f"the network is right on {percent(found, 1)} of the held-out {unit}, no more than by guessing"
        log.warning("%s; are the folders the network's classes, and is the preprocessing right?", what)
    return found


# Rows


@dataclass(frozen=True)
class RowPlan(Plan):
    """Settings of a guard of rows; the first five are of tables alone."""

    label: str | None = None
    columns: Sequence[str] | None = None
    missing: str = "refuse"
    categories: Sequence[str] = ()
    ignore_extra: bool = False
    network_features: bool | None = None
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        good = not isinstance(self.names, str) and all(isinstance(name, str) for name in self.names)
        require(good, "names", self.names, "a text for each class")
        right = isinstance(self.network_features, bool | None)
        require(right, "network_features", self.network_features, "True, False, or None to look at the rows")

    def build(self, rows: Any, held_out: Any = None) -> Guard:
        """See :meth:`outfield.Guard.build_rows`."""
        features, table, least = as_features(rows), None, self.least(self.unfitted())
        if features is None or not self._of_network(features):
            table, train, held = self._of_table(rows, features, held_out, least)
        else:
            train, held = self._of_features(features, held_out, least)
        if self.names and train.logits is None:
            raise InputError(f"names is {self.names!r:.60}, but the rows have no logits; leave it out")
        Reader(self.names).complete(train)
        if self.accuracy is not None and (held.labels is None or held.logits is None):
            what = "accuracy needs rows with logits and labels"
            raise InputError(f"{what}, which are the network's answers and the right ones")
        first = self.to_choose(None, len(held), least, "rows")
        if train.labels is None:
            what = "all rows are one class" if train.logits is None else "predictions take their place"
            log.info("there are no labels; %s", what)
        train = _labelled(train)
        taken = self.to_train(train.labels, len(train), "rows")
        train = train if taken.all() else train[taken]
        choose: Any = held[first] if first.any() else None
        stand_ins: Any = None
        model, threshold, decision, notes = self.fit(Rows(train, choose, stand_ins), held[~first])
        needed = (*model.needs_to_score, *(() if decision is None else ("logits", *decision.needs)))
        widths = {name: train.shapes[name][1] for name in needed}
        reader = Reader(self.names, widths) if table is None else TableReader(table, self.names, widths)
        notes |= {"split_off": held_out is None, "widths": widths}
        return Guard(reader, model, threshold, provenance=notes, decision=decision)

    def _of_network(self, features: FeatureSet) -> bool:
        """Whether rows are a network's features: as it is said, or else if they say so or have logits or other fields of one."""
        if self.network_features is not None:
            return self.network_features
        return NETWORK in features.about or not {*features.shapes} <= {"features", "labels"}

    def _of_table(
        self, rows: Any, features: FeatureSet | None, held_out: Any, least: int
    ) -> tuple[TablePreprocessing, FeatureSet, FeatureSet]:
        """What is learned of the columns of the rows that are not held out, and both parts as features."""
        label = self.label
        if features is None:
            train = found = read_columns(rows, dict.fromkeys(self.categories, TEXT))
            if label is None and self.columns is None and LABEL in found:
                log.warning("column %r is taken as a feature; if it holds the classes, pass --label %s", LABEL, LABEL)
        else:
            train = found = as_columns(features)
            label = LABEL if label is None and LABEL in found else label
            held_out = held_out if (own := as_features(held_out)) is None else as_columns(own)
        if held_out is None:
            texts = {name: np.asarray(column).astype(str) for name, column in found.items()}
            first: dict[Any, int] = {}  # a number for each row, the same for equal rows
            whole = zip(*(own.tolist() for own in texts.values()), strict=True)
            copies = np.array([first.setdefault(row, len(first)) for row in whole])
            classes = None if label is None else texts.get(label)
            labels = None if classes is None else np.unique(classes, return_inverse=True)[1]
            out = self.held_out(labels, len(copies), least, "rows", copies)
            train, held_out = rows_of(found, ~out), rows_of(found, out)
        table = TablePreprocessing.fit(
            train, label, self.columns, missing=self.missing, categories=self.categories, ignore_extra=self.ignore_extra
        )
        return table, table(train), table(held_out)

    def _of_features(self, features: FeatureSet, held_out: Any, least: int) -> tuple[FeatureSet, FeatureSet]:
        given = [name for name in ("label", "columns", "categories", "ignore_extra") if getattr(self, name)]
        if given:
            raise InputError(f"{' and '.join(given)} is given, but the rows are features and not a table; leave it out")
        if held_out is None:
            out = self.held_out(features.labels, len(features), least, "rows", copies_of(features))
            return features[~out], features[out]
        held = as_features(held_out)
        if held is None:
            raise InputError("the rows are features, so held_out must be features, too")
        return features, held


@dataclass(frozen=True)
class TextPlan(ImagePlan):
    """Settings of a guard of texts, see :meth:`outfield.Guard.build`; of those of images ``float16`` and ``on_error``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse(("views", "precision"), "texts")

    def build(self, backbone: Any, images: Any, held_out: Any = None) -> Guard:
        """A guard of what the classifier gives for texts, which are given as :meth:`outfield.Texts.open` takes them."""
        reader: Texts = backbone.rounded() if self.float16 else copy.copy(backbone)
        train = reader.open(images).usable(self.on_error)
        held = None if held_out is None else reader.open(held_out).usable(self.on_error)
        if reader.label is not None and any(one is not None and one.labels is None for one in (train, held)):
            raise InputError(f"there is no column {reader.label!r} of classes; leave label out where texts have none")
        reader.names, reader.column = train.names or reader.names, train.column
        total, least = len(train.cells), self.least(self.unfitted())
        if held is None:
            first: dict[str, int] = {}
            copies = np.array([first.setdefault(str(cell), len(first)) for cell in train.cells])
            out = self.held_out(train.labels, total, least, "texts", copies)
            train, held = train.part(~out), train.part(out)
            _tell_held_out(len(held.cells), total, "texts")
        train = train.part(self.to_train(train.labels, len(train.cells), "texts"))
        rows, calibrate = map(reader.rows, (train, held))
        right = None if calibrate.labels is None else _accuracy(reader.name, "texts", [calibrate])
        plan = RowPlan(**{one.name: getattr(self, one.name) for one in fields(Plan)}, names=reader.names)
        made = plan.build(rows, calibrate)
        labels = PREDICTED if rows.labels is None else GIVEN
        known = {**made.provenance, "split_off": held_out is None, "labels": labels, "accuracy": right}
        return Guard(reader, made.detector, made.threshold, provenance=known, decision=made.decision)


def as_columns(features: FeatureSet) -> dict[str, Any]:
    """Rows that no network gave as columns, with their classes."""
    labels = {} if features.labels is None else {LABEL: features.labels.numpy()}
    return {**read_columns(features), **labels}


def as_features(rows: Any) -> FeatureSet | None:
    """Rows that are features; None where they are a table."""
    if isinstance(rows, FeatureSource):
        return rows.in_memory()
    if isinstance(rows, np.ndarray | Tensor):
        return FeatureSet(rows)
    if not isinstance(rows, str | os.PathLike):
        return None
    if os.fspath(rows).endswith(ENDINGS):
        try:
            columns_by_field(rows, [*read_table(rows)])  # type: ignore[arg-type]  # which only names it
        except FileFormatError:  # its columns are not called as those of features are
            return None
    return FeatureSet.load(rows)
