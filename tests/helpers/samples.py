"""Small data with classes, and settings that make every detector quick."""

import numpy as np
import pytest

import outfield as of
from outfield.features import HEAD, HEAD_FIELDS
from outfield.files import Record, write_record

QUICK_NETWORK = of.MLP(hidden=16, depth=1)
QUICK: dict[str, dict[str, object]] = {
    "Auto": {"most_members": 2},
    "KNN": {"k": 5},
    "NNGuide": {"k": 3},
    "CombOOD": {"k": 5},
    "Mahalanobis": {"layers": ("features",)},  # these samples have no stages
    "EBM": {
        "network": QUICK_NETWORK,
        "training": of.Training(epochs=2, batch_size=32, learning_rate=1e-3, l2=0.1, start="normal"),
        "sampler": of.Langevin(steps=3, step_size=(1e-2, 1e-3), noise_std=(1e-2, 1e-3)),
    },
    "EnergyCorrected": {
        "prior_temperature": 5.0,
        "network": QUICK_NETWORK,
        "training": of.Training(epochs=2, batch_size=32, learning_rate=1e-3),
        "sampler": of.Langevin(steps=3),
    },
}
"""Settings by detector name; a new detector is tested with its defaults until it needs a line here."""
QUICK["HEAT"] = {
    "members": (
        of.EnergyCorrected(**QUICK["EnergyCorrected"]),  # type: ignore[arg-type]
        of.EnergyCorrected(**QUICK["EnergyCorrected"], field="spread"),  # type: ignore[arg-type]
        of.EnergyLogits(),
    )
}


def make_head(width: int = 6, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """The last layer (W, b) of a classifier of these samples: that of the nearest centre, less the sum of the features.

    The logit of a sample's own class is about 8; all of them fall where all features grow, as those of shifted samples do.
    """
    centres = make_centres(width, classes)
    away = centres - centres.mean(0)
    bias = -0.5 * (centres**2).sum(1)
    at_centres = ((away - 1) * centres).sum(1) + bias
    return (away - 1).astype(np.float32), (bias + 8 - at_centres.mean()).astype(np.float32)


def make_centres(width: int, classes: int) -> np.ndarray:
    """Where the classes are (classes, width), the same for every sample."""
    return np.random.default_rng(99).uniform(0, 3, (classes, width))


def make_set(n: int = 120, width: int = 6, classes: int = 3, seed: int = 0, shift: float = 0.0) -> of.FeatureSet:
    """Non-negative features in classes, with every field but stages; the logits are not those of the last layer."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = make_centres(width, classes)
    features = np.abs(centres[labels] + 0.3 * rng.standard_normal((n, width)) + shift * rng.uniform(0, 4, (n, width)))
    logits = 4 * np.eye(classes)[labels] * (1 - min(shift, 0.9)) + rng.standard_normal((n, classes))
    weight, bias = make_head(width, classes)
    return of.FeatureSet(
        features.astype(np.float32),
        labels=labels,
        logits=logits.astype(np.float32),
        spread=rng.uniform(0, 1, (n, width)).astype(np.float32),
        odin_logits=(1.01 * logits).astype(np.float32),
        head_weight=weight,
        head_bias=bias,
    )


def quick(name: str, **more: object) -> of.Detector:
    """A detector of that name that fits in well under a second."""
    return of.DETECTORS[name](**{**QUICK.get(name, {}), **more})  # type: ignore[arg-type]


SMALLER = {"GradNorm", "SHE"}
"""Detectors for which small features are OOD; to the others those are that are far from the classes."""


def ood_for(name: str) -> of.FeatureSet:
    """Rows that a detector of that name should find OOD: far from the classes, or (its kind) with hardly any activation."""
    if name not in SMALLER:
        return make_set(n=60, seed=2, shift=1.0)
    data = make_set(n=60, seed=2)
    return of.FeatureSet(**{**data.tensors(), "features": 0.1 * data.features})


def fields_of(need: str) -> tuple[str, ...]:
    """The fields behind what a detector names among its needs."""
    return HEAD_FIELDS if need == HEAD else (need,)


def refused(path, header, tensors, said):
    """A detector's file with this content, whose checksums are right, is refused in these words."""
    write_record(path, "detector", Record(header, tensors))
    with pytest.raises(of.FileFormatError, match=said):
        of.load(path)
