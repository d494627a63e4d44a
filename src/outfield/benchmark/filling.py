"""What every benchmark does, wherever its rows come from: look at what is asked, begin a run, fill it one backbone at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

from outfield.benchmark.choice import default_detectors
from outfield.benchmark.fitting import TEST, TRAIN, OneBackbone
from outfield.benchmark.fractions import SEED
from outfield.benchmark.protocol import Protocol
from outfield.benchmark.provenance import about_this_run, settings
from outfield.benchmark.records import BenchmarkRun, Key
from outfield.config import require, require_number
from outfield.detectors.base import Detector
from outfield.errors import DivergenceError, InputError, OutfieldWarning
from outfield.extras import library


def checked_detectors(protocol: Protocol, given: Mapping[str, Detector] | None) -> dict[str, Detector]:
    """The detectors to run, by name, whose settings are looked at before any work; the protocol's own if None is given.

    Raises:
        InputError: one is no detector, or has a setting that cannot be.
    """
    chosen = dict(default_detectors(protocol) if given is None else given)
    for name, detector in chosen.items():
        require(isinstance(detector, Detector), f"detectors[{name!r}]", detector, "an outfield.Detector")
        detector.check_settings()
    return chosen


def checked_seeds(seeds: int | Iterable[int]) -> list[int]:
    """The seeds of learned detectors; a number n means 0 to n − 1.

    Raises:
        InputError: there is none, or one of them twice.
    """
    if isinstance(seeds, int):
        require_number("seeds", seeds, least=1, whole=True)
        return list(range(seeds))
    chosen = [int(seed) for seed in seeds]
    require(bool(chosen) and len({*chosen}) == len(chosen), "seeds", chosen, "different whole numbers, at least one")
    return chosen


def left_out_sets(protocol: Protocol, problems: Mapping[str, str], allow_missing: bool) -> list[str]:
    """The names of OOD sets that are not there, if that is allowed.

    Args:
        protocol: which OOD sets there should be.
        problems: what is wrong, by the name of the set.
        allow_missing: go on without OOD sets.

    Raises:
        InputError: it is not allowed, an ID set is among them, or no OOD set is left.
    """
    fatal = [text for name, text in problems.items() if name in (TRAIN, TEST) or not allow_missing]
    if fatal:
        hint = "" if {TRAIN, TEST} & set(problems) else "; allow_missing=True goes on without them"
        raise InputError("these sets are missing: " + "; ".join(fatal) + hint)
    if set(protocol.ood) <= set(problems):
        raise InputError("no OOD set is there; at least one is needed")
    return [name for name in protocol.ood if name in problems]


def begun(
    protocol: Protocol,
    detectors: Mapping[str, Detector],
    seeds: list[int],
    given: Mapping[Key, Detector],
    device: str,
    view: bool,
    fractions: Sequence[float],
) -> BenchmarkRun:
    """An empty run whose provenance says what is about to happen.

    Raises:
        InputError: there is no detector.
        MissingExtraError: a view is wanted, and scikit-learn is not installed.
    """
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


def fill(
    one: OneBackbone,
    detectors: Mapping[str, Detector],
    seeds: list[int],
    given: Mapping[Key, Detector],
    view: bool,
) -> None:
    """Everything on one backbone's features: all detectors, then accuracy and view.

    A detector that cannot be fitted or scored here is dropped from the run, with a warning; where no other is left, its error
    is raised.
    """
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
