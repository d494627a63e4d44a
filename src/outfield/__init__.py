"""Outfield tells a deployed classifier when an input is none of its business.

One convention holds everywhere: **a score is one float per sample, and higher means more out-of-distribution (OOD)**.

    images ─backbone▶ FeatureSet ─Detector.fit / .score▶ scores (N,) ─Threshold▶ is_ood (N,)
"""

from outfield.backbone import Backbone, Odin
from outfield.benchmark import BenchmarkRun, benchmark_features, paper_detectors, run_benchmark
from outfield.classification import TrainingCheckpoint, classifier_for, train_classifier
from outfield.classifiers import Classifier, load_classifier, save_classifier
from outfield.datasets import PROTOCOLS, Protocol, find
from outfield.detectors import (
    DETECTORS,
    EBM,
    KNN,
    MSP,
    ODIN,
    SSD,
    Detector,
    EnergyCorrected,
    EnergyLogits,
    GaussianMixture,
    load,
)
from outfield.energy import MLP, CorrectedEnergy
from outfield.errors import (
    DivergenceError,
    FileFormatError,
    InputError,
    MissingFieldError,
    NotFittedError,
    OutfieldError,
    OutfieldWarning,
    StorageError,
    TooFewSamplesError,
    UnknownNameError,
)
from outfield.evaluation import Result, evaluate
from outfield.features import FeatureSet
from outfield.gaussian import MixturePrior
from outfield.imagefiles import open_images
from outfield.images import ImageArray, ImageSource
from outfield.langevin import HamiltonianMonteCarlo, Langevin, MetropolisLangevin, run_chains
from outfield.metrics import Separation, aupr_in, aupr_out, auroc, fpr95, id_rejected_at_95_ood_recall, ood_accepted
from outfield.moments import ClassStatistics
from outfield.prior import Prior
from outfield.recipe import Recipe
from outfield.steps import Training
from outfield.streams import FeatureStream, open_features
from outfield.threshold import Threshold
from outfield.training import Checkpoint, History
from outfield.version import __version__

__all__ = [
    "DETECTORS",
    "EBM",
    "KNN",
    "MLP",
    "MSP",
    "ODIN",
    "PROTOCOLS",
    "SSD",
    "Backbone",
    "BenchmarkRun",
    "Checkpoint",
    "ClassStatistics",
    "Classifier",
    "CorrectedEnergy",
    "Detector",
    "DivergenceError",
    "EnergyCorrected",
    "EnergyLogits",
    "FeatureSet",
    "FeatureStream",
    "FileFormatError",
    "GaussianMixture",
    "HamiltonianMonteCarlo",
    "History",
    "ImageArray",
    "ImageSource",
    "InputError",
    "Langevin",
    "MetropolisLangevin",
    "MissingFieldError",
    "MixturePrior",
    "NotFittedError",
    "Odin",
    "OutfieldError",
    "OutfieldWarning",
    "Prior",
    "Protocol",
    "Recipe",
    "Result",
    "Separation",
    "StorageError",
    "Threshold",
    "TooFewSamplesError",
    "Training",
    "TrainingCheckpoint",
    "UnknownNameError",
    "__version__",
    "aupr_in",
    "aupr_out",
    "auroc",
    "benchmark_features",
    "classifier_for",
    "evaluate",
    "find",
    "fpr95",
    "id_rejected_at_95_ood_recall",
    "load",
    "load_classifier",
    "ood_accepted",
    "open_features",
    "open_images",
    "paper_detectors",
    "run_benchmark",
    "run_chains",
    "save_classifier",
    "train_classifier",
]
