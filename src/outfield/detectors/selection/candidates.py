"""Which detectors are tried where nobody names any: those that learn in seconds and look at different things."""

from __future__ import annotations

from typing import Any

import torch

from outfield.detectors.base import Detector, lacking
from outfield.detectors.distance.cosine_mean import CosineMean
from outfield.detectors.distance.kde import KDE
from outfield.detectors.distance.knn import KNN
from outfield.detectors.distance.nnguide import NNGuide
from outfield.detectors.distance.rmds import RMDS
from outfield.detectors.distance.ssd import SSD
from outfield.detectors.head.fdbd import fDBD
from outfield.detectors.head.vim import ViM
from outfield.detectors.logits.maxlogit_entropy_gen import GEN, MaxLogit
from outfield.detectors.logits.msp_odin_energy import EnergyLogits
from outfield.detectors.trained.energy_corrected import EnergyCorrected
from outfield.features import FIELDS, FeatureSource

ROWS_AT_ONCE = 8192
FEATURES: tuple[tuple[type[Detector], dict[str, Any]], ...] = (
    (EnergyLogits, {}),
    (MaxLogit, {}),
    (GEN, {}),
    (KNN, {"k": 1}),
    (KNN, {"k": 5}),
    (KNN, {"k": 50}),
    (SSD, {}),
    (SSD, {"ridge": 0.3}),
    (SSD, {"ridge": 1.0}),
    (CosineMean, {}),
    (KDE, {}),
    (RMDS, {}),
    (ViM, {}),
    (fDBD, {}),
    (NNGuide, {}),
)
"""Detectors, with settings that differ from their defaults."""


TEMPERATURES = (1000.0, 8000.0)
"""Of the prior that a network corrects: how much the network counts is the one number of it worth choosing."""
ROWS_TO_LEARN = 5000
"""With fewer the network hardly learns anything."""


def default_candidates(train: FeatureSource) -> list[Detector]:
    """Detectors that can be fitted on these rows: of logits, of features, a mixture on each stage, and a corrected one."""
    found = [cls(**settings) for cls, settings in FEATURES]
    stages = [name for name in train.shapes if FIELDS[name].is_space and name != "features"]
    found += [SSD(on=name) for name in stages]
    if len(train) >= ROWS_TO_LEARN:
        found += [EnergyCorrected.quick(temperature) for temperature in TEMPERATURES]
    most = _smallest_class(train)
    return [one for one in found if _can_be_fitted(one, train, most)]


def default_members(train: FeatureSource, labelled: FeatureSource | None = None) -> list[Detector]:
    """What is added up where nothing can choose: one detector each of logits, neighbours, the mixture and an earlier stage.

    Args:
        train: ID training rows.
        labelled: such rows with classes, for those that learn from classes; ``train`` if None.
    """
    most, known = _smallest_class(train), train if labelled is None else labelled
    wanted = (
        EnergyLogits(),
        KNN(k=min(5, most)),
        SSD(),
        SSD(on="stage2"),
    )  # a rare class costs neighbours, not the member
    return [one for one in wanted if _can_be_fitted(one, known, most)]


def _smallest_class(train: FeatureSource) -> int:
    """Rows of the smallest class; of all where classes are not known."""
    if "labels" not in train.shapes:
        return len(train)
    labels = torch.cat([piece["labels"] for piece in train.batches(ROWS_AT_ONCE, ["labels"])])
    return int(labels.unique(return_counts=True)[1].min())


def _can_be_fitted(detector: Detector, train: FeatureSource, neighbours: int) -> bool:
    """Whether the rows have what it needs, and its k-th neighbour may lie in the class of the row."""
    if lacking(train, (detector.on, *detector.needs_to_fit, *detector.needs_to_score)):
        return False
    k = getattr(detector, "k", 1)
    return not isinstance(k, int) or k <= neighbours
