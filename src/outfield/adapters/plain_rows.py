"""Fitting a detector on plain arrays, as other libraries pass them."""

from __future__ import annotations

from typing import Any

import numpy as np

from outfield.config import require
from outfield.detectors import DETECTORS, Detector
from outfield.errors import InputError
from outfield.features import FeatureSet, TablePreprocessing


def unfitted(detector: Detector | str, smallest: int = 0) -> Detector:
    """A new detector of this name, suited to the rows of the smallest class, or with the settings of this one."""
    if isinstance(detector, str):
        return DETECTORS[detector].suited(smallest)
    if not isinstance(detector, Detector):
        raise InputError(f"detector is {detector!r:.100}; it must be a detector such as of.SSD(), or its name")
    return detector.fresh()


def fit_on_rows(detector: Detector | str, rows: FeatureSet, classes: Any = None, device: str = "auto") -> Detector:
    """A detector fitted on features and, where they are known, classes (N,); without them all rows are one class."""
    labels = np.zeros(len(rows), np.int64) if classes is None else np.asarray(classes)
    made = unfitted(detector, int(np.unique(labels, return_counts=True)[1].min())).to(device)
    name = type(made).__name__
    more = sorted(needs(made))
    if more:
        known = ", ".join(name for name, kind in DETECTORS.items() if not needs(kind()))
        raise InputError(f"{name} needs {' and '.join(more)}, but there are only features here; take one of {known}")
    if classes is None and name == "RMDS":
        raise InputError(f"{name} compares classes with each other; pass y, or take another detector, such as SSD")
    wanted = labels if "labels" in made.needs_to_fit else None
    return made.fit(FeatureSet(rows.features, labels=wanted, about=rows.about))


def needs(detector: Detector) -> set[str]:
    """What a detector needs besides features and classes."""
    return {*detector.needs_to_fit, *detector.needs_to_score} - {"features", "labels"}


class PlainRows:
    """What the estimators for scikit-learn and pyod share: rows become features, and features scores."""

    detector: Detector | str
    network_features: bool
    device: str
    detector_: Detector
    preprocessing_: TablePreprocessing | None

    def _learn(self, rows: np.ndarray, classes: Any = None) -> None:
        right = isinstance(self.network_features, bool)
        require(right, "network_features", self.network_features, "True or False")
        self.preprocessing_ = None if self.network_features else TablePreprocessing.fit(rows)
        self.detector_ = fit_on_rows(self.detector, self._features(rows), classes, self.device)

    def _features(self, rows: np.ndarray) -> FeatureSet:
        return FeatureSet(rows) if self.preprocessing_ is None else self.preprocessing_(rows)

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.detector_.score(self._features(rows)).numpy().astype(np.float64)
        return found
