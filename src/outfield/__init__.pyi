"""The public names of Outfield with their types. ``__init__.py`` imports each from the same place when it is asked for."""

from outfield.backbone.architectures import Classifier, load_classifier, save_classifier
from outfield.backbone.backbone import Backbone, Odin
from outfield.backbone.perturb import Perturb
from outfield.backbone.preprocessing import Preprocessing
from outfield.backbone.views import Views
from outfield.benchmark import BenchmarkRun, benchmark_features, paper_detectors, run_benchmark
from outfield.benchmark.evaluation import Result, evaluate
from outfield.benchmark.protocol import PROTOCOLS, Protocol
from outfield.classifier.recipe import Recipe
from outfield.classifier.train import TrainingCheckpoint, classifier_for, train_classifier
from outfield.detectors import (
    ASH,
    DETECTORS,
    DICE,
    EBM,
    GEN,
    HEAT,
    KDE,
    KNN,
    LTS,
    MSP,
    NCI,
    ODIN,
    PCA,
    RMDS,
    SCALE,
    SHE,
    SSD,
    VRA,
    Auto,
    CombOOD,
    CosineMean,
    Detector,
    EnergyCorrected,
    EnergyLogits,
    Entropy,
    Fused,
    GaussianMixture,
    GradNorm,
    KLMatching,
    Mahalanobis,
    MaxLogit,
    NNGuide,
    OpenMax,
    PerClassGaussian,
    ReAct,
    Relation,
    Residual,
    TempScale,
    ViM,
    fDBD,
    load,
)
from outfield.detectors.choosing import Choice, choose
from outfield.energy.chains import run_chains
from outfield.energy.checkpoints import Checkpoint
from outfield.energy.history import History
from outfield.energy.network import MLP, CorrectedEnergy
from outfield.energy.priors.mixture import MixturePrior
from outfield.energy.priors.moments import ClassStatistics
from outfield.energy.priors.prior import Prior
from outfield.energy.samplers import HamiltonianMonteCarlo, Langevin, MetropolisLangevin
from outfield.energy.settings import Training
from outfield.errors import (
    DivergenceError,
    FileFormatError,
    InputError,
    MissingExtraError,
    MissingFieldError,
    NotFittedError,
    OutfieldError,
    OutfieldWarning,
    StorageError,
    TooFewSamplesError,
    UnknownNameError,
)
from outfield.features.clusters import clustered
from outfield.features.set import FeatureSet
from outfield.features.stand_ins import feature_stand_ins
from outfield.features.stream import FeatureStream, open_features
from outfield.features.table import TablePreprocessing
from outfield.guard.guard import Guard
from outfield.guard.opening import open_guard
from outfield.guard.rows import RowGuard
from outfield.guard.verdict import Verdict, Verdicts
from outfield.guard.why import ColumnWhy, RowWhy
from outfield.images.files import open_images
from outfield.images.finding import find
from outfield.images.source import ImageArray, ImageSource
from outfield.images.stand_ins import stand_ins
from outfield.progress import show_progress
from outfield.scores.drift import Drift
from outfield.scores.metrics import (
    Separation,
    aupr_in,
    aupr_out,
    auroc,
    fpr95,
    id_rejected_at_95_ood_recall,
    ood_accepted,
)
from outfield.scores.threshold import Threshold
from outfield.version import __version__

__all__ = [
    "ASH",
    "DETECTORS",
    "DICE",
    "EBM",
    "GEN",
    "HEAT",
    "KDE",
    "KNN",
    "LTS",
    "MLP",
    "MSP",
    "NCI",
    "ODIN",
    "PCA",
    "PROTOCOLS",
    "RMDS",
    "SCALE",
    "SHE",
    "SSD",
    "VRA",
    "Auto",
    "Backbone",
    "BenchmarkRun",
    "Checkpoint",
    "Choice",
    "ClassStatistics",
    "Classifier",
    "ColumnWhy",
    "CombOOD",
    "CorrectedEnergy",
    "CosineMean",
    "Detector",
    "DivergenceError",
    "Drift",
    "EnergyCorrected",
    "EnergyLogits",
    "Entropy",
    "FeatureSet",
    "FeatureStream",
    "FileFormatError",
    "Fused",
    "GaussianMixture",
    "GradNorm",
    "Guard",
    "HamiltonianMonteCarlo",
    "History",
    "ImageArray",
    "ImageSource",
    "InputError",
    "KLMatching",
    "Mahalanobis",
    "Langevin",
    "MaxLogit",
    "MetropolisLangevin",
    "MissingExtraError",
    "MissingFieldError",
    "MixturePrior",
    "NNGuide",
    "NotFittedError",
    "Odin",
    "OpenMax",
    "OutfieldError",
    "OutfieldWarning",
    "PerClassGaussian",
    "Perturb",
    "Preprocessing",
    "Prior",
    "Protocol",
    "ReAct",
    "Recipe",
    "Relation",
    "Residual",
    "Result",
    "RowGuard",
    "RowWhy",
    "Separation",
    "StorageError",
    "TablePreprocessing",
    "TempScale",
    "Threshold",
    "TooFewSamplesError",
    "Training",
    "TrainingCheckpoint",
    "UnknownNameError",
    "Verdict",
    "Verdicts",
    "ViM",
    "Views",
    "__version__",
    "aupr_in",
    "aupr_out",
    "auroc",
    "benchmark_features",
    "choose",
    "classifier_for",
    "evaluate",
    "fDBD",
    "clustered",
    "feature_stand_ins",
    "find",
    "fpr95",
    "id_rejected_at_95_ood_recall",
    "load",
    "load_classifier",
    "ood_accepted",
    "open_features",
    "open_guard",
    "open_images",
    "paper_detectors",
    "run_benchmark",
    "run_chains",
    "save_classifier",
    "show_progress",
    "stand_ins",
    "train_classifier",
]
