"""The plan of a benchmark, checked before any work: detectors and their settings, seeds, fractions, images, backbones."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from outfield.backbone import Backbone, Odin
from outfield.benchmark.protocol import TEST, TRAIN, Protocol
from outfield.benchmark.provenance import about_this_run, settings_of, without_paths
from outfield.benchmark.result import BenchmarkRun
from outfield.config import construct_from_text, require, require_number
from outfield.detectors import DETECTORS, KNN, LEAST, ODIN, Auto, Detector
from outfield.errors import InputError, MissingFieldError, StorageError, UnknownNameError
from outfield.files import PathLike, read_record
from outfield.images import ImageSource, find

ROWS = ("MSP", "ODIN", "EnergyLogits", "KNN", "SSD", "GaussianMixture", "EBM", "EnergyCorrected")
"""The detectors of the paper's tables in their order, the two halves of its method before the whole."""
SEED = 0  # of the choice of held-out samples, of stand-ins, and of fractions of the training rows


def default_detectors(protocol: Protocol) -> dict[str, Detector]:
    """What a benchmark runs unless told otherwise: the detector to use, then those of the paper's tables."""
    return {"Auto": Auto(), **paper_detectors(protocol)}


def paper_detectors(protocol: Protocol) -> dict[str, Detector]:
    """The detectors of the paper's tables with its settings for this ID set, not fitted, by name."""
    return detectors_from_text(protocol, ROWS, {})


def detectors_from_text(
    protocol: Protocol, names: Iterable[str] | None, settings: Mapping[str, Mapping[str, str]]
) -> dict[str, Detector]:
    """Detectors with the paper's settings for this ID set, and others given as text, not fitted, by name.

    No names are those of :func:`default_detectors`; "all" stands for every detector, those first. Settings go by detector, then
    by name: ``{"KNN": {"k": "20"}, "EBM": {"training.epochs": "5"}}``.
    """
    listed = list(names or ("Auto", *ROWS))
    listed += ["Auto", *ROWS, *DETECTORS] * ("all" in listed)
    chosen = [name for name in dict.fromkeys(listed) if name != "all"]
    classes = {name: DETECTORS[name] for name in (*chosen, *settings)}
    if idle := [name for name in settings if name not in chosen]:
        raise InputError(f"there are settings of {', '.join(idle)}, but only {', '.join(chosen)} are to run")
    paper = {name: {"k": str(protocol.neighbours)} if cls is KNN else {} for name, cls in classes.items()}
    return {name: construct_from_text(classes[name], {**paper[name], **settings.get(name, {})}) for name in chosen}


def checked_detectors(protocol: Protocol, given: Mapping[str, Detector] | None) -> dict[str, Detector]:
    """The detectors to run, by name, whose settings are checked before any work; the default ones if None is given."""
    chosen = dict(default_detectors(protocol) if given is None else given)
    for name, detector in chosen.items():
        require(isinstance(detector, Detector), f"detectors[{name!r}]", detector, "an outfield.Detector")
        detector.check_settings()
    return chosen


def checked_seeds(seeds: int | Iterable[int]) -> list[int]:
    """The seeds of learned detectors; a number n means 0 to n − 1."""
    if isinstance(seeds, int):
        require_number("seeds", seeds, least=1, whole=True)
        return list(range(seeds))
    chosen = [int(seed) for seed in seeds]
    require(bool(chosen) and len({*chosen}) == len(chosen), "seeds", chosen, "different whole numbers, at least one")
    return chosen


def checked_fractions(fractions: Iterable[float]) -> list[float]:
    """The fractions, the smallest first, with 1 among them unless there are none."""
    found = list(fractions)
    for fraction in found:
        require_number("fraction", fraction, above=0, most=1)
    require(len({*found}) == len(found), "fractions", found, "different numbers")
    return sorted({*map(float, found), 1.0}) if found else []


def held_out_count(wanted: int | None, detectors: Iterable[Detector], test: int) -> int:
    """Number of test samples to hold out; if not said, a tenth, at most 1,000, where a detector calibrates itself."""
    if wanted is None:
        tenth = min(1000, round(0.1 * test))
        return tenth if tenth >= 2 * LEAST and any(one.uses_held_out for one in detectors) else 0
    require_number("held_out", wanted, least=0, whole=True)
    if wanted and not 2 * LEAST <= wanted <= test // 2:
        what = f"held_out is {wanted}"
        raise InputError(f"{what}; it must be 0, or from {2 * LEAST} to {test // 2}, half of the test set")
    return int(wanted)


def perturbation(detectors: Mapping[str, Detector]) -> Odin | None:
    """ODIN's, at the temperature of the detector that scores it; None where none does."""
    found = {name: detector.temperature for name, detector in detectors.items() if isinstance(detector, ODIN)}
    if len({*found.values()}) > 1:
        shown = ", ".join(f"{value:g} ({name})" for name, value in found.items())
        raise InputError(f"ODIN's temperatures are {shown}; a run perturbs images at one, so run each on its own")
    needed = any("odin_logits" in detector.needs_to_score for detector in detectors.values())
    return Odin(next(iter(found.values()), Odin().temperature)) if needed else None


def fields_needed(detectors: Iterable[Detector]) -> frozenset[str]:
    """The fields that any of the detectors fits on or scores."""
    needs = [(one.field, *one.needs_to_fit, *one.needs_to_score, *one.uses) for one in detectors]
    return frozenset(name for those in needs for name in those)


def left_out_sets(protocol: Protocol, problems: Mapping[str, str], allow_missing: bool) -> list[str]:
    """Names of the OOD sets that are not there; an error if not allowed, or where an ID set or every OOD set is missing."""
    if fatal := [text for name, text in problems.items() if name in (TRAIN, TEST) or not allow_missing]:
        hint = "" if {TRAIN, TEST} & set(problems) else "; allow_missing=True goes on without them"
        raise InputError("these sets are missing: " + "; ".join(fatal) + hint)
    if set(protocol.ood) <= set(problems):
        raise InputError("no OOD set is there; at least one is needed")
    return [name for name in protocol.ood if name in problems]


def empty_run(
    protocol: Protocol, detectors: Mapping[str, Detector], seeds: list[int], fractions: list[float], device: str
) -> BenchmarkRun:
    """A run without results whose provenance says what is about to happen."""
    if not detectors:
        raise InputError("there is no detector to run; name at least one")
    run = BenchmarkRun(protocol, provenance=about_this_run(device))
    # Not k of KNN, which may be set otherwise: it is among the settings of the detector.
    sets = {name: value for name, value in protocol.plain().items() if name != "neighbours"}
    run.provenance |= {"protocol": sets, "seeds": seeds, "backbones": {}}
    if fractions:
        run.provenance["fractions"] = {"of training rows": [*fractions], "seed": SEED}
    about = {name: {"settings": settings_of(one), "given": []} for name, one in detectors.items()}
    run.provenance["detectors"] = about
    return run


def find_images(
    protocol: Protocol, data: PathLike | Mapping[str, ImageSource], download: bool = False
) -> tuple[dict[str, ImageSource], dict[str, str]]:
    """Images of every set that is there, and what is wrong with each that is not; for the arguments see run_benchmark."""
    wanted = {TRAIN: (protocol.id, "train"), TEST: (protocol.id, "test")} | {ood: (ood, "test") for ood in protocol.ood}
    if isinstance(data, Mapping):
        if unknown := [part for part in data if part not in wanted]:
            what = f"data has {', '.join(unknown)}, but the protocol of {protocol.id} has {', '.join(wanted)}"
            raise InputError(f"{what}; with_ood adds one")
        absent = {part: part for part in wanted if part not in data}
        return {part: data[part] for part in wanted if part in data}, absent
    images, problems = {}, {}
    for part, (name, split) in wanted.items():
        try:
            images[part] = find(name, split, data, download)
        except (StorageError, UnknownNameError) as error:
            problems[part] = f"{name} ({split}): {error}"
    return images, problems


def check_images(images: Mapping[str, ImageSource]) -> None:
    """Refuse training images without labels, and ID images that stand for another set as well."""
    if images[TRAIN].labels is None:
        raise InputError(f"the training images of {images[TRAIN].name} have no labels; detectors learn from them")
    ood = [part for part in images if part not in (TRAIN, TEST)]
    for part, known in [(TEST, TRAIN), *((part, known) for part in ood for known in (TRAIN, TEST))]:
        one, other = images[part], images[known]
        # The first pair that differs ends it, mostly the very first.
        if len(one) == len(other) and all(np.array_equal(one[index], other[index]) for index in range(len(one))):
            raise InputError(f"{part} and the {known} set of {other.name} are the same images, one by one")


def open_backbones(backbones: Sequence[str | Backbone], device: str) -> dict[str, Backbone]:
    """Every backbone by a short name; all are opened before any work, so that a wrong name costs no time."""
    if not backbones or isinstance(backbones, str):
        raise InputError(f"backbones is {backbones!r}; it must be a list of at least one")
    named = zip(backbone_names(backbones), backbones, strict=True)
    opened = {name: Backbone.open(one, device) if isinstance(one, str) else one for name, one in named}
    prints: dict[str, str] = {}
    for name, backbone in opened.items():
        if (twin := prints.setdefault(backbone.fingerprint(), name)) != name:
            raise InputError(f"{twin} and {name} are the same backbone; a spread over backbones needs different ones")
    return opened


def backbone_names(backbones: Sequence[str | Backbone]) -> list[str]:
    """Short names that differ: of a file its own, with as many of its folders as it takes.

    >>> backbone_names(["a/resnet.safetensors", "b/resnet.safetensors", "timm:vgg11"])
    ['a/resnet', 'b/resnet', 'vgg11']
    """
    given = [backbone if isinstance(backbone, str) else backbone.name for backbone in backbones]
    files = [re.sub(r"^(timm|torchvision):(.*@)?", "", name).removesuffix(".safetensors") for name in given]
    parts = [PurePath(file).parts for file in files]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part.strip("/\\") for part in path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    raise InputError(f"the backbones are {', '.join(given)}; each must be given once")


def check_logits(backbones: Mapping[str, Backbone], detectors: Mapping[str, Detector]) -> None:
    """Refuse detectors of logits on a network that was trained without labels."""
    of_logits = {"logits", "odin_logits", "head"}
    needing = [name for name, one in detectors.items() if of_logits & {*one.needs_to_fit, *one.needs_to_score}]
    for name, backbone in backbones.items():
        if needing and getattr(backbone, "projects", False):
            what = f"{name} was trained without labels: it gives features, no logits, which {', '.join(needing)} need"
            raise MissingFieldError(f"{what}; name detectors of features alone, such as --detector KNN --detector SSD")


def notes_of(backbone: str | Backbone) -> dict[str, Any]:
    """What the file of a backbone that Outfield trained tells of it (recipe, accuracy), without paths."""
    if not isinstance(backbone, str) or not os.path.isfile(backbone):
        return {}
    header, _ = read_record(backbone, "classifier")
    return dict(without_paths({name: header[name] for name in ("classifier", "notes") if header.get(name)}))
