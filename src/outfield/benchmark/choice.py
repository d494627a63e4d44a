"""Which detectors a benchmark runs, with which settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outfield.backbone.backbone import Odin
from outfield.benchmark.paper import ROWS
from outfield.benchmark.protocol import Protocol
from outfield.config import construct_from_text
from outfield.detectors import DETECTORS
from outfield.detectors.auto import Auto
from outfield.detectors.base import Detector
from outfield.detectors.knn import KNN
from outfield.detectors.logits import ODIN
from outfield.errors import InputError

ALL = "all"
"""In the place of a detector's name: every detector."""


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

    Args:
        protocol: the ID set and its OOD sets.
        names: which detectors; those of :func:`default_detectors` if None or empty; "all" among them stands for every one,
            those of :func:`default_detectors` first.
        settings: by detector, then by name, such as ``{"KNN": {"k": "20"}, "EBM": {"training.epochs": "5"}}``.

    Raises:
        UnknownNameError: there is no such detector.
        InputError: a setting that the detector does not have or does not take, or one of a detector that was not chosen.
    """
    default = ("Auto", *ROWS)
    listed = list(names or default)
    everyone = (*default, *DETECTORS) if ALL in listed else ()
    chosen = list(dict.fromkeys((*(name for name in listed if name != ALL), *everyone)))
    classes = {name: DETECTORS[name] for name in (*chosen, *settings)}
    idle = [name for name in settings if name not in chosen]
    if idle:
        raise InputError(f"there are settings of {', '.join(idle)}, but only {', '.join(chosen)} are to run")
    paper = {name: {"k": str(protocol.neighbours)} if cls is KNN else {} for name, cls in classes.items()}
    return {name: construct_from_text(classes[name], {**paper[name], **settings.get(name, {})}) for name in chosen}


def perturbation(detectors: Mapping[str, Detector]) -> Odin | None:
    """ODIN's, at the temperature of the detector that scores it; None where none does."""
    if not any("odin_logits" in detector.needs_to_score for detector in detectors.values()):
        return None
    found = {name: detector.temperature for name, detector in detectors.items() if isinstance(detector, ODIN)}
    if len({*found.values()}) > 1:
        shown = ", ".join(f"{value:g} ({name})" for name, value in found.items())
        raise InputError(f"ODIN's temperatures are {shown}; a run perturbs images at one, so run each on its own")
    return Odin(next(iter(found.values()))) if found else Odin()
