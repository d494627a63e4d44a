"""Fitting a detector on plain arrays, as other libraries pass them."""

from __future__ import annotations

from typing import Any

import numpy as np

from outfield.detectors import DETECTORS, Detector
from outfield.errors import InputError
from outfield.features import FeatureSet

NEED_CLASSES = ("RMDS",)
"""Detectors that compare classes with each other, so that one class of everything says nothing."""


def unfitted(detector: Detector | str) -> Detector:
    """A new detector of this name, or with the settings of this one."""
    if isinstance(detector, str):
        return DETECTORS[detector]()
    if not isinstance(detector, Detector):
        raise InputError(f"detector is {detector!r:.100}; it must be a detector such as of.SSD(), or its name")
    return detector.fresh()


def fit_on_rows(detector: Detector | str, features: Any, classes: Any = None, device: str = "auto") -> Detector:
    """A detector fitted on features (N, D) and, where they are known, classes (N,).

    Without classes all rows are one class, which is what SSD and the mixture then fit.
    """
    made = unfitted(detector).to(device)
    name = type(made).__name__
    more = sorted({*made.needs_to_fit, *made.needs_to_score} - {"features", "labels"})
    if more:
        raise InputError(
            f"{name} needs {' and '.join(more)}, but there are only features here; take one of {', '.join(feature_detectors())}"
        )
    if classes is None and name in NEED_CLASSES:
        raise InputError(f"{name} compares classes with each other; pass y, or take another detector, such as SSD")
    labels = np.zeros(len(features), np.int64) if classes is None else classes
    return made.fit(FeatureSet(features, labels=labels if "labels" in made.needs_to_fit else None))


def feature_detectors() -> list[str]:
    """The names of the detectors that work on features, with or without classes, as they are."""
    made = {name: kind() for name, kind in DETECTORS.items()}
    return [
        name for name, each in made.items() if not {*each.needs_to_fit, *each.needs_to_score} - {"features", "labels"}
    ]
