"""Building a guard: split the samples, extract their rows, fit the detector, choose the threshold."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from outfield.backbone import MOST_NAMED, Backbone, Odin, Views, accuracy, match_labels
from outfield.config import require, require_choice, require_number
from outfield.detectors import AUTO, CHOICES, DETECTORS, LEAST, Auto, Detector, Rows, choose_views, labels_of
from outfield.errors import FileFormatError, InputError, OutfieldError, StorageError, TooFewSamplesError, as_ours
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
from outfield.guard.boxes import network_fingerprint
from outfield.guard.decision import (
    GLOBAL,
    PER_CLASS,
    Decision,
    acceptance_of,
    divided,
    predicted,
    thresholds_per_class,
    wrong_answers,
)
from outfield.guard.guard import Guard
from outfield.guard.readers import ImageReader, Reader, TableReader, looked_into
from outfield.guard.texts import LABEL, Texts
from outfield.images import KINDS as STAND_IN_KINDS
from outfield.images import ON_ERROR, ImageSource, image_copies, open_images, part_of, stand_ins
from outfield.modes import resolve_device
from outfield.partners import StandIns
from outfield.percent import counted, percent
from outfield.scores import Threshold, check_accuracy, check_keep, fewest, fewest_right

log = logging.getLogger(__name__)
STAND_INS = 500  # images of each kind of stand-in, at most
# A fifth of the samples is held out; up to a third where that is fewer than 240; no more than 5,000, or than are needed
SHARE, ENOUGH, MOST = 0.2, 240, 5000
# Held-out samples that choose and calibrate the members of a sum, at least; others choose the threshold
TO_CHOOSE = 2 * LEAST
SHOWN = 8  # names of classes in a message
# Images of each kind of stand-in, at most, that tell how good the guard is; made of images that only set the threshold
JUDGED = 100
# Before the long part, so many images tell how long it takes. If fewer of them are classified rightly than is good, other sizes
# are tried, and one that is so much better is told.
LOOKED_AT, GOOD, FAR_BELOW, SIZES = 256, 0.9, 0.1, (32, 64, 128, 224)
# Labels of images: classes of the network, other classes of the folders, or predictions of the network
GIVEN, FOLDERS, PREDICTED = "given", "folders", "predicted"
OF_LOGITS = ("logits", "odin_logits", *HEAD_FIELDS)  # fields that follow from a network's classes


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
    unit: ClassVar[str] = "row"
    units: ClassVar[str] = "rows"

    def __post_init__(self) -> None:
        known = "a detector, its name, or None"
        require(isinstance(self.detector, Detector | str | None), "detector", self.detector, known)
        check_keep(self.keep)
        require_choice("threshold", self.threshold, (GLOBAL, PER_CLASS))
        if self.accuracy is not None:
            check_accuracy(self.accuracy)
        require_number("seed", self.seed, least=0, whole=True)
        if self.max_train is not None:
            require_number("max_train", self.max_train, least=1, whole=True)
        resolve_device(self.device)
        self.unfitted()

    def unfitted(self, train: FeatureSource | None = None) -> Detector:
        """The detector that is to be fitted, one that is named with settings that suit the training rows."""
        if self.detector is None:
            return Auto(seed=int(self.seed)).to(self.device)
        if not isinstance(self.detector, str):
            return self.detector.fresh().to(self.device)
        smallest = 0 if train is None else int(labels_of(train).unique(return_counts=True)[1].min())
        return DETECTORS[self.detector].suited(smallest).to(self.device)

    @property
    def least(self) -> int:
        """Held-out samples that are needed: some for the threshold, more for a detector that calibrates itself."""
        return self.to_decide + (TO_CHOOSE if self.unfitted().uses_held_out else 0)

    @property
    def to_decide(self) -> int:
        """Held-out samples that set the threshold and test an accuracy, at least."""
        return fewest(self.keep) + (0 if self.accuracy is None else fewest_right(self.accuracy))

    def enough(self, least: int) -> int:
        """Held-out samples that are likely to do: two thirds of those that choose no members test an accuracy."""
        more = 0 if self.accuracy is None else math.ceil(3 / 2 * 3 * fewest_right(self.accuracy)) - self.to_decide
        return least + (1 if least == self.to_decide else 2) * more

    def held_out(self, labels: Any, total: int, copies: np.ndarray | Tensor | None = None) -> np.ndarray:
        """Which samples are held out (total,): a share of each class, of which every class keeps a sample.

        Samples with an equal entry in ``copies`` stay on one side, where enough are left to be held out so.
        """
        least = self.least
        count = max(least, min(MOST, max(round(SHARE * total), min(ENOUGH, total // 3))))
        chosen = stratified_rows(total, count, seed=self.seed, labels=labels, copies=copies).numpy()
        if int(chosen.sum()) < count and copies is not None:
            return self.held_out(labels, total)
        if 2 * count > total or int(chosen.sum()) < count:
            count, few = max(count, self.enough(least)), 2 * self.enough(self.to_decide)
            fewer = f", or one detector, such as SSD, for which {few:,} are enough" if least > self.to_decide else ""
            what = f"found {counted(total, self.unit)}, and {count:,} would have to be held out to calibrate the guard"
            more = f"pass at least {2 * count:,} {self.units}, or held-out ones (--held-out, in Python held_out=…)"
            raise TooFewSamplesError(f"{what}; {more}{fewer}")
        return chosen

    def split(self, given: Any, labels: Any, copies: np.ndarray | Tensor) -> tuple[Any, Any]:
        """Samples to train on, and those that are held out."""
        out = self.held_out(labels, len(copies), copies)
        return part(given, ~out), part(given, out)

    def to_choose(self, held: Any, labels: Any = None, copies: np.ndarray | None = None) -> tuple[Any, Any]:
        """Held-out samples that choose and calibrate the members of a sum, or None, and those that choose the threshold."""
        least, total = self.least, len(held)
        found = f"found {counted(total, f'held-out {self.unit}')}"
        if total < least:
            left, told = total - least + self.to_decide, f"at least {self.enough(least):,} are needed"
            if self.accuracy is not None and (tests := left - max(fewest(self.keep), left // 3)) > 0:
                most, about = math.floor(1000 * 0.05 ** (1 / tests)) / 10, 10 * math.ceil(self.enough(least) / 10)
                best = f"even if the network were always right, they could promise {most:g} % right answers at most"
                told = f"{best}, not {100 * self.accuracy:.4g} %; pass a lower accuracy, or about {about:,} held-out {self.units}"
            raise TooFewSamplesError(f"{found}; {told}")
        if least == self.to_decide:
            return None, held
        count = TO_CHOOSE + (total - least) // 2
        first = stratified_rows(total, count, seed=self.seed + 1, labels=labels, copies=copies).numpy()
        if first.sum() < TO_CHOOSE and labels is not None:  # classes of one sample each
            first = stratified_rows(total, count, seed=self.seed + 1).numpy()
        if first.sum() < TO_CHOOSE or (~first).sum() < self.to_decide:
            raise TooFewSamplesError(f"{found} in too few images; at least {least:,} are needed, of several images")
        return part(held, first), part(held, ~first)

    def to_train(self, given: Any) -> Any:
        """Of the samples that are not held out those that the detector is fitted on."""
        total = len(given)
        if self.max_train is None or total <= self.max_train:
            return given
        log.info("the detector is fitted on %s of %s %s", f"{self.max_train:,}", f"{total:,}", self.units)
        return part(given, stratified_rows(total, self.max_train, seed=self.seed + 2, labels=given.labels).numpy())

    def fit(self, reader: Reader, train: FeatureSource, choose: Any, held: FeatureSet, stand_ins: Any = None) -> Guard:
        """The guard of a detector that is fitted on rows, with a threshold and decision on rows that it has not seen."""
        model = self.unfitted(train).fit(train, held_out=choose, stand_ins=stand_ins)
        if stand_ins is not None:
            log.info("chose %s, with weights fitted on the stand-ins", " + ".join(model.names))  # type: ignore[attr-defined]
        model = self._kept(model)
        limits, tests = divided(held, self.keep, self.accuracy, self.seed + 3)
        threshold = Threshold.fit(model.score(limits), keep=self.keep, source=model.fingerprint())
        decision, rows = Decision(), train.in_memory()
        if self.threshold == PER_CLASS:
            decision = Decision(thresholds_per_class(model, rows, limits, self.keep))
        if self.accuracy is not None and tests is not None:
            first, second = decision.judged(model, threshold, limits, tests)
            found = acceptance_of(lambda one: self._kept(one.to(self.device).fit(rows)), first, second, self.accuracy)
            decision = Decision(decision.per_class, *found)
            log.info("%s", decision.acceptance)
        decided = None if decision == Decision() else decision
        needed = (*model.needs_to_score, *(() if decided is None else ("logits", *decided.needs)))
        reader.widths = {name: train.shapes[name][1] for name in needed}
        notes = {"train": len(train), "choose": len(choose or ()), "calibrate": len(limits), "seed": int(self.seed)}
        return Guard(reader, model, threshold, provenance=notes, decision=decided)

    def _kept(self, model: Detector) -> Detector:
        """The detector as the file will have it."""
        with as_ours(f"float16 is True, but {type(model).__name__} cannot be kept so", InputError, OutfieldError):
            return Detector.from_record(model.record().narrowed()).to(model._device) if self.float16 else model


# Images


@dataclass(frozen=True)
class ImagePlan(Plan):
    """Settings of a guard of images."""

    views: Views | str | int | None = None
    precision: str = "float32"
    batch_size: int = 512
    workers: int | None = None
    on_error: str = "skip"
    unit, units = "image", "images"
    refused: ClassVar[Sequence[str]] = ()  # settings that guards of such inputs cannot have

    def __post_init__(self) -> None:
        super().__post_init__()
        self.named_views()
        require_choice("on_error", self.on_error, ON_ERROR)
        for name in self.refused:
            if (value := getattr(self, name)) != getattr(ImagePlan, name):
                raise InputError(f"{name} is {value!r}, which a guard of {self.units} cannot have; leave it out")

    def named_views(self) -> Views | None:
        """The views that are averaged over; None for "auto", where stand-ins choose."""
        if self.views == AUTO:
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
        if not os.path.lexists(path := as_path(given, "images")):
            raise StorageError(f"cannot read {path}: there is no such file or folder; images are a folder or an .npz")
        return open_images(path, on_error=self.on_error)

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
        train, choose, calibrate = parts = self.divide(source, held)
        odin = Odin() if "odin_logits" in model.needs_to_score else None
        views = self.named_views()
        passes = 9 if views is None else len(views) * (1 if odin is None else 3)
        self._first_look(network, source, [0 if one is None else len(one) for one in parts], labels, passes)
        if alone:
            what = f"the folders are not the network's {classes:,} classes"
            log.info("%s: the detector uses its features, not its logits", what)

        def extract(images: ImageSource, views: Views | str, labels: bool = False) -> FeatureSet:
            return network.extract(
                images, stages=stages, views=views, odin=odin, labels=labels, precision=self.precision,
                batch_size=self.batch_size, workers=self.workers, on_error=self.on_error,
            )  # fmt: skip

        def played(images: ImageSource, rows: FeatureSet, views: Views | str, most: int) -> StandIns[FeatureSet]:
            """Rows of stand-ins made of the images that have a row: others could not be read."""
            if images.names is not None and rows.names is not None:
                images = part(images, np.isin(images.names, rows.names))
            made = stand_ins(images, None, self.seed, min(most, len(images)), network.outliers)
            return made.map(lambda one: extract(one, views))

        def rows(views: Views | str) -> Rows:
            fitted, chosen = _labelled(extract(train, views, own), alone), None
            if choose is not None:
                chosen = _labelled(extract(choose, views, held_own), alone)
            made: Any = played(choose, chosen, views, STAND_INS) if chosen and model.uses_stand_ins else None
            return Rows(fitted, chosen, made)  # type: ignore[arg-type]  # which may be None where nothing is chosen

        if views is None:
            found = choose_views(rows, str(network.device))
            log.info("views %s", found)
            views = Views.of(found.views)
        fitted, limits = rows(views), extract(calibrate, views, held_own)
        known = [one.in_memory() for one in (fitted.held_out, limits) if one]
        right = _accuracy(network.name, self.units, known) if labels == held_labels == GIVEN else None
        if not network.names and source.classes is not None and len(source.classes) == network.classes:
            network.names = tuple(source.classes)
        reader = ImageReader(network, views=views, precision=self.precision, float16=self.float16)
        guard = self.fit(reader, fitted.train, fitted.held_out, limits, fitted.stand_ins)
        made = played(calibrate, limits, views, JUDGED).map(guard.detector.score)
        caught = made.map(lambda scores: float(guard.threshold.is_ood(scores).double().mean())).by_level()
        guard.provenance |= {"images": train.name, "split_off": held is None, "labels": labels, "accuracy": right}
        guard.provenance["caught"] = {level: sum(one.values()) / len(one) for level, one in caught.items()}
        guard.provenance["stages"] = stages
        return guard

    def divide(self, images: ImageSource, held: ImageSource | None) -> tuple[Any, Any, Any]:
        """Images that the detector is fitted on, that choose its members, if it has some, and that set the threshold."""
        if held is None:
            images, held = self.split(images, images.labels, image_copies(images))
            self.tell_held_out(len(held), len(images))
        return self.to_train(images), *self.to_choose(held, held.labels)

    def tell_held_out(self, count: int, left: int) -> None:
        """What is held out where nothing was given for that."""
        units = self.units
        what = f"{count:,} of {count + left:,} {units} are held out to set the threshold"
        why = f"if the network was trained on them, it will refuse too many new {units}"
        log.info("%s; %s: then give %s that it has not seen, with --held-out, in Python held_out=…", what, why, units)

    def _first_look(self, network: Backbone, images: ImageSource, counts: list[int], labels: str, passes: int) -> None:
        """Before the long part: say what will be done and how long it takes; warn of a size that does not suit the network."""
        some = part_of(images, np.linspace(0, len(images) - 1, min(LOOKED_AT, len(images))).astype(int))
        way = network.preprocessing

        def right(size: tuple[int, int]) -> float:
            """The share of these images that the network classifies rightly, at a size; 0 where it cannot take them."""
            tried = copy.copy(network)
            if size != way.size:
                tried.preprocessing = replace(way, resize=size, crop=None, fit="exact")
            with warnings.catch_warnings(), contextlib.suppress(Exception):  # of a network that is made for one size
                warnings.simplefilter("ignore")
                rows = tried.extract(some, labels=labels == GIVEN, workers=self.workers, on_error="skip")
                return accuracy(rows)
            return 0.0

        began = time.monotonic()
        now = right(way.size)
        each = (time.monotonic() - began) / len(some)
        made = len(STAND_IN_KINDS) * (min(STAND_INS, counts[1]) + min(JUDGED, counts[2]))
        uses = ("images fit the detector", "choose its members", "set its threshold")
        told = [f"{count:,} {use}" for count, use in zip(counts, uses, strict=True) if count]
        takes = f"at least {_duration(each * passes * (sum(counts) + made))} for the network"
        log.info("%s; %s made-up images (stand-ins) play OOD: %s", ", ".join(told), f"{made:,}", takes)
        if labels == PREDICTED:
            what = "the images are not in folders named after the network's classes"
            log.info("%s: its predictions serve as labels", what)
        if labels != GIVEN or now >= GOOD:
            return
        sides = {(side, side) for side in SIZES} | ({images.size} if images.size else set())
        others = {size: right(size) for size in sides if size != way.size and max(size) <= 2 * max(way.size)}
        best = max(others, key=lambda size: others[size], default=way.size)
        if others.get(best, 0.0) > now + FAR_BELOW:
            what = f"the network is right on {percent(now, 1)} of {len(some)} images at {way.size[0]} × {way.size[1]} pixels"
            but = f"but on {percent(others[best], 1)} at {best[0]} × {best[1]}: if it was trained at that size, say so"
            log.warning("%s, %s with --size %s, in Python size=%s", what, but, "x".join(map(str, best)), best)

    def _opened(self, backbone: Any) -> Backbone:
        if not isinstance(backbone, Backbone | str):
            found = type(backbone).__name__
            raise InputError(f"backbone is a {found}; wrap a network, outfield.Backbone(network, size=…), or name one")
        network = Backbone.open(backbone, self.device) if isinstance(backbone, str) else copy.copy(backbone)
        if network.projects:
            what = f"{network.name} was trained without labels: it gives no logits, so that a guard could not name the class"
            how = "extract its features (outfield extract) and build a guard of these rows (outfield guard rows)"
            raise InputError(f"{what} of an image; {how}")
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
        built = backbone.origin.build(state, backbone.name)
        same = network_fingerprint(built) == network_fingerprint(backbone.network)
    except OutfieldError as error:
        same, why = False, str(error)
    if not same:
        what = f"a guard cannot hold {backbone.name}, because its library does not build the same from its weights"
        how = "build the guard in Python, of outfield.Backbone(network, preprocessing=…)"
        raise InputError(f"{what} ({why}); {how}, and pass the network when it is loaded")


def _of_folders(network: Backbone, model: Detector, sources: Sequence[Any]) -> tuple[Backbone, bool, int, bool]:
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
    wanted = (*model.uses, *model.needs_to_fit, *model.needs_to_score)
    if any(name.startswith("stage") for name in wanted):
        with contextlib.suppress(InputError):  # whatever else is wrong with it is said without stages
            return True, looked_into(backbone, stages=True)[1]["logits"]
    return False, looked_into(backbone, stages=False)[1]["logits"]


def _matched(images: ImageSource, network: Backbone, classes: int) -> tuple[ImageSource, str]:
    """Images whose labels count the network's classes, or those of the folders, and which of these they do."""
    labels, why = match_labels(images, network.names, classes)
    if why and not {*network.names}.isdisjoint(images.classes or ()):
        known = ", ".join(network.names[:SHOWN]) + ", …" * (len(network.names) > SHOWN)
        what = f"{images.name} cannot be used: {why}; its classes are {known}"
        raise InputError(f"{what}: name the folders so, or put all images into one folder, without classes")
    if images.labels is None or int(images.labels.max() if labels is None else labels.max()) >= classes:
        return images, PREDICTED
    given = copy.copy(images)
    if labels is None:
        given.classes = None  # so that their labels are taken as they are
        return given, FOLDERS
    if network.names and images.classes is not None:
        given.labels, given.classes = labels, tuple(network.names)
    return given, GIVEN


def _labelled(rows: FeatureSet, alone: bool = False) -> FeatureSet:
    """The same rows with predictions as their labels, where they have none; all of one class where there are no logits.

    With ``alone`` they are left without logits and all that follows from these.
    """
    fields = rows.tensors()
    if rows.labels is None:
        labels = predicted(rows)
        fields["labels"] = torch.zeros(len(rows), dtype=torch.int64) if labels is None else labels
    kept = {name: value for name, value in fields.items() if not alone or name not in OF_LOGITS}
    return FeatureSet(**kept, about=rows.about, names=rows.names)


def part(given: Any, chosen: np.ndarray) -> Any:
    """Those of the images, texts, rows or columns by name that are chosen (N,)."""
    if chosen.all():
        return given
    if isinstance(given, ImageSource):
        return part_of(given, np.flatnonzero(chosen))
    return rows_of(given, chosen) if isinstance(given, dict) else given[chosen]


def numbered(cells: Iterable[Any]) -> np.ndarray:
    """A number for each cell or row of cells, the same for equal ones (N,)."""
    first: dict[Any, int] = {}
    return np.array([first.setdefault(cell, len(first)) for cell in cells])


def _duration(seconds: float) -> str:
    return f"{max(1, seconds):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _accuracy(network: str, unit: str, parts: Sequence[FeatureSet]) -> float:
    """Of labelled rows; a warning where always naming the most frequent class would be right as often."""
    rows = FeatureSet.join([one for one in parts if one.logits is not None])
    found, labels = accuracy(rows), rows.tensors()["labels"]
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

    def build(self, rows: Any, held_out: Any = None, reader: Reader | None = None) -> Guard:
        """See :meth:`outfield.Guard.build_rows`; rows that a reader gave have that one."""
        features, network = as_features(rows), self.network_features
        if network is None and features is not None:  # they say so, or have logits or other fields of one
            network = NETWORK in features.about or not {*features.shapes} <= {"features", "labels"}
        if features is None or not network:
            own, train, held = self._of_table(rows, features, held_out)
        else:
            own, train, held = self._of_features(features, held_out)
        if self.names and train.logits is None:
            raise InputError(f"names is {self.names!r:.60}, but the rows have no logits; leave it out")
        own = reader or own
        own.complete(train)
        if self.accuracy is not None:
            wrong_answers(held)  # or an error, before the long part
        choose, calibrate = self.to_choose(held)
        if train.labels is None:
            what = "all rows are one class" if train.logits is None else "predictions take their place"
            log.info("there are no labels; %s", what)
        made = self.fit(own, self.to_train(_labelled(train)), choose, calibrate)
        made.provenance |= {"split_off": held_out is None, "widths": own.widths}
        return made

    def _of_table(self, rows: Any, features: FeatureSet | None, held_out: Any) -> tuple[Reader, FeatureSet, FeatureSet]:
        """What is learned of the columns of the rows that are not held out, and both parts as features."""
        label = self.label
        if features is None:
            train = read_columns(rows, dict.fromkeys(self.categories, TEXT))
            if label is None and self.columns is None and LABEL in train:
                log.warning("column %r is taken as a feature; if it holds the classes, pass --label %s", LABEL, LABEL)
        else:
            train = as_columns(features)
            label = LABEL if label is None and LABEL in train else label
            held_out = held_out if (own := as_features(held_out)) is None else as_columns(own)
        if held_out is None:
            texts = {name: np.asarray(column).astype(str) for name, column in train.items()}
            copies = numbered(zip(*(column.tolist() for column in texts.values()), strict=True))
            labels = np.unique(texts[label], return_inverse=True)[1] if label in texts else None
            train, held_out = self.split(train, labels, copies)
        way = {"missing": self.missing, "categories": self.categories, "ignore_extra": self.ignore_extra}
        table = TablePreprocessing.fit(train, label, self.columns, **way)  # type: ignore[arg-type]
        return TableReader(table, self.names), table(train), table(held_out)

    def _of_features(self, features: FeatureSet, held_out: Any) -> tuple[Reader, FeatureSet, FeatureSet]:
        if given := [name for name in ("label", "columns", "categories", "ignore_extra") if getattr(self, name)]:
            raise InputError(f"{' and '.join(given)} is given, but the rows are features and not a table; leave it out")
        if held_out is None:
            return Reader(self.names), *self.split(features, features.labels, copies_of(features))
        if (held := as_features(held_out)) is None:
            raise InputError("the rows are features, so held_out must be features, too")
        return Reader(self.names), features, held


@dataclass(frozen=True)
class TextPlan(ImagePlan):
    """Settings of a guard of texts, see :meth:`outfield.Guard.build`; of those of images ``float16`` and ``on_error``."""

    unit, units, refused = "text", "texts", ("views", "precision")

    def build(self, backbone: Any, images: Any, held_out: Any = None) -> Guard:
        """A guard of what the classifier gives for texts, which are given as :meth:`outfield.Texts.open` takes them."""
        reader: Texts = backbone.rounded() if self.float16 else copy.copy(backbone)
        train = reader.open(images).usable(self.on_error)
        held = None if held_out is None else reader.open(held_out).usable(self.on_error)
        if reader.label is not None and any(one is not None and one.labels is None for one in (train, held)):
            raise InputError(f"there is no column {reader.label!r} of classes; leave label out where texts have none")
        reader.names, reader.column = train.names or reader.names, train.column
        if held is None:
            train, held = self.split(train, train.labels, numbered(map(str, train.cells)))
            self.tell_held_out(len(held), len(train))
        rows, calibrate = map(reader.rows, (self.to_train(train), held))
        right = None if calibrate.labels is None else _accuracy(reader.name, self.units, [calibrate])
        plan = RowPlan(**{one.name: getattr(self, one.name) for one in fields(Plan)}, names=reader.names)
        made = plan.build(rows, calibrate, reader)
        made.provenance |= {"split_off": held_out is None, "accuracy": right}
        made.provenance["labels"] = PREDICTED if rows.labels is None else GIVEN
        return made


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
