"""Where points may live: maps from R^D onto a set, applied to chains after every step and to features once.

Post-ReLU features, L2-normalised, lie on the non-negative part of the unit sphere. A chain that may leave it teaches the
network "norm ≠ 1" and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from outfield.errors import UnknownNameError

Projection = Callable[[Tensor], Tensor]


def identity(z: Tensor) -> Tensor:
    """z."""
    return z


def sphere(z: Tensor) -> Tensor:
    """z / ‖z‖ for each row (N, D); a zero row stays zero."""
    return functional.normalize(z, dim=-1)


def relu_sphere(z: Tensor) -> Tensor:
    """ReLU, then z / ‖z‖ for each row (N, D)."""
    return functional.normalize(z.relu(), dim=-1)


PROJECTIONS: dict[str, Projection] = {"none": identity, "sphere": sphere, "relu_sphere": relu_sphere}


def resolve(name: str, z: Tensor) -> str:
    """``"auto"`` becomes ``"relu_sphere"`` when no entry of the training features z is negative, else ``"sphere"``."""
    if name == "auto":
        return "relu_sphere" if bool((z >= 0).all()) else "sphere"
    if name not in PROJECTIONS:
        raise UnknownNameError(f"projection is {name!r}; it must be one of auto, {', '.join(PROJECTIONS)}")
    return name


def normalise(features: Tensor) -> Tensor:
    """Features of any floating type and magnitude as float32 rows of length 1 (N, D); a zero row stays zero.

    Each row is divided by its largest entry first, so that 1e30 neither overflows float32 nor its own square.
    """
    wide = features if features.dtype == torch.float64 else features.float()
    # Without abs(): a second table of this size would take seven times as long as both searches.
    largest = torch.maximum(wide.amax(dim=1, keepdim=True), -wide.amin(dim=1, keepdim=True))
    return sphere((wide / largest.clamp_min(torch.finfo(wide.dtype).tiny)).float())
