"""Detectors against data sets: fitted detectors, one ID set, any number of OOD sets → results, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outfield.config import require
from outfield.detectors.base import Detector
from outfield.features.set import FeatureSource
from outfield.scores.metrics import Separation


@dataclass(frozen=True)
class Result:
    """How one detector told one OOD set from the ID set; fractions."""

    detector: str
    ood: str
    fpr95: float
    auroc: float
    aupr_in: float
    aupr_out: float
    n_id: int
    n_ood: int


def evaluate(
    detectors: Mapping[str, Detector] | Detector, test: FeatureSource, ood: Mapping[str, FeatureSource]
) -> list[Result]:
    """Score the ID test set once per detector and every OOD set against it.

    Args:
        detectors: fitted detectors by the name to report, or one, which goes by its class's name.
        test: held-out ID data.
        ood: OOD sets by name.

    Raises:
        InputError: something else was given.
    """
    if isinstance(detectors, Detector):
        detectors = {type(detectors).__name__: detectors}
    for what, given in (("detectors", detectors), ("ood", ood)):
        require(isinstance(given, Mapping), what, type(given).__name__, 'a mapping by name, such as {"svhn": features}')
    results = []
    for name, detector in detectors.items():
        scores_id = detector.score(test)
        for other, data in ood.items():
            separation = Separation(scores_id, detector.score(data))
            results.append(
                Result(
                    detector=name,
                    ood=other,
                    fpr95=separation.fpr95(),
                    auroc=separation.auroc(),
                    aupr_in=separation.aupr_in(),
                    aupr_out=separation.aupr_out(),
                    n_id=len(test),
                    n_ood=len(data),
                )
            )
    return results
