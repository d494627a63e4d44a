"""Detectors: fit and score; one file a method. A class marked ``@register`` in a file of this folder is found by itself.

Importing this imports no detector: :data:`DETECTORS` knows their names from the sources, and a class is imported when it is
asked for, here as ``outfield.detectors.KNN`` or by name as ``DETECTORS["KNN"]``.
"""

from typing import Any

from outfield.detectors.registry import DETECTORS, register
from outfield.extras import door

_load, _names, __all__ = door(
    __name__,
    {
        "distance.kde_nnguide_relation": ("directions",),
        "base": ("Batch", "Detector", "LARGEST", "labels_of", "lacking", "load"),
        "combined.choice": ("AUTO", "CHOICES", "Choice", "Rows", "Trial", "ViewsChoice", "choose", "choose_views"),
        "distance.combood": ("LEAST_SQUARE",),
        "ebm_energy_corrected": ("LearnedEnergy",),
        "describe": ("Entry", "detector_groups", "detectors_markdown"),
        "combined.members": ("CombinedDetector", "names_of"),
        "combined.heat_mahalanobis": ("ComposedDetector",),
        "distance.ssd_mixture_rmds": ("MixtureDetector",),
        "distance.neighbours": ("Neighbours",),
        "combined.fused": ("Calibration", "LEAST", "Summed"),
    },
)
__all__ += ["DETECTORS", *DETECTORS, "register"]


def __getattr__(name: str) -> Any:
    return DETECTORS[name] if name in DETECTORS else _load(name)


def __dir__() -> list[str]:
    return sorted({*_names(), *DETECTORS})
