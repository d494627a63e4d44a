"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.backbone import Backbone as Backbone
from outfield.backbone import Classifier as Classifier
from outfield.backbone import Odin as Odin
from outfield.backbone import Perturb as Perturb
from outfield.backbone import Preprocessing as Preprocessing
from outfield.backbone import Views as Views
from outfield.backbone import load_classifier as load_classifier
from outfield.backbone import save_classifier as save_classifier
from outfield.benchmark import BenchmarkRun as BenchmarkRun
from outfield.benchmark import PROTOCOLS as PROTOCOLS
from outfield.benchmark import Protocol as Protocol
from outfield.benchmark import Result as Result
from outfield.benchmark import benchmark_features as benchmark_features
from outfield.benchmark import evaluate as evaluate
from outfield.benchmark import paper_detectors as paper_detectors
from outfield.benchmark import run_benchmark as run_benchmark
from outfield.classifier import Recipe as Recipe
from outfield.classifier import TrainingCheckpoint as TrainingCheckpoint
from outfield.classifier import classifier_for as classifier_for
from outfield.classifier import train_classifier as train_classifier
from outfield.detectors import ASH as ASH
from outfield.detectors import Auto as Auto
from outfield.detectors import Choice as Choice
from outfield.detectors import CombOOD as CombOOD
from outfield.detectors import CosineMean as CosineMean
from outfield.detectors import DETECTORS as DETECTORS
from outfield.detectors import DICE as DICE
from outfield.detectors import Detector as Detector
from outfield.detectors import EBM as EBM
from outfield.detectors import EnergyCorrected as EnergyCorrected
from outfield.detectors import EnergyLogits as EnergyLogits
from outfield.detectors import Entropy as Entropy
from outfield.detectors import Fused as Fused
from outfield.detectors import GEN as GEN
from outfield.detectors import GROOD as GROOD
from outfield.detectors import GaussianMixture as GaussianMixture
from outfield.detectors import GradNorm as GradNorm
from outfield.detectors import HEAT as HEAT
from outfield.detectors import KDE as KDE
from outfield.detectors import KLMatching as KLMatching
from outfield.detectors import KNN as KNN
from outfield.detectors import LTS as LTS
from outfield.detectors import MSP as MSP
from outfield.detectors import Mahalanobis as Mahalanobis
from outfield.detectors import MaxLogit as MaxLogit
from outfield.detectors import NCI as NCI
from outfield.detectors import NECO as NECO
from outfield.detectors import NNGuide as NNGuide
from outfield.detectors import ODIN as ODIN
from outfield.detectors import OpenMax as OpenMax
from outfield.detectors import PCA as PCA
from outfield.detectors import PerClassGaussian as PerClassGaussian
from outfield.detectors import RMDS as RMDS
from outfield.detectors import ReAct as ReAct
from outfield.detectors import Relation as Relation
from outfield.detectors import Residual as Residual
from outfield.detectors import SCALE as SCALE
from outfield.detectors import SHE as SHE
from outfield.detectors import SIRC as SIRC
from outfield.detectors import SSD as SSD
from outfield.detectors import TempScale as TempScale
from outfield.detectors import VRA as VRA
from outfield.detectors import ViM as ViM
from outfield.detectors import choose as choose
from outfield.detectors import fDBD as fDBD
from outfield.detectors import load as load
from outfield.energy import Checkpoint as Checkpoint
from outfield.energy import ClassStatistics as ClassStatistics
from outfield.energy import CorrectedEnergy as CorrectedEnergy
from outfield.energy import HamiltonianMonteCarlo as HamiltonianMonteCarlo
from outfield.energy import History as History
from outfield.energy import Langevin as Langevin
from outfield.energy import MLP as MLP
from outfield.energy import MetropolisLangevin as MetropolisLangevin
from outfield.energy import MixturePrior as MixturePrior
from outfield.energy import Prior as Prior
from outfield.energy import Training as Training
from outfield.energy import run_chains as run_chains
from outfield.errors import DivergenceError as DivergenceError
from outfield.errors import FileFormatError as FileFormatError
from outfield.errors import InputError as InputError
from outfield.errors import MissingExtraError as MissingExtraError
from outfield.errors import MissingFieldError as MissingFieldError
from outfield.errors import NotFittedError as NotFittedError
from outfield.errors import OutfieldError as OutfieldError
from outfield.errors import OutfieldWarning as OutfieldWarning
from outfield.errors import StorageError as StorageError
from outfield.errors import TooFewSamplesError as TooFewSamplesError
from outfield.errors import UnknownNameError as UnknownNameError
from outfield.features import FeatureSet as FeatureSet
from outfield.features import FeatureStream as FeatureStream
from outfield.features import TablePreprocessing as TablePreprocessing
from outfield.features import clustered as clustered
from outfield.features import feature_stand_ins as feature_stand_ins
from outfield.features import open_features as open_features
from outfield.guard import BoxVerdict as BoxVerdict
from outfield.guard import Boxes as Boxes
from outfield.guard import ColumnWhy as ColumnWhy
from outfield.guard import Guard as Guard
from outfield.guard import ImageVerdict as ImageVerdict
from outfield.guard import RowGuard as RowGuard
from outfield.guard import RowWhy as RowWhy
from outfield.guard import Texts as Texts
from outfield.guard import Verdict as Verdict
from outfield.guard import Verdicts as Verdicts
from outfield.guard import open_guard as open_guard
from outfield.images import ImageArray as ImageArray
from outfield.images import ImageSource as ImageSource
from outfield.images import find as find
from outfield.images import open_images as open_images
from outfield.images import stand_ins as stand_ins
from outfield.progress import show_progress as show_progress
from outfield.scores import Acceptance as Acceptance
from outfield.scores import ClassThresholds as ClassThresholds
from outfield.scores import Drift as Drift
from outfield.scores import RiskCoverage as RiskCoverage
from outfield.scores import RowDrift as RowDrift
from outfield.scores import Separation as Separation
from outfield.scores import Threshold as Threshold
from outfield.scores import augrc as augrc
from outfield.scores import aupr_in as aupr_in
from outfield.scores import aupr_out as aupr_out
from outfield.scores import aurc as aurc
from outfield.scores import auroc as auroc
from outfield.scores import coverage_at_risk as coverage_at_risk
from outfield.scores import fpr95 as fpr95
from outfield.scores import id_rejected_at_95_ood_recall as id_rejected_at_95_ood_recall
from outfield.scores import ood_accepted as ood_accepted
from outfield.version import __version__ as __version__

__all__ = [
    "ASH",
    "Acceptance",
    "Auto",
    "Backbone",
    "BenchmarkRun",
    "BoxVerdict",
    "Boxes",
    "Checkpoint",
    "Choice",
    "ClassStatistics",
    "ClassThresholds",
    "Classifier",
    "ColumnWhy",
    "CombOOD",
    "CorrectedEnergy",
    "CosineMean",
    "DETECTORS",
    "DICE",
    "Detector",
    "DivergenceError",
    "Drift",
    "EBM",
    "EnergyCorrected",
    "EnergyLogits",
    "Entropy",
    "FeatureSet",
    "FeatureStream",
    "FileFormatError",
    "Fused",
    "GEN",
    "GROOD",
    "GaussianMixture",
    "GradNorm",
    "Guard",
    "HEAT",
    "HamiltonianMonteCarlo",
    "History",
    "ImageArray",
    "ImageSource",
    "ImageVerdict",
    "InputError",
    "KDE",
    "KLMatching",
    "KNN",
    "LTS",
    "Langevin",
    "MLP",
    "MSP",
    "Mahalanobis",
    "MaxLogit",
    "MetropolisLangevin",
    "MissingExtraError",
    "MissingFieldError",
    "MixturePrior",
    "NCI",
    "NECO",
    "NNGuide",
    "NotFittedError",
    "ODIN",
    "Odin",
    "OpenMax",
    "OutfieldError",
    "OutfieldWarning",
    "PCA",
    "PROTOCOLS",
    "PerClassGaussian",
    "Perturb",
    "Preprocessing",
    "Prior",
    "Protocol",
    "RMDS",
    "ReAct",
    "Recipe",
    "Relation",
    "Residual",
    "Result",
    "RiskCoverage",
    "RowDrift",
    "RowGuard",
    "RowWhy",
    "SCALE",
    "SHE",
    "SIRC",
    "SSD",
    "Separation",
    "StorageError",
    "TablePreprocessing",
    "TempScale",
    "Texts",
    "Threshold",
    "TooFewSamplesError",
    "Training",
    "TrainingCheckpoint",
    "UnknownNameError",
    "VRA",
    "Verdict",
    "Verdicts",
    "ViM",
    "Views",
    "__version__",
    "augrc",
    "aupr_in",
    "aupr_out",
    "aurc",
    "auroc",
    "benchmark_features",
    "choose",
    "classifier_for",
    "clustered",
    "coverage_at_risk",
    "evaluate",
    "fDBD",
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
