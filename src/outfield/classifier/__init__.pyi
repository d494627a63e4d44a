"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.classifier.outliers import Outliers as Outliers
from outfield.classifier.pixels import Pixels as Pixels
from outfield.classifier.pixels import check_share as check_share
from outfield.classifier.recipe import AUGMENTATIONS as AUGMENTATIONS
from outfield.classifier.recipe import Augmentation as Augmentation
from outfield.classifier.recipe import CrossEntropy as CrossEntropy
from outfield.classifier.recipe import LOSSES as LOSSES
from outfield.classifier.recipe import LogitNorm as LogitNorm
from outfield.classifier.recipe import OUTLIERS as OUTLIERS
from outfield.classifier.recipe import PadAndShift as PadAndShift
from outfield.classifier.recipe import Recipe as Recipe
from outfield.classifier.recipe import Recoloured as Recoloured
from outfield.classifier.recipe import SimCLR as SimCLR
from outfield.classifier.training import Curve as Curve
from outfield.classifier.training import HeldOut as HeldOut
from outfield.classifier.training import TrainingCheckpoint as TrainingCheckpoint
from outfield.classifier.training import classifier_for as classifier_for
from outfield.classifier.training import train_classifier as train_classifier

__all__ = [
    "AUGMENTATIONS",
    "Augmentation",
    "CrossEntropy",
    "Curve",
    "HeldOut",
    "LOSSES",
    "LogitNorm",
    "OUTLIERS",
    "Outliers",
    "PadAndShift",
    "Pixels",
    "Recipe",
    "Recoloured",
    "SimCLR",
    "TrainingCheckpoint",
    "check_share",
    "classifier_for",
    "train_classifier",
]
