"""Outfield tells a deployed classifier when an input is none of its business.

One convention holds everywhere: **a score is one float per sample, and higher means more out-of-distribution (OOD)**.

    images ─backbone▶ FeatureSet ─Detector.fit / .score▶ scores (N,) ─Threshold▶ is_ood (N,)

A name is imported from its room when it is first asked for: ``import outfield`` costs nothing, and a program that only
scores never loads what trains. What type checkers and editors see is ``__init__.pyi``. A new detector needs no line here:
whatever :mod:`outfield.detectors` has registered is found.
"""

import importlib
import importlib.util
import logging
from typing import Any

from outfield.version import __version__

logging.getLogger(__name__).addHandler(logging.NullHandler())  # who wants to see messages adds another

_HOMES = {
    "backbone.architectures": ("Classifier", "load_classifier", "save_classifier"),
    "backbone.backbone": ("Backbone", "Odin"),
    "backbone.perturb": ("Perturb",),
    "backbone.preprocessing": ("Preprocessing",),
    "backbone.views": ("Views",),
    "benchmark": ("BenchmarkRun", "benchmark_features", "paper_detectors", "run_benchmark"),
    "benchmark.evaluation": ("Result", "evaluate"),
    "benchmark.protocol": ("PROTOCOLS", "Protocol"),
    "classifier.recipe": ("Recipe",),
    "classifier.train": ("TrainingCheckpoint", "classifier_for", "train_classifier"),
    "detectors": (
        "ASH",
        "DETECTORS",
        "DICE",
        "EBM",
        "GEN",
        "HEAT",
        "KDE",
        "KNN",
        "LTS",
        "MSP",
        "NCI",
        "ODIN",
        "PCA",
        "RMDS",
        "SCALE",
        "SHE",
        "SSD",
        "VRA",
        "Auto",
        "CombOOD",
        "CosineMean",
        "Detector",
        "EnergyCorrected",
        "EnergyLogits",
        "Entropy",
        "Fused",
        "GaussianMixture",
        "GradNorm",
        "KLMatching",
        "Mahalanobis",
        "MaxLogit",
        "NNGuide",
        "OpenMax",
        "PerClassGaussian",
        "ReAct",
        "Relation",
        "Residual",
        "TempScale",
        "ViM",
        "fDBD",
        "load",
    ),
    "detectors.choosing": ("Choice", "choose"),
    "energy.chains": ("run_chains",),
    "energy.samplers": ("HamiltonianMonteCarlo", "Langevin", "MetropolisLangevin"),
    "energy.checkpoints": ("Checkpoint",),
    "energy.history": ("History",),
    "energy.network": ("MLP", "CorrectedEnergy"),
    "energy.priors.mixture": ("MixturePrior",),
    "energy.priors.moments": ("ClassStatistics",),
    "energy.priors.prior": ("Prior",),
    "energy.settings": ("Training",),
    "errors": (
        "DivergenceError",
        "FileFormatError",
        "InputError",
        "MissingExtraError",
        "MissingFieldError",
        "NotFittedError",
        "OutfieldError",
        "OutfieldWarning",
        "StorageError",
        "TooFewSamplesError",
        "UnknownNameError",
    ),
    "features.clusters": ("clustered",),
    "features.set": ("FeatureSet",),
    "guard.guard": ("Guard",),
    "guard.opening": ("open_guard",),
    "guard.rows": ("RowGuard",),
    "guard.verdict": ("Verdict", "Verdicts"),
    "guard.why": ("ColumnWhy", "RowWhy"),
    "features.stand_ins": ("feature_stand_ins",),
    "features.stream": ("FeatureStream", "open_features"),
    "features.table": ("TablePreprocessing",),
    "images.files": ("open_images",),
    "images.finding": ("find",),
    "images.source": ("ImageArray", "ImageSource"),
    "images.stand_ins": ("stand_ins",),
    "progress": ("show_progress",),
    "scores.drift": ("Drift",),
    "scores.metrics": (
        "Separation",
        "aupr_in",
        "aupr_out",
        "auroc",
        "fpr95",
        "id_rejected_at_95_ood_recall",
        "ood_accepted",
    ),
    "scores.threshold": ("Threshold",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    """A public name from its room, a room, or a detector that registered itself."""
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        globals()[name] = value  # from now on found without this function
        return value
    if name.isidentifier() and not name.startswith("_"):
        if importlib.util.find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f"{__name__}.{name}")
        from outfield.detectors import DETECTORS

        if name in DETECTORS:
            return DETECTORS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from outfield.detectors import DETECTORS

    return sorted({*globals(), *__all__, *DETECTORS})
