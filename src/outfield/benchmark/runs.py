"""The two ways to a benchmark: from images and from features."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from outfield.backbone import Backbone, Views
from outfield.benchmark import plan
from outfield.benchmark.cache import Cache, Entry
from outfield.benchmark.fits import BackboneFits, log
from outfield.benchmark.protocol import HELD_OUT, TEST, TRAIN, Protocol
from outfield.benchmark.provenance import machine
from outfield.benchmark.result import BenchmarkRun, Key
from outfield.benchmark.sets import ExtractedSets, Say, Sets, split_features, split_images
from outfield.config import to_plain
from outfield.detectors import AUTO, CHOICES, Detector, Rows, ViewsChoice, choose_views, lacking
from outfield.errors import InputError, MissingFieldError
from outfield.extras import library
from outfield.features import FeatureSet, FeatureSource
from outfield.files import PathLike, Record, as_path, fingerprint
from outfield.images import ImageSource
from outfield.percent import counted

CACHE = "cache"  # folder, below the one that a run writes to


def run_benchmark(
    protocol: Protocol,
    data: PathLike | Mapping[str, ImageSource],
    backbones: Sequence[str | Backbone],
    out: PathLike,
    *,
    detectors: Mapping[str, Detector] | None = None,
    seeds: int | Iterable[int] = 3,
    device: str = "auto",
    allow_missing: bool = False,
    download: bool = False,
    layout: bool = True,
    view: bool | None = None,
    fractions: Iterable[float] = (),
    views: Views | str | int | None = None,
    held_out: int | None = None,
    say: Say = log.info,
) -> BenchmarkRun:
    """The whole way from images to records.

    Every result on the way (features of a set, a fitted detector, scores of a set) is kept below ``out/cache`` under the data,
    settings and version that it depends on. A run that was cut off goes on where it stopped, within a learned fit too; a second
    run computes only what has changed. A damaged file is computed again, and a warning tells of it. Features of one backbone are
    in memory at a time.

    Args:
        protocol: the ID set and its OOD sets.
        data: folder in which :func:`outfield.find` looks for them; or images by name: "train" and "test" of the ID set, and each
            OOD set.
        backbones: what :meth:`outfield.Backbone.open` takes, or backbones.
        out: folder for results; made if it is not there.
        detectors: settings of each detector by the name to report; Auto and those of the paper's tables if None.
        seeds: of learned detectors, which train all their seeds side by side; a number n means 0 to n − 1.
        device: where backbones and detectors run.
        allow_missing: go on without OOD sets that are not there, and say so in the provenance and the tables.
        download: get sets that are not in the folder, where torchvision can.
        layout: lay some of the features out in two dimensions (t-SNE, seconds).
        view: what ``layout`` was called in version 0.1.
        fractions: of the training rows, on each of which every detector is fitted as well. Of each class with n rows ⌈f · n⌉ are
            taken at random; the rows of a smaller fraction are among those of a larger one.
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
    layout = _layout(layout, view)
    chosen, numbers = plan.checked_detectors(protocol, detectors), plan.checked_seeds(seeds)
    shares = plan.checked_fractions(fractions)
    odin, averaged = plan.perturbation(chosen), None if views == AUTO else Views.of(views)
    images, problems = plan.find_images(protocol, data, download)
    missing = plan.left_out_sets(protocol, problems, allow_missing)
    plan.check_images(images)
    count = plan.held_out_count(held_out, chosen.values(), len(images[TEST]))
    if averaged is None and not (count and any(one.uses_stand_ins for one in chosen.values())):
        raise InputError(f"views are chosen by stand-ins of held-out images: run Auto, or name {', '.join(CHOICES)}")
    opened = plan.open_backbones(backbones, device)
    seen = {kind for backbone in opened.values() for kind in getattr(backbone, "outliers", ())}
    images, levels = split_images(images, count, chosen.values(), seen)
    plan.check_logits(opened, chosen)
    cache = Cache(as_path(out, "out") / CACHE, machine(device)["device"])
    run = plan.empty_run(protocol, chosen, numbers, shares, device)
    say(f"reading {counted(len(images), 'set')} of images")
    checksums = {name: source.fingerprint() for name, source in images.items()}
    about = {name: {"images": len(source), "sha256": checksums[name]} for name, source in images.items()}
    run.provenance |= {"missing": missing, "data": about, "odin": to_plain(odin)}
    _tell_held_out(run, count, "images", say)
    if averaged is None or len(averaged) > 1:
        run.provenance["views"] = {} if averaged is None else str(averaged)
    run.classes = images[TEST].classes or images[TRAIN].classes or ()
    fields, one = plan.fields_needed(chosen.values()), Views.of(None)
    for (name, backbone), given in zip(opened.items(), backbones, strict=True):
        sets = ExtractedSets(name, backbone, images, checksums, levels, cache, say, odin, fields, averaged or one)
        if averaged is None:
            found = _chosen_views(sets, device)
            say(f"{name}: views {found}")
            run.provenance["views"][name] = str(found)
            sets = replace(sets, views=Views.of(found.views))
        run.provenance["backbones"][name] = {"sha256": backbone.fingerprint(), **plan.notes_of(given)}
        BackboneFits(name, sets, run, cache, device, say).fill(chosen, numbers, {}, layout, shares)
    run.provenance["stages"] = cache.summary()
    return run


def _tell_held_out(run: BenchmarkRun, count: int, what: str, say: Say) -> None:
    """Say that some of the ID test set are not judged, and note it where tables are made."""
    if count:
        run.provenance["held_out"] = {what: count, "seed": plan.SEED}
        say(f"{count:,} {what} of the ID test set only calibrate; no detector is judged on them")


def _layout(layout: bool, view: bool | None) -> bool:
    """Whether to lay features out; the library for it is found to be missing before the work, not after it."""
    if view is not None:
        warnings.warn("view is called layout now", DeprecationWarning, stacklevel=3)
        layout = view
    if layout:
        library("sklearn", "report")
    return layout


def _chosen_views(sets: ExtractedSets, device: str) -> ViewsChoice:
    """Views of each image that stand-ins choose, out of training, held-out and stand-in images alone."""
    seen = {part: source for part, source in sets.images.items() if part in (TRAIN, HELD_OUT, *sets.levels)}
    tried = {name: replace(sets, images=seen, views=Views.of(name)) for name in CHOICES}

    def rows_of(views: str) -> Rows:
        sets.say(f"{sets.name}: trying views {views}")
        some = tried[views]
        return Rows(some[TRAIN], some[HELD_OUT], some.stand_ins())

    def work() -> Record:
        choice = choose_views(rows_of, device)
        losses = torch.tensor([*choice.losses.values()], dtype=torch.float64)
        return Record({"views": choice.views, "tried": [*choice.losses]}, {"losses": losses})

    depends = {views: [some.identity(part, sets.fields) for part in seen] for views, some in tried.items()}
    header, tensors = sets.cache.record(Entry("views", {"backbone": sets.name}, depends), work)
    return ViewsChoice(header["views"], dict(zip(header["tried"], tensors["losses"].tolist(), strict=True)))


def benchmark_features(
    protocol: Protocol,
    sets_by_backbone: Mapping[str, Mapping[str, FeatureSource]],
    *,
    detectors: Mapping[str, Detector] | None = None,
    fitted: Mapping[Key, Detector] | None = None,
    seeds: int | Iterable[int] = 3,
    device: str = "auto",
    allow_missing: bool = False,
    layout: bool = True,
    view: bool | None = None,
    classes: Sequence[str] = (),
    fractions: Iterable[float] = (),
    held_out: int | None = None,
    say: Say = log.info,
) -> BenchmarkRun:
    """Fit every detector on each backbone's features and tell every OOD set from the ID test set.

    Args:
        protocol: which OOD sets there are, and how near they are.
        sets_by_backbone: by a backbone's name its features: "train" and "test" of the ID set, and each OOD set by name.
        detectors: settings of each detector by the name to report; Auto and those of the paper's tables if None.
        fitted: detectors that are fitted already, by backbone, name and seed; they are scored, and no other seed of theirs is
            fitted on that backbone. The provenance lists them as ``given``. Where all are given, "train" is not needed.
        seeds: of learned detectors, which train all their seeds side by side; a number n means 0 to n − 1.
        device: where detectors run.
        allow_missing: go on without OOD sets that are not there, and say so in the provenance and the tables.
        layout: lay some of the features out in two dimensions (t-SNE, seconds).
        view: what ``layout`` was called in version 0.1.
        classes: Names of the ID set's classes by label, for figures; without them a class goes by its number.
        fractions: Of the training rows, on each of which every detector that is not given is fitted as well; see
            :func:`run_benchmark`.
        held_out: how many of the ID test rows calibrate Auto and Fused and are not judged; a tenth, at most 1,000, where one of
            them runs and nothing is said. A set called "held_out" is taken instead.
        say: told what is being done; logged if absent.

    Raises:
        InputError: a set is not there, or nothing to do.
        MissingFieldError: a set lacks what a detector needs; found before any is fitted.
    """
    layout = _layout(layout, view)
    chosen, given = plan.checked_detectors(protocol, detectors), dict(fitted or {})
    if not sets_by_backbone:
        raise InputError("there is no backbone; give the features of at least one")
    for key, detector in given.items():
        chosen.setdefault(key.detector, detector)
        if key.backbone not in sets_by_backbone:
            raise InputError(f"fitted has a detector for {key.backbone!r}; there are {', '.join(sets_by_backbone)}")
    ready = {(key.backbone, key.detector) for key in given}
    to_fit = {backbone: [name for name in chosen if (backbone, name) not in ready] for backbone in sets_by_backbone}
    problems = {}
    for name in (TRAIN, TEST, *protocol.ood):
        needing = [backbone for backbone in sets_by_backbone if name != TRAIN or to_fit[backbone]]
        if lacks := [backbone for backbone in needing if name not in sets_by_backbone[backbone]]:
            problems[name] = f"{name} of {', '.join(lacks)}"
    missing = plan.left_out_sets(protocol, problems, allow_missing)
    present = tuple(ood for ood in protocol.ood if ood not in missing)
    used = {}
    for backbone, sets in sets_by_backbone.items():
        there = {part: sets[part] for part in (TRAIN, TEST, HELD_OUT, *present) if part in sets}
        count = plan.held_out_count(held_out, [chosen[name] for name in to_fit[backbone]], len(sets[TEST]))
        used[backbone] = split_features(there, count)
        _check_fields(backbone, used[backbone], chosen, to_fit[backbone])
    numbers, shares = plan.checked_seeds(seeds), plan.checked_fractions(fractions)
    run = plan.empty_run(protocol, chosen, numbers, shares, device)
    for name in chosen:
        run.provenance["detectors"][name]["given"] = sorted(backbone for backbone, one in ready if one == name)
    cache = Cache(None, machine(device)["device"])
    run.provenance |= {"missing": missing, "data": {}}
    held = max(len(sets[TEST]) - len(used[name][TEST]) for name, sets in sets_by_backbone.items())
    _tell_held_out(run, held, "rows", say)
    run.classes = tuple(map(str, classes))
    for backbone, sets in used.items():
        fits = BackboneFits(backbone, Sets(sets, present), run, cache, device, say)
        fits.fill(chosen, numbers, given, layout, shares)
        run.provenance["data"][backbone] = {part: _about(rows) for part, rows in sets.items()}
    run.provenance["stages"] = cache.summary()
    return run


def _check_fields(
    backbone: str, sets: Mapping[str, FeatureSource], detectors: Mapping[str, Detector], to_fit: Collection[str]
) -> None:
    """Find out before the first fit what the last detector would lack."""
    for name, detector in detectors.items():
        for part, rows in sets.items():
            learns_from = (detector.field, *detector.needs_to_fit) if name in to_fit else ()
            if lacks := lacking(rows, learns_from if part == TRAIN else detector.needs_to_score):
                what = f"{name} needs {' and '.join(lacks)}, which {part} of {backbone} lacks; give them, or name"
                raise MissingFieldError(f"{what} other detectors (detectors=…, --detector on the command line)")


def _about(rows: FeatureSource) -> dict[str, Any]:
    return {"samples": len(rows), "sha256": fingerprint(rows.tensors()) if isinstance(rows, FeatureSet) else None}
