"""Detectors, in the order of the paper's table; importing this fills :data:`outfield.detectors.base.DETECTORS`."""

from outfield.detectors.logits import MSP, ODIN, EnergyLogits  # isort: skip
from outfield.detectors.knn import KNN  # isort: skip
from outfield.detectors.mixture import SSD, GaussianMixture  # isort: skip
from outfield.detectors.ebm import EBM  # isort: skip
from outfield.detectors.corrected import EnergyCorrected  # isort: skip
from outfield.detectors.base import DETECTORS, Detector, load, register

__all__ = [
    "DETECTORS",
    "EBM",
    "KNN",
    "MSP",
    "ODIN",
    "SSD",
    "Detector",
    "EnergyCorrected",
    "EnergyLogits",
    "GaussianMixture",
    "load",
    "register",
]
