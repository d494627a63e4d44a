"""The two ways to a benchmark: from images, here, and from features, in :mod:`outfield.benchmark.from_features`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from outfield.backbone.views import Views
from outfield.benchmark.choice import perturbation
from outfield.benchmark.chosen_views import check_can_choose, chosen_views
from outfield.benchmark.filling import begun, checked_detectors, checked_seeds, fill, left_out_sets
from outfield.benchmark.fitting import TEST, TRAIN, OneBackbone, Say, log
from outfield.benchmark.fractions import add_fractions, checked_fractions
from outfield.benchmark.from_features import benchmark_features
from outfield.benchmark.held_out import HELD_OUT, held_out_count, split_images
from outfield.benchmark.held_out import SEED as HELD_OUT_SEED
from outfield.benchmark.protocol import Protocol
from outfield.benchmark.provenance import machine
from outfield.benchmark.records import BenchmarkRun
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
from outfield.config import to_plain
from outfield.detectors.base import Detector
from outfield.detectors.choosing_views import AUTO
from outfield.files import atomic
from outfield.files.paths import as_path
from outfield.images.source import ImageSource

__all__ = ["CACHE", "benchmark_features", "run_benchmark"]

CACHE = "cache"
"""Folder, below the one that a run writes to, in which each stage's result is kept."""


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
    chosen, numbers, shares = checked_detectors(protocol, detectors), checked_seeds(seeds), checked_fractions(fractions)
    odin, averaged = perturbation(chosen), None if views == AUTO else Views.of(views)
    images, problems = find_images(protocol, data, download)
    missing = left_out_sets(protocol, problems, allow_missing)
    check_images(images)
    count = held_out_count(held_out, chosen.values(), len(images[TEST]))
    if averaged is None:
        check_can_choose(chosen.values(), count)
    images, levels = split_images(images, TEST, count, chosen.values())
    opened = open_backbones(backbones, device)
    check_logits(opened, chosen)
    stages = Stages(as_path(out, "out") / CACHE, machine(device)["device"])
    run = begun(protocol, chosen, numbers, {}, device, view, shares)
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
        fill(one, chosen, numbers, {}, view)
        add_fractions(one, chosen, numbers, shares)
    run.provenance["stages"] = stages.summary()
    return run
