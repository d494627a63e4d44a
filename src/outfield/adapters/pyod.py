"""A pyod detector around any detector of features: ``decision_function`` is its score, higher = outlier."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from outfield.adapters.plain_rows import PlainRows
from outfield.detectors import Detector
from outfield.extras import library

base = library("pyod.models.base", extra="pyod")
validation = library("sklearn.utils.validation", extra="pyod")


class OutfieldDetector(PlainRows, base.BaseDetector):  # type: ignore[misc,name-defined]
    """Any detector of features as a pyod detector.

    Args:
        detector: A detector that works on features alone, such as ``of.KNN(k=5)``, or the name of one ("SSD").
        network_features: The rows are the features of a network: detectors look at their direction alone, as the methods'
            authors do. Otherwise columns are standardised, and the length of a row counts, as in a table.
        contamination: Share of outliers among the training rows, which decides ``threshold_``, as pyod has it.
        device: Where it is fitted and scores: "auto", "cpu", "cuda".

    Attributes:
        detector_: The fitted detector.
        preprocessing_: What turns rows into features, an :class:`outfield.TablePreprocessing`; None for a network's.
        decision_scores_: Its scores of the training rows (N,).
        threshold_: Rows that score higher are outliers.
        labels_: Whether each training row is one: 0 or 1 (N,).
    """

    def __init__(
        self,
        detector: Detector | str = "SSD",
        contamination: float = 0.1,
        device: str = "auto",
        *,
        network_features: bool = False,
    ) -> None:
        super().__init__(contamination=contamination)
        self.detector = detector
        self.network_features = network_features
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Learn from rows (N, D). ``y`` is the truth about outliers in pyod, and not learned from: all rows are one class."""
        rows = validation.check_array(X, dtype=[np.float64, np.float32])
        self._set_n_classes(y)
        self._learn(rows)
        self.n_features_in_ = rows.shape[1]
        self.decision_scores_ = self._scores(rows)
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Scores (N,), float64: higher = more of an outlier."""
        validation.check_is_fitted(self, ["detector_", "decision_scores_", "threshold_", "labels_"])
        return self._scores(validation.check_array(X, dtype=[np.float64, np.float32]))
