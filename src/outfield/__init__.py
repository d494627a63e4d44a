"""Outfield tells a deployed classifier when an input is none of its business.

One convention holds everywhere: **a score is one float per sample, and higher means more out-of-distribution (OOD)**.

    images ─backbone▶ FeatureSet ─Detector.fit / .score▶ scores (N,) ─Threshold▶ is_ood (N,)

A name is imported from its room when it is first used: ``import outfield`` costs nothing, and a program that only
scores never loads what trains. What type checkers and editors see is ``__init__.pyi``. A new detector needs no line here:
whatever :mod:`outfield.detectors` has registered is found.
"""

import importlib
import importlib.util
from typing import Any

from outfield.extras import door
from outfield.version import __version__ as __version__

_load, _, _names = door(
    __name__,
    {
        "backbone": (
            "Backbone", "Classifier", "Odin", "Perturb", "Preprocessing", "Views", "load_classifier", "save_classifier",
        ),
        "benchmark": (
            "BenchmarkRun", "PROTOCOLS", "Protocol", "Result", "benchmark_features", "evaluate", "paper_detectors",
            "run_benchmark",
        ),
        "classifier": ("Recipe", "TrainingCheckpoint", "classifier_for", "train_classifier"),
        "detectors": ("Choice", "DETECTORS", "Detector", "choose", "load"),
        "energy": (
            "Checkpoint", "ClassStatistics", "CorrectedEnergy", "HamiltonianMonteCarlo", "History", "Langevin", "MLP",
            "MetropolisLangevin", "MixturePrior", "Prior", "Training", "run_chains",
        ),
        "errors": (
            "DivergenceError", "FileFormatError", "InputError", "MissingExtraError", "MissingFieldError",
            "NotFittedError", "OutfieldError", "OutfieldWarning", "StorageError", "TooFewSamplesError",
            "UnknownNameError",
        ),
        "features": (
            "FeatureSet", "FeatureStream", "TablePreprocessing", "clustered", "feature_stand_ins", "open_features",
        ),
        "guard": (
            "BoxVerdict", "Boxes", "ColumnWhy", "Guard", "ImageVerdict", "RowGuard", "RowWhy", "Texts", "Verdict", "Verdicts",
            "open_guard",
        ),
        "images": ("ImageArray", "ImageSource", "find", "open_images", "stand_ins"),
        "progress": ("show_progress",),
        "scores": (
            "Acceptance", "ClassThresholds", "Drift", "RiskCoverage", "RowDrift", "Separation", "Threshold", "augrc",
            "aurc", "coverage_at_risk", "aupr_in", "aupr_out", "auroc", "fpr95",
            "id_rejected_at_95_ood_recall", "ood_accepted",
        ),
    },
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name from its room, a room, or a detector."""
    if name in _names:
        return _load(name)
    if name == "__all__":
        from outfield.detectors import DETECTORS

        return ["__version__", *_names, *DETECTORS]
    if name.isidentifier() and not name.startswith("_"):
        if importlib.util.find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f"{__name__}.{name}")
        from outfield.detectors import DETECTORS

        if name in DETECTORS:
            return DETECTORS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
