"""The two ways to a benchmark: from features, and from images."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from outfield.backbone.views import Views
from outfield.benchmark.choice import default_detectors, perturbation
from outfield.benchmark.chosen_views import check_can_choose, chosen_views
from outfield.benchmark.fitting import TEST, TRAIN, OneBackbone, Say, Sets, log
from outfield.benchmark.fractions import SEED, add_fractions, checked_fractions
from outfield.benchmark.held_out import HELD_OUT, held_out_count, split_features, split_images
from outfield.benchmark.held_out import SEED as HELD_OUT_SEED
from outfield.benchmark.protocol import Protocol
from outfield.benchmark.provenance import about_this_run, machine, settings
from outfield.benchmark.records import BenchmarkRun, Key
from outfield.benchmark.sets import (
    ExtractedSets,
    Extractor,
    check_images,
    check_logits,
    fields_needed,
    find_images,
    notes_of,
    open_backbones,
)
from outfield.benchmark.stages import Stages
from outfield.config import require, require_number, to_plain
from outfield.detectors.base import Detector
from outfield.detectors.choosing_views import AUTO
from outfield.detectors.data import lacking
from outfield.errors import DivergenceError, InputError, MissingFieldError, OutfieldWarning
from outfield.extras import library
from outfield.features.set import FeatureSet, FeatureSource
from outfield.files import atomic, storage
from outfield.files.paths import as_path
from outfield.images.source import ImageSource

CACHE = "cache"
"""Folder, below the one that a run writes to, in which each stage's result is kept."""


def benchmark_features(
    protocol: Protocol,
    sets_by_backbone: Mapping[str, Mapping[str, FeatureSource]],
    *,
    detectors: Mapping[str, Detector] | None = None,
    fitted: Mapping[Key, Detector] | None = None,
    seeds: int | Iterable[int] = 3,
    device: str = "auto",
    allow_missing: bool = False,
    view: bool = True,
    classes: Sequence[str] = (),
    fractions: Iterable[float] = (),
    held_out: int | None = None,
    say: Say = log.info,
) -> BenchmarkRun:
    """Fit every detector on each backbone's features and tell every OOD set from the ID test set.

    Args:
        protocol: which OOD sets there are, and how near they are.
        sets_by_backbone: by a backbone's name its features: "train" and "test" of the ID set, and each OOD set by name.
        detectors: settings of each detector by the name to report; :func:`outfield.benchmark.choice.default_detectors` if None.
        fitted: detectors that are fitted already, by backbone, name and seed; they are scored, and no other seed of theirs is
            fitted on that backbone. The provenance lists them as ``given``. Where all are given, "train" is not needed.
        seeds: of learned detectors, which train all their seeds side by side; a number n means 0 to n − 1.
        device: where detectors run.
        allow_missing: go on without OOD sets that are not there, and say so in the provenance and the tables.
        view: lay some of the features out in two dimensions (t-SNE, seconds).
        classes: Names of the ID set's classes by label, for figures; without them a class goes by its number.
        fractions: Of the training rows, on each of which every detector that is not given is fitted as well
            (:mod:`outfield.benchmark.fractions`).
        held_out: how many of the ID test rows calibrate Auto and Fused and are not judged; a tenth, at most 1,000, where one of
            them runs and nothing is said. A set called "held_out" is taken instead.
        say: told what is being done; logged if absent.

    Raises:
        InputError: a set is not there, or nothing to do.
        MissingFieldError: a set lacks what a detector needs; found before any is fitted.
    """
    chosen, given = _detectors(protocol, detectors), dict(fitted or {})
    for key, detector in given.items():
        chosen.setdefault(key.detector, detector)
        if key.backbone not in sets_by_backbone:
            raise InputError(
                f"fitted has a detector for {key.backbone!r}; the backbones are {', '.join(sets_by_backbone)}"
            )
    ready = {(key.backbone, key.detector) for key in given}
    to_fit = {backbone: [name for name in chosen if (backbone, name) not in ready] for backbone in sets_by_backbone}
    missing = _missing_features(protocol, sets_by_backbone, to_fit, allow_missing)
    present = tuple(ood for ood in protocol.ood if ood not in missing)
    used = {
        backbone: split_features(
            {part: sets[part] for part in (TRAIN, TEST, HELD_OUT, *present) if part in sets},
            TEST,
            held_out_count(held_out, [chosen[name] for name in to_fit[backbone]], len(sets[TEST])),
        )
        for backbone, sets in sets_by_backbone.items()
    }
    for backbone, sets in used.items():
        _check_fields(backbone, sets, chosen, to_fit[backbone])
    numbers, shares = _seeds(seeds), checked_fractions(fractions)
    run, stages = (
        _begin(protocol, chosen, numbers, given, device, view, shares),
        Stages(None, machine(device)["device"]),
    )
    run.provenance |= {"missing": missing, "data": {}}
    run.classes = tuple(map(str, classes))
    for backbone, sets in used.items():
        one = OneBackbone(backbone, _Given(sets, present), run, stages, device, say)
        _run_backbone(one, chosen, numbers, given, view)
        add_fractions(one, {name: chosen[name] for name in to_fit[backbone]}, numbers, shares)
        run.provenance["data"][backbone] = {part: _about_features(data) for part, data in sets.items()}
    run.provenance["stages"] = stages.summary()
    return run


def run_benchmark(
    protocol: Protocol,
    data: atomic.PathLike | Mapping[str, ImageSource],
    backbones: Sequence[str | Extractor],
    out: atomic.PathLike,
    *,
    detectors: Mapping[str, Detector] | None = None,
    seeds: int | Iterable[int] = 3,
    device: str = "auto",
    allow_missing: bool = False,
    download: bool = False,
    view: bool = True,
    fractions: Iterable[float] = (),
    views: Views | str | int | None = None,
    held_out: int | None = None,
    say: Say = log.info,
) -> BenchmarkRun:
    """The whole way from images to records.

    Every stage's result (features of a set, a fitted detector, scores of a set) is kept below ``out/cache`` under everything it
    depends on. A run that was cut off goes on where it stopped, within a learned fit too; a second run computes only what has
    changed. A damaged file is computed again, and a warning tells of it. Features of one backbone are in memory at a time.

    Args:
        protocol: the ID set and its OOD sets.
        data: folder in which :func:`outfield.images.finding.find` looks for them; or images by name: "train" and "test" of the ID
            set, and each OOD set.
        backbones: what :meth:`outfield.backbone.backbone.Backbone.open` takes, or backbones.
        out: folder for results; made if it is not there.
        detectors: settings of each detector by the name to report; :func:`outfield.benchmark.choice.default_detectors` if None.
        seeds: of learned detectors, which train all their seeds side by side; a number n means 0 to n − 1.
        device: where backbones and detectors run.
        allow_missing: go on without OOD sets that are not there, and say so in the provenance and the tables.
        download: get sets that are not in the folder, where torchvision can.
        view: lay some of the features out in two dimensions (t-SNE, seconds).
        fractions: of the training rows, on each of which every detector is fitted as well
            (:mod:`outfield.benchmark.fractions`).
        views: of each image, over which its features are averaged: "flip", "six", a number, or Views; one if None. With "auto"
            stand-ins choose one, flip or six on each backbone, before an OOD set is looked at; Auto must be among the detectors.
        held_out: how many of the ID test images calibrate Auto and Fused, are what stand-ins are made of, and are not judged; a
            tenth, at most 1,000, where one of them runs and nothing is said.
        say: told what is being done; logged if absent.

    Raises:
        InputError: sets are not there (the message lists all of them) or not in the protocol, ID images given as another set
            too, a backbone given twice, two temperatures of ODIN. Nothing was computed.
        StorageError: ``out`` cannot be written.
    """
    chosen, numbers, shares = _detectors(protocol, detectors), _seeds(seeds), checked_fractions(fractions)
    odin, averaged = perturbation(chosen), None if views == AUTO else Views.of(views)
    images, problems = find_images(protocol, data, download)
    missing = _left_out(protocol, problems, allow_missing)
    check_images(images)
    count = held_out_count(held_out, chosen.values(), len(images[TEST]))
    if averaged is None:
        check_can_choose(chosen.values(), count)
    images, levels = split_images(images, TEST, count, chosen.values())
    opened = open_backbones(backbones, device)
    check_logits(opened, chosen)
    stages = Stages(as_path(out, "out") / CACHE, machine(device)["device"])
    run = _begin(protocol, chosen, numbers, {}, device, view, shares)
    say(f"reading {len(images)} sets of images")
    checksums = {name: source.fingerprint() for name, source in images.items()}
    about = {name: {"images": len(source), "sha256": checksums[name]} for name, source in images.items()}
    run.provenance |= {"missing": missing, "data": about}
    run.provenance["odin"] = to_plain(odin)
    if count:
        run.provenance["held_out"] = {"images": count, "seed": HELD_OUT_SEED}
    if averaged is None:
        run.provenance["views"] = {}
    elif len(averaged) > 1:
        run.provenance["views"] = str(averaged)
    run.classes = images[TEST].classes or images[TRAIN].classes or ()
    fields = fields_needed(chosen.values())
    for (name, backbone), given in zip(opened.items(), backbones, strict=True):

        def sets_of(
            some: Mapping[str, ImageSource], views: Views, name: str = name, backbone: Extractor = backbone
        ) -> ExtractedSets:
            return ExtractedSets(name, backbone, some, checksums, odin, stages, say, fields, views, levels)

        on_this = averaged
        if on_this is None:
            to_choose = {part: source for part, source in images.items() if part in (TRAIN, HELD_OUT, *levels)}
            found = chosen_views(partial(sets_of, to_choose), name, fields, stages, device, say)
            say(f"{name}: views {found}")
            run.provenance["views"][name] = str(found)
            on_this = Views.of(found.views)
        sets = sets_of(images, on_this)
        run.provenance["backbones"][name] = {"sha256": backbone.fingerprint(), **notes_of(given)}
        one = OneBackbone(name, sets, run, stages, device, say)
        _run_backbone(one, chosen, numbers, {}, view)
        add_fractions(one, chosen, numbers, shares)
    run.provenance["stages"] = stages.summary()
    return run


def _begin(
    protocol: Protocol,
    detectors: Mapping[str, Detector],
    seeds: list[int],
    given: Mapping[Key, Detector],
    device: str,
    view: bool,
    fractions: Sequence[float],
) -> BenchmarkRun:
    """An empty run whose provenance says what is about to happen."""
    if view:
        library("sklearn", "report")  # found to be missing before the work, not after it
    if not detectors:
        raise InputError("there is no detector to run; name at least one")
    run = BenchmarkRun(protocol, provenance=about_this_run(device))
    run.provenance |= {"protocol": protocol.plain(), "seeds": seeds, "backbones": {}}
    if fractions:
        run.provenance["fractions"] = {"of training rows": [*fractions], "seed": SEED}
    run.provenance["detectors"] = {
        name: {"settings": settings(detector), "given": sorted({key.backbone for key in given if key.detector == name})}
        for name, detector in detectors.items()
    }
    return run


def _run_backbone(
    one: OneBackbone,
    detectors: Mapping[str, Detector],
    seeds: list[int],
    given: Mapping[Key, Detector],
    view: bool,
) -> None:
    """Everything on one backbone's features: all detectors, then accuracy and view."""
    left_out = one.run.provenance.get("left_out", {})
    for name, detector in detectors.items():
        ready = {key.seed: found for key, found in given.items() if (key.backbone, key.detector) == (one.name, name)}
        if name in left_out:
            continue
        try:
            one.add(name, detector, seeds, ready)
        except (InputError, DivergenceError) as error:
            if len(left_out) + 1 == len(detectors):
                raise
            left_out[name] = f"{one.name}: {error}"
            one.run.drop(name)
            one.run.provenance["left_out"] = left_out
            warnings.warn(f"{name} is left out, {left_out[name]}", OutfieldWarning, stacklevel=2)
    accuracy = one.accuracy()
    one.run.provenance["backbones"].setdefault(one.name, {})["accuracy"] = accuracy
    if accuracy is not None:
        one.run.accuracies[one.name] = accuracy
    if view:
        one.run.views.append(one.view())


def _detectors(protocol: Protocol, given: Mapping[str, Detector] | None) -> dict[str, Detector]:
    """The detectors to run, whose settings are looked at before any work."""
    chosen = dict(default_detectors(protocol) if given is None else given)
    for name, detector in chosen.items():
        require(isinstance(detector, Detector), f"detectors[{name!r}]", detector, "an outfield.Detector")
        detector.check_settings()
    return chosen


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, int):
        require_number("seeds", seeds, least=1, whole=True)
        return list(range(seeds))
    chosen = [int(seed) for seed in seeds]
    require(bool(chosen) and len({*chosen}) == len(chosen), "seeds", chosen, "different whole numbers, at least one")
    return chosen


class _Given(Sets):
    """Features in memory."""

    def __init__(self, sets: Mapping[str, FeatureSource], ood: tuple[str, ...]) -> None:
        self._sets, self.ood, self.has_held_out = sets, ood, HELD_OUT in sets

    def __getitem__(self, name: str) -> FeatureSource:
        return self._sets[name]

    def identity(self, name: str, fields: Collection[str] = ()) -> str:
        return name  # nothing made from them is kept


def _missing_features(
    protocol: Protocol,
    sets_by_backbone: Mapping[str, Mapping[str, FeatureSource]],
    to_fit: Mapping[str, Sequence[str]],
    allow_missing: bool,
) -> list[str]:
    """OOD sets that some backbone lacks."""
    if not sets_by_backbone:
        raise InputError("there is no backbone; give the features of at least one")
    lacking: dict[str, list[str]] = {}
    for backbone, sets in sets_by_backbone.items():
        for name in (*([TRAIN] if to_fit[backbone] else []), TEST, *protocol.ood):
            if name not in sets:
                lacking.setdefault(name, []).append(backbone)
    return _left_out(protocol, {name: f"{name} of {', '.join(of)}" for name, of in lacking.items()}, allow_missing)


def _left_out(protocol: Protocol, problems: Mapping[str, str], allow_missing: bool) -> list[str]:
    """The names of sets that are not there, if that is allowed."""
    fatal = [text for name, text in problems.items() if name in (TRAIN, TEST) or not allow_missing]
    if fatal:
        hint = "" if {TRAIN, TEST} & set(problems) else "; allow_missing=True goes on without them"
        raise InputError("these sets are missing: " + "; ".join(fatal) + hint)
    if set(protocol.ood) <= set(problems):
        raise InputError("no OOD set is there; at least one is needed")
    return [name for name in protocol.ood if name in problems]


def _check_fields(
    backbone: str, sets: Mapping[str, FeatureSource], detectors: Mapping[str, Detector], to_fit: Sequence[str]
) -> None:
    """Find out before the first fit what the last detector would lack."""
    for name, detector in detectors.items():
        for part, data in sets.items():
            learns_from = (detector.on, *detector.needs_to_fit) if name in to_fit else ()
            needs = learns_from if part == TRAIN else detector.needs_to_score
            lacks = lacking(data, needs)
            if lacks:
                raise MissingFieldError(
                    f"{name} needs {' and '.join(lacks)}, which {part} of {backbone} lacks; give them, or leave {name} out"
                )


def _about_features(data: FeatureSource) -> dict[str, Any]:
    return {
        "samples": len(data),
        "sha256": storage.fingerprint(data.tensors()) if isinstance(data, FeatureSet) else None,
    }
