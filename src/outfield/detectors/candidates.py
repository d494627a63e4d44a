"""Which detectors are tried where nobody names any: those that learn in seconds and look at different things."""

from __future__ import annotations

from outfield.detectors.base import Detector
from outfield.detectors.data import lacking
from outfield.detectors.registry import DETECTORS
from outfield.features.fields import FIELDS
from outfield.features.set import FeatureSource

FEATURES: tuple[tuple[str, dict[str, object]], ...] = (
    ("EnergyLogits", {}),
    ("MaxLogit", {}),
    ("GEN", {}),
    ("KNN", {"k": 1}),
    ("KNN", {"k": 5}),
    ("KNN", {"k": 50}),
    ("SSD", {}),
    ("SSD", {"ridge": 0.3}),
    ("SSD", {"ridge": 1.0}),
    ("CosineMean", {}),
    ("KDE", {}),
    ("RMDS", {}),
    ("ViM", {}),
    ("fDBD", {}),
    ("NNGuide", {}),
)
"""Detectors by name, with settings that differ from their defaults."""


def default_candidates(train: FeatureSource) -> list[Detector]:
    """Detectors that can be fitted on these rows: of logits, of features, and a mixture on each stage."""
    found = [DETECTORS[name](**settings) for name, settings in FEATURES]
    stages = [name for name in train.shapes if FIELDS[name].is_space and name != "features"]
    found += [DETECTORS["SSD"](on=name) for name in stages]  # type: ignore[call-arg]
    return [one for one in found if _can_be_fitted(one, train)]


def _can_be_fitted(detector: Detector, train: FeatureSource) -> bool:
    if lacking(train, (*detector.needs_to_fit, *detector.needs_to_score)):
        return False
    k = getattr(detector, "k", 1)
    return not isinstance(k, int) or k <= len(train)
