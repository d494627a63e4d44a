"""A benchmark that begins with features."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from outfield.benchmark.filling import begun, checked_detectors, checked_seeds, fill, left_out_sets
from outfield.benchmark.fitting import TEST, TRAIN, OneBackbone, Say, Sets, log
from outfield.benchmark.fractions import add_fractions, checked_fractions
from outfield.benchmark.held_out import HELD_OUT, held_out_count, split_features
from outfield.benchmark.protocol import Protocol
from outfield.benchmark.provenance import machine
from outfield.benchmark.records import BenchmarkRun, Key
from outfield.benchmark.stages import Stages
from outfield.detectors.base import Detector
from outfield.detectors.data import lacking
from outfield.errors import InputError, MissingFieldError
from outfield.features.set import FeatureSet, FeatureSource
from outfield.files import storage


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
    chosen, given = checked_detectors(protocol, detectors), dict(fitted or {})
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
    numbers, shares = checked_seeds(seeds), checked_fractions(fractions)
    run, stages = (
        begun(protocol, chosen, numbers, given, device, view, shares),
        Stages(None, machine(device)["device"]),
    )
    run.provenance |= {"missing": missing, "data": {}}
    run.classes = tuple(map(str, classes))
    for backbone, sets in used.items():
        one = OneBackbone(backbone, _Given(sets, present), run, stages, device, say)
        fill(one, chosen, numbers, given, view)
        add_fractions(one, {name: chosen[name] for name in to_fit[backbone]}, numbers, shares)
        run.provenance["data"][backbone] = {part: _about_features(data) for part, data in sets.items()}
    run.provenance["stages"] = stages.summary()
    return run


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
    return left_out_sets(protocol, {name: f"{name} of {', '.join(of)}" for name, of in lacking.items()}, allow_missing)


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
                    f"{name} needs {' and '.join(lacks)}, which {part} of {backbone} lacks; give them, or name other "
                    "detectors (detectors=…, --detector on the command line)"
                )


def _about_features(data: FeatureSource) -> dict[str, Any]:
    return {
        "samples": len(data),
        "sha256": storage.fingerprint(data.tensors()) if isinstance(data, FeatureSet) else None,
    }
