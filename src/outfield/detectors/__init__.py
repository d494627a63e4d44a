"""Detectors: fit and score; one file a method. A class marked ``@register`` in a file of this folder is found by itself.

Importing this imports no detector: :data:`DETECTORS` knows their names from the sources, and a class is imported when it is
asked for, here as ``outfield.detectors.KNN`` or by name as ``DETECTORS["KNN"]``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from outfield.detectors.registry import DETECTORS, register

if TYPE_CHECKING:  # type checkers cannot look into the folder; a detector that is not listed here works all the same
    from outfield.detectors.auto import Auto as Auto
    from outfield.detectors.base import Detector as Detector
    from outfield.detectors.class_gaussians import PerClassGaussian as PerClassGaussian
    from outfield.detectors.clipping import VRA as VRA
    from outfield.detectors.clipping import ReAct as ReAct
    from outfield.detectors.combood import CombOOD as CombOOD
    from outfield.detectors.confidence import GEN as GEN
    from outfield.detectors.confidence import Entropy as Entropy
    from outfield.detectors.confidence import MaxLogit as MaxLogit
    from outfield.detectors.corrected import EnergyCorrected as EnergyCorrected
    from outfield.detectors.cosine_mean import CosineMean as CosineMean
    from outfield.detectors.dice import DICE as DICE
    from outfield.detectors.ebm import EBM as EBM
    from outfield.detectors.fdbd import fDBD as fDBD
    from outfield.detectors.fused import Fused as Fused
    from outfield.detectors.gradnorm import GradNorm as GradNorm
    from outfield.detectors.heat import HEAT as HEAT
    from outfield.detectors.kde import KDE as KDE
    from outfield.detectors.kl_matching import KLMatching as KLMatching
    from outfield.detectors.knn import KNN as KNN
    from outfield.detectors.logits import MSP as MSP
    from outfield.detectors.logits import ODIN as ODIN
    from outfield.detectors.logits import EnergyLogits as EnergyLogits
    from outfield.detectors.mahalanobis import Mahalanobis as Mahalanobis
    from outfield.detectors.mixture import SSD as SSD
    from outfield.detectors.mixture import GaussianMixture as GaussianMixture
    from outfield.detectors.nci import NCI as NCI
    from outfield.detectors.nnguide import NNGuide as NNGuide
    from outfield.detectors.openmax import OpenMax as OpenMax
    from outfield.detectors.pca import PCA as PCA
    from outfield.detectors.relation import Relation as Relation
    from outfield.detectors.relative import RMDS as RMDS
    from outfield.detectors.residual import Residual as Residual
    from outfield.detectors.residual import ViM as ViM
    from outfield.detectors.saved import load as load
    from outfield.detectors.sharpening import ASH as ASH
    from outfield.detectors.sharpening import LTS as LTS
    from outfield.detectors.sharpening import SCALE as SCALE
    from outfield.detectors.she import SHE as SHE
    from outfield.detectors.temperature import TempScale as TempScale

_HOMES = {"Detector": "outfield.detectors.base", "load": "outfield.detectors.saved"}

__all__ = ["DETECTORS", "Detector", "load", "register"]
__all__ += list(DETECTORS)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in DETECTORS:
        return DETECTORS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *DETECTORS})
