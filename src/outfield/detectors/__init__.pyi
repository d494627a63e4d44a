"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.detectors.base import Batch as Batch
from outfield.detectors.base import Detector as Detector
from outfield.detectors.base import LARGEST as LARGEST
from outfield.detectors.base import labels_of as labels_of
from outfield.detectors.base import lacking as lacking
from outfield.detectors.base import load as load
from outfield.detectors.combined.auto import Auto as Auto
from outfield.detectors.combined.choice import AUTO as AUTO
from outfield.detectors.combined.choice import CHOICES as CHOICES
from outfield.detectors.combined.choice import Choice as Choice
from outfield.detectors.combined.choice import Rows as Rows
from outfield.detectors.combined.choice import Trial as Trial
from outfield.detectors.combined.choice import ViewsChoice as ViewsChoice
from outfield.detectors.combined.choice import choose as choose
from outfield.detectors.combined.choice import choose_views as choose_views
from outfield.detectors.combined.fused import Calibration as Calibration
from outfield.detectors.combined.fused import Fused as Fused
from outfield.detectors.combined.fused import LEAST as LEAST
from outfield.detectors.combined.fused import Summed as Summed
from outfield.detectors.combined.heat_mahalanobis import ComposedDetector as ComposedDetector
from outfield.detectors.combined.heat_mahalanobis import HEAT as HEAT
from outfield.detectors.combined.heat_mahalanobis import Mahalanobis as Mahalanobis
from outfield.detectors.combined.members import CombinedDetector as CombinedDetector
from outfield.detectors.combined.members import names_of as names_of
from outfield.detectors.combined.sirc import SIRC as SIRC
from outfield.detectors.describe import Entry as Entry
from outfield.detectors.describe import detector_groups as detector_groups
from outfield.detectors.describe import detectors_markdown as detectors_markdown
from outfield.detectors.distance.combood import CombOOD as CombOOD
from outfield.detectors.distance.combood import LEAST_SQUARE as LEAST_SQUARE
from outfield.detectors.distance.cosine_mean_she import CosineMean as CosineMean
from outfield.detectors.distance.cosine_mean_she import SHE as SHE
from outfield.detectors.distance.grood import GROOD as GROOD
from outfield.detectors.distance.kde_nnguide_relation import KDE as KDE
from outfield.detectors.distance.kde_nnguide_relation import NNGuide as NNGuide
from outfield.detectors.distance.kde_nnguide_relation import Relation as Relation
from outfield.detectors.distance.kde_nnguide_relation import directions as directions
from outfield.detectors.distance.knn import KNN as KNN
from outfield.detectors.distance.neco import NECO as NECO
from outfield.detectors.distance.neighbours import Neighbours as Neighbours
from outfield.detectors.distance.pca_per_class_gaussian import PCA as PCA
from outfield.detectors.distance.pca_per_class_gaussian import PerClassGaussian as PerClassGaussian
from outfield.detectors.distance.ssd_mixture_rmds import GaussianMixture as GaussianMixture
from outfield.detectors.distance.ssd_mixture_rmds import MixtureDetector as MixtureDetector
from outfield.detectors.distance.ssd_mixture_rmds import RMDS as RMDS
from outfield.detectors.distance.ssd_mixture_rmds import SSD as SSD
from outfield.detectors.ebm_energy_corrected import EBM as EBM
from outfield.detectors.ebm_energy_corrected import EnergyCorrected as EnergyCorrected
from outfield.detectors.ebm_energy_corrected import LearnedEnergy as LearnedEnergy
from outfield.detectors.head.ash_scale_lts import ASH as ASH
from outfield.detectors.head.ash_scale_lts import LTS as LTS
from outfield.detectors.head.ash_scale_lts import SCALE as SCALE
from outfield.detectors.head.gradnorm_nci_fdbd import GradNorm as GradNorm
from outfield.detectors.head.gradnorm_nci_fdbd import NCI as NCI
from outfield.detectors.head.gradnorm_nci_fdbd import fDBD as fDBD
from outfield.detectors.head.react_vra_dice import DICE as DICE
from outfield.detectors.head.react_vra_dice import ReAct as ReAct
from outfield.detectors.head.react_vra_dice import VRA as VRA
from outfield.detectors.head.vim import Residual as Residual
from outfield.detectors.head.vim import ViM as ViM
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import EnergyLogits as EnergyLogits
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import Entropy as Entropy
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import GEN as GEN
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import MSP as MSP
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import MaxLogit as MaxLogit
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import ODIN as ODIN
from outfield.detectors.logits.openmax_tempscale_kl_matching import KLMatching as KLMatching
from outfield.detectors.logits.openmax_tempscale_kl_matching import OpenMax as OpenMax
from outfield.detectors.logits.openmax_tempscale_kl_matching import TempScale as TempScale
from outfield.detectors.registry import DETECTORS as DETECTORS
from outfield.detectors.registry import register as register

__all__ = [
    "ASH",
    "AUTO",
    "Auto",
    "Batch",
    "CHOICES",
    "Calibration",
    "Choice",
    "CombOOD",
    "CombinedDetector",
    "ComposedDetector",
    "CosineMean",
    "DETECTORS",
    "DICE",
    "Detector",
    "EBM",
    "EnergyCorrected",
    "EnergyLogits",
    "Entropy",
    "Entry",
    "Fused",
    "GEN",
    "GROOD",
    "GaussianMixture",
    "GradNorm",
    "HEAT",
    "KDE",
    "KLMatching",
    "KNN",
    "LARGEST",
    "LEAST",
    "LEAST_SQUARE",
    "LTS",
    "LearnedEnergy",
    "MSP",
    "Mahalanobis",
    "MaxLogit",
    "MixtureDetector",
    "NCI",
    "NECO",
    "NNGuide",
    "Neighbours",
    "ODIN",
    "OpenMax",
    "PCA",
    "PerClassGaussian",
    "RMDS",
    "ReAct",
    "Relation",
    "Residual",
    "Rows",
    "SCALE",
    "SHE",
    "SIRC",
    "SSD",
    "Summed",
    "TempScale",
    "Trial",
    "VRA",
    "ViM",
    "ViewsChoice",
    "choose",
    "choose_views",
    "detector_groups",
    "detectors_markdown",
    "directions",
    "fDBD",
    "labels_of",
    "lacking",
    "load",
    "names_of",
    "register",
]
