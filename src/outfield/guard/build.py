"""Building a guard: which samples are for what, the rows of them, the detector and the threshold."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from outfield.backbone import MOST_NAMED, Backbone, Odin, Views, accuracy, match_labels
from outfield.config import require, require_choice, require_number
from outfield.detectors import AUTO, CHOICES, DETECTORS, LEAST, Auto, Detector, Rows, choose_views
from outfield.devices import resolve_device
from outfield.errors import (
    FileFormatError,
    InputError,
    OutfieldError,
    OutfieldWarning,
    StorageError,
    TooFewSamplesError,
)
from outfield.features import TABLE_ENDINGS as ENDINGS
from outfield.features import (
    FeatureSet,
    FeatureSource,
    TablePreprocessing,
    columns_by_field,
    columns_of,
    copies_of,
    read_table,
    rows_of,
    stratified_rows,
)
from outfield.files import PathLike, Record, as_path
from outfield.guard.guard import Guard
from outfield.guard.readers import ImageReader, Reader, TableReader, looked_into
from outfield.images import ON_ERROR, ImageSource, open_images, part_of, stand_ins
from outfield.percent import percent
from outfield.scores import Threshold, check_keep, fewest

log = logging.getLogger(__name__)
STAND_INS = 500
"""Images of each kind of stand-in, at most."""
SHARE = 0.2
"""Of the samples that is held out where nobody gives held-out ones."""
ENOUGH = 240
"""So many held-out samples are wanted where a fifth is less: up to a third of all are then held out."""
MOST = 5000
"""And no more than these, or than are needed: the threshold hardly becomes better."""
TO_CHOOSE = 2 * LEAST
"""Held-out samples that choose and calibrate the members of a sum, at least; others choose the threshold."""
SHOWN = 8
"""Names of classes in a message."""


@dataclass(frozen=True)
class Plan:
    """Settings that every guard is built with, see :meth:`outfield.Guard.build`; they check themselves."""

    detector: Detector | str | None = None
    keep: float = 0.95
    seed: int = 0
    max_train: int | None = 10_000
    device: str | torch.device = "auto"

    def __post_init__(self) -> None:
        right = isinstance(self.detector, Detector | str | None)
        require(right, "detector", self.detector, "a detector, its name, or None")
        check_keep(self.keep)
        require_number("seed", self.seed, least=0, whole=True)
        if self.max_train is not None:
            require_number("max_train", self.max_train, least=1, whole=True)
        resolve_device(self.device)
        self.unfitted()

    def unfitted(self) -> Detector:
        """The detector that is to be fitted."""
        if self.detector is None:
            return Auto(seed=int(self.seed)).to(self.device)
        made = DETECTORS[self.detector]() if isinstance(self.detector, str) else self.detector.fresh()
        return made.to(self.device)

    def least(self, model: Detector) -> int:
        """Held-out samples that are needed: a detector that calibrates itself needs some beside those of the threshold."""
        return fewest(self.keep) + (TO_CHOOSE if model.uses_held_out else 0)

    def held_out(
        self, labels: Any, total: int, least: int, unit: str, copies: np.ndarray | Tensor | None = None
    ) -> np.ndarray:
        """Which samples are held out (total,): a fifth of each class, more where there are few; every class keeps one.

        Samples with an equal entry in ``copies`` stay on one side, where enough are left to be held out so.

        Raises:
            TooFewSamplesError: they would be more than half of all.
        """
        count = max(least, min(MOST, max(round(SHARE * total), min(ENOUGH, total // 3))))
        chosen = stratified_rows(total, count, seed=self.seed, labels=labels, copies=copies).numpy()
        if int(chosen.sum()) < count and copies is not None:
            return self.held_out(labels, total, least, unit)
        if 2 * count > total or int(chosen.sum()) < count:
            raise TooFewSamplesError(
                f"there are {total} {unit}, of which {count} would have to be held out to calibrate the guard; pass at least "
                f"{2 * count} {unit}, or held-out ones: --held-out, in Python held_out=…"
            )
        return chosen

    def to_choose(self, labels: Any, total: int, least: int, unit: str) -> np.ndarray:
        """Which held-out samples (total,) choose and calibrate the members of a sum; the others choose the threshold.

        Raises:
            TooFewSamplesError: there are fewer than are needed.
        """
        if total < least:
            raise TooFewSamplesError(
                f"there are {total} held-out {unit}; at least {least} are needed for a guard that keeps {self.keep:.4g} of ID "
                f"{unit}"
            )
        if least == fewest(self.keep):
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

    def fit(
        self, model: Detector, rows: Rows, calibrate: FeatureSet, float16: bool = False
    ) -> tuple[Detector, Threshold, dict[str, Any]]:
        """The fitted detector, the threshold on rows that it has not seen, and notes on both."""
        model.fit(rows.train, held_out=rows.held_out, stand_ins=rows.stand_ins)
        if rows.stand_ins is not None:
            log.info("took %s, weighted by stand-ins", " + ".join(model.names))  # type: ignore[attr-defined]
        try:
            model = Detector.from_record(model.record().narrowed()).to(model._device) if float16 else model
        except OutfieldError as error:
            raise InputError(f"float16 is True, but {type(model).__name__} cannot be kept so: {error}") from error
        threshold = Threshold.fit(model.score(calibrate), keep=self.keep, source=model.fingerprint())
        counts = {"train": len(rows.train), "choose": len(rows.held_out or ()), "calibrate": len(calibrate)}
        return model, threshold, {**counts, "seed": int(self.seed)}


# Images


class Parts(NamedTuple):
    """The images of a guard by what they are for.

    Attributes:
        train: the detector is fitted on them.
        choose: the members of a sum are chosen and calibrated on them; None where the detector has none.
        calibrate: the threshold is chosen on their scores, and nothing else saw them.
    """

    train: ImageSource
    choose: ImageSource | None
    calibrate: ImageSource


@dataclass(frozen=True)
class ImagePlan(Plan):
    """Settings of a guard of images."""

    views: Views | str | int | None = None
    precision: str = "float32"
    float16: bool = False
    batch_size: int = 512
    workers: int | None = None
    on_error: str = "skip"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.named_views()
        require(isinstance(self.float16, bool), "float16", self.float16, "True or False")
        require_choice("on_error", self.on_error, ON_ERROR)

    def named_views(self) -> Views | None:
        """The views that are averaged over; None for "auto", where stand-ins choose.

        Raises:
            InputError: there are no such views, or nothing chooses them.
        """
        if isinstance(self.views, str) and self.views == AUTO:
            if not (model := self.unfitted()).uses_stand_ins:
                raise InputError(
                    f"views are chosen for Auto alone, by its stand-ins; with {type(model).__name__} name them: "
                    f"{', '.join(CHOICES)}"
                )
            return None
        try:
            return Views.of(self.views)
        except InputError as error:
            raise InputError(
                f"views is {self.views!r:.100}; it must be flip, six, a number from 1 to {MOST_NAMED}, {AUTO}, for what "
                "stand-ins choose, or in Python an outfield.Views"
            ) from error

    def images(self, given: ImageSource | PathLike) -> ImageSource:
        """The images of a folder or an ``.npz``; a source stays what it is.

        Raises:
            OutfieldError: there is none, or nothing in it.
        """
        if isinstance(given, ImageSource):
            return given
        path = as_path(given, "images")
        if not os.path.lexists(path):
            raise StorageError(
                f"cannot read {path}: there is no such file or folder; images are a folder, whose sub-folders are the classes, "
                "or an .npz"
            )
        return open_images(path, on_error=self.on_error)

    def build(self, backbone: Any, images: Any, held_out: Any = None) -> Guard:
        """See :meth:`outfield.Guard.build`."""
        model, source = self.unfitted(), self.images(images)
        held = None if held_out is None else self.images(held_out)
        network = self._opened(backbone)
        stages, classes = _looked_into(network, model)
        source, known = _matched(source, network, classes)
        held, held_known = (None, known) if held is None else _matched(held, network, classes)
        parts = self.divide(source, held, self.least(model))
        odin = Odin() if "odin_logits" in model.needs_to_score else None

        def extract(images: ImageSource, views: Views | str, labels: bool = False) -> FeatureSet:
            return network.extract(
                images, stages=stages, views=views, odin=odin, labels=labels, precision=self.precision,
                batch_size=self.batch_size, workers=self.workers, on_error=self.on_error,
            )  # fmt: skip

        def rows(views: Views | str) -> Rows:
            train, choose, made = _labelled(extract(parts.train, views, known)), None, None
            if parts.choose is not None:
                choose = _labelled(extract(parts.choose, views, known and held_known))
                if model.uses_stand_ins:
                    good = _read(parts.choose, choose)
                    images = stand_ins(good, seed=self.seed, count=min(STAND_INS, len(good)))
                    made = images.map(lambda one: extract(one, views))
            return Rows(train, choose, made)  # type: ignore[arg-type]  # which may be None where nothing is chosen

        views = self.named_views()
        if views is None:
            found = choose_views(rows, str(network.device))
            log.info("views %s", found)
            views = Views.of(found.views)
        fitted, calibrate = rows(views), extract(parts.calibrate, views, known and held_known)
        right = _accuracy(network, [one for one in (fitted.held_out, calibrate) if one is not None])
        if not known:
            log.info("there are no labels of the network's classes; its own predictions take their place")
        model, threshold, counts = self.fit(model, fitted, calibrate, self.float16)
        if not network.names and source.classes is not None and len(source.classes) == network.classes:
            network.names = tuple(source.classes)
        notes = {
            "images": parts.train.name,
            "split_off": held is None,
            "labels": "given" if known else "predicted",
            "accuracy": right,
            "stages": stages,
        }
        reader = ImageReader(network, views=views, precision=self.precision, float16=self.float16)
        return Guard(reader, model, threshold, provenance={**counts, **notes})

    def divide(self, images: ImageSource, held_out: ImageSource | None, least: int) -> Parts:
        """Who is fitted, and who calibrates.

        Raises:
            TooFewSamplesError: there are too few images.
        """
        train = images
        if held_out is None:
            out = self.held_out(images.labels, len(images), least, "images")
            train, held_out = part_of(images, np.flatnonzero(~out)), part_of(images, np.flatnonzero(out))
            log.info(
                "%s of %s images are held out to calibrate the guard; a network knows images that it was trained on too well, so "
                "that a guard rejects more new ones than it should: held-out images that the network has not seen are better",
                f"{len(held_out):,}",
                f"{len(images):,}",
            )
        taken = self.to_train(train.labels, len(train), "images")
        train = train if taken.all() else part_of(train, np.flatnonzero(taken))
        first = self.to_choose(held_out.labels, len(held_out), least, "images")
        if not first.any():
            return Parts(train, None, held_out)
        return Parts(train, part_of(held_out, np.flatnonzero(first)), part_of(held_out, np.flatnonzero(~first)))

    def _opened(self, backbone: Any) -> Backbone:
        if not isinstance(backbone, Backbone | str):
            raise InputError(
                f"backbone is a {type(backbone).__name__}; wrap a network, outfield.Backbone(network, size=…, mean=…, std=…), or "
                "name one, such as 'timm:resnet18'"
            )
        network = Backbone.open(backbone, self.device) if isinstance(backbone, str) else copy.copy(backbone)
        if network.projects:
            raise InputError(
                f"{network.name} was trained without labels: it gives features and no logits, so that a guard could not name the "
                "class of an image; extract its features (outfield extract) and build a guard of these rows (outfield guard rows)"
            )
        _check_origin(network)
        if self.float16:
            network.network = copy.deepcopy(network.network)
            state = {name: value for name, value in network.network.state_dict().items() if isinstance(value, Tensor)}
            with torch.no_grad():
                for name, value in Record({}, state).narrowed().tensors.items():
                    state[name].copy_(value)
        return network


def _check_origin(backbone: Backbone) -> None:
    """Find out before long work whether a file can hold the network: whether it can be built again as it is.

    Raises:
        InputError: its library builds it otherwise, as it does with networks that change once they have their weights.
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


def _looked_into(backbone: Backbone, model: Detector) -> tuple[bool, int]:
    """Whether rows have what the network's blocks give, if the detector may use it; and how many classes there are.

    Raises:
        InputError: the network cannot be looked into.
    """
    wanted, one = (*model.uses, *model.needs_to_fit, *model.needs_to_score), Views.of(None)
    stages = any(name.startswith("stage") for name in wanted)
    try:
        fields = looked_into(backbone, stages, one)[1]
    except InputError:
        if not stages:
            raise
        stages, fields = False, looked_into(backbone, False, one)[1]  # whatever else is wrong with it is said there
    return stages, fields["logits"].shape[1]


def _matched(images: ImageSource, network: Backbone, classes: int) -> tuple[ImageSource, bool]:
    """Images whose labels count the network's classes, and whether they do: others keep labels that only divide them.

    Raises:
        InputError: a class of the images is none of the network's.
    """
    labels, why = match_labels(images, network.names, classes)
    if why and network.names:
        raise InputError(
            f"{images.name} cannot be used: {why}; its classes are {', '.join(network.names[:SHOWN])}"
            f"{', …' * (len(network.names) > SHOWN)}: name the folders so, or put all images into one folder, without classes"
        )
    if labels is None or int(labels.max()) >= classes:
        return images, False
    if network.names and images.classes is not None:
        images = copy.copy(images)
        images.labels, images.classes = labels, tuple(network.names)
    return images, True


def _read(images: ImageSource, rows: FeatureSet) -> ImageSource:
    """Those of the images that have a row: others could not be read."""
    if len(rows) == len(images) or images.names is None or rows.names is None:
        return images
    read = set(rows.names)
    return part_of(images, np.array([index for index, name in enumerate(images.names) if name in read]))


def _labelled(rows: FeatureSet) -> FeatureSet:
    """The same rows with predictions as their labels, where they have none; all of one class where there are no logits."""
    if rows.labels is not None:
        return rows
    labels = torch.zeros(len(rows), dtype=torch.int64) if rows.logits is None else rows.logits.argmax(1)
    return FeatureSet(**{**rows.tensors(), "labels": labels}, about=rows.about, names=rows.names)


def _accuracy(backbone: Backbone, parts: Sequence[FeatureSource]) -> float | None:
    """Of labelled rows; a warning where always naming the most frequent class would be right as often."""
    if "labels" not in parts[-1].shapes:
        return None
    logits, labels = (torch.cat([part.in_memory().tensors()[name] for part in parts]) for name in ("logits", "labels"))
    found, most = (
        accuracy(FeatureSet(logits, logits=logits, labels=labels)),
        float(labels.bincount().max()) / len(labels),
    )
    log.info("accuracy of %s on %s held-out images: %s", backbone.name, f"{len(labels):,}", percent(found, 1))
    if found <= most and len(labels.unique()) > 1:
        log.warning(
            "the network is right on %s of the held-out images, no more than by guessing; are the classes of the folders in the "
            "order of the network's?",
            percent(found, 1),
        )
    return found


# Rows


@dataclass(frozen=True)
class RowPlan(Plan):
    """Settings of a guard of rows; the first three are of tables alone."""

    label: str | None = None
    columns: Sequence[str] | None = None
    missing: str = "refuse"
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        good = not isinstance(self.names, str) and all(isinstance(name, str) for name in self.names)
        require(good, "names", self.names, "a text for each class")

    def build(self, rows: Any, held_out: Any = None) -> Guard:
        """See :meth:`outfield.Guard.build_rows`."""
        model, features, table = self.unfitted(), _features(rows), None
        least = self.least(model)
        if features is None:
            table, train, held = self._of_table(rows, held_out, least)
        else:
            train, held = self._of_features(features, held_out, least, model)
        if self.names and train.logits is None:
            raise InputError(
                f"names is {self.names!r:.100}, the classes that logits count, but the rows have no logits; leave it out, "
                "or give logits"
            )
        Reader(self.names).complete(train)
        first = self.to_choose(None, len(held), least, "rows")
        if train.labels is None:
            what = "all rows are one class" if train.logits is None else "predictions take their place"
            log.info("there are no labels; %s", what)
        train = _labelled(train)
        taken = self.to_train(train.labels, len(train), "rows")
        train = train if taken.all() else train[taken]
        choose: Any = held[first] if first.any() else None
        stand_ins: Any = None
        model, threshold, notes = self.fit(model, Rows(train, choose, stand_ins), held[~first])
        widths = {name: train.shapes[name][1] for name in model.needs_to_score}
        reader = Reader(self.names, widths) if table is None else TableReader(table, self.names, widths)
        notes |= {"split_off": held_out is None, "widths": widths}
        return Guard(reader, model, threshold, provenance=notes)

    def _of_table(self, rows: Any, held_out: Any, least: int) -> tuple[TablePreprocessing, FeatureSet, FeatureSet]:
        """What is learned of the columns of the rows that are not held out, and both parts as features."""
        train = found = columns_of(read_table(rows) if isinstance(rows, str | os.PathLike) else rows)
        if held_out is None:
            texts = {name: np.asarray(column).astype(str) for name, column in found.items()}
            numbers = {name: np.unique(own, return_inverse=True)[1] for name, own in texts.items()}
            copies = np.zeros(len(next(iter(numbers.values()))), np.int64)
            for own in numbers.values():
                copies = np.unique(copies * len(copies) + own, return_inverse=True)[1]
            out = self.held_out(numbers.get(self.label or ""), len(copies), least, "rows", copies)
            train, held_out = rows_of(found, ~out), rows_of(found, out)
        table = TablePreprocessing.fit(train, self.label, self.columns, missing=self.missing)
        return table, table(train), table(held_out)

    def _of_features(
        self, features: FeatureSet, held_out: Any, least: int, model: Detector
    ) -> tuple[FeatureSet, FeatureSet]:
        given = [name for name in ("label", "columns") if getattr(self, name) is not None]
        if given:
            raise InputError(
                f"{' and '.join(given)} are of tables, but the rows are features, which carry their labels"
            )
        if model.field in model.needs_to_score and features.shapes.get(model.field, (0, 0))[1] == 1:
            warnings.warn(
                f"{model.field} has one column, of which detectors that look at the direction of a row see the sign alone; as a "
                "table, {'x': column}, it is standardised and its size counts",
                OutfieldWarning,
                stacklevel=4,
            )
        if held_out is None:
            out = self.held_out(features.labels, len(features), least, "rows", copies_of(features))
            return features[~out], features[out]
        held = _features(held_out)
        if held is None:
            raise InputError(
                "the rows are features, so held_out must be features, too: a FeatureSet, an array or a file of them"
            )
        return features, held


def _features(rows: Any) -> FeatureSet | None:
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
