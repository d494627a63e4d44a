"""What the mixture is made of, and squared distances in the coordinates in which every class is a unit ball."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from outfield.energy.priors.moments import ClassStatistics
from outfield.energy.priors.workers import on_one_core
from outfield.errors import FileFormatError

TOLERANCE = 1e-2
"""Rounding of a squared distance above which the slower, refined formula is taken; real features stay far below it."""


def mahalanobis_sq(w: Tensor, centres: Tensor, squares: Tensor | None = None) -> Tensor:
    """Squared distances ‖w_i − m_c‖² (N, K) of whitened rows w (N, D) to whitened class means m_c (K, D).

    Expanded into ‖w‖² − 2 w·m + ‖m‖², so that the work is one matrix product; rounding below 0 is cut off. ``squares`` are ‖m‖²
    (K,), where they are known.
    """
    cross = torch.addmm(centres.square().sum(1) if squares is None else squares, w, centres.T, alpha=-2)
    return (cross + w.square().sum(1, keepdim=True)).clamp_min(0)


def mahalanobis_sq_refined(w: Tensor, centres: Tensor, squares: Tensor | None = None) -> Tensor:
    """The same where ‖m‖² is so large that the expansion's rounding would drown small distances.

    With the nearest class a found by the expansion and u = w − m_a, ‖w − m_c‖² = ‖u‖² − 2 u·(m_c − m_a) + ‖m_c − m_a‖², whose
    terms are small for the classes near w.
    """
    nearest = mahalanobis_sq(w.detach(), centres, squares).argmin(1)
    u = w - centres[nearest]
    along = u @ centres.T
    apart = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (
        u.square().sum(1, keepdim=True) - 2 * (along - along.gather(1, nearest[:, None])) + apart[nearest]
    ).clamp_min(0)


@dataclass(frozen=True)
class MixtureParameters:
    """What the mixture is made of, float64 (classes int64).

    Attributes:
        classes: labels (K,).
        log_weights: log π_c (K,).
        means: μ_c (K, D).
        mean: Σ_c π_c μ_c (D,), the origin of the whitened coordinates.
        eigenvalues: λ (D,), ascending, floored.
        eigenvectors: V (D, D), Σ = V diag(λ) Vᵀ.
    """

    classes: Tensor
    log_weights: Tensor
    means: Tensor
    mean: Tensor
    eigenvalues: Tensor
    eigenvectors: Tensor

    @classmethod
    def of(cls, statistics: ClassStatistics, floor: float, ridge: float) -> MixtureParameters:
        """From the statistics, with eigenvalues changed by ``ridge`` and ``floor`` as :class:`MixturePrior` says."""
        n = statistics.counts.sum()
        weights = statistics.counts / n
        covariance = statistics.scatter / n
        symmetric = (covariance + covariance.T) / 2
        # LAPACK gains little from more cores, and waits long for them on a busy machine.
        eigenvalues, eigenvectors = on_one_core(lambda: torch.linalg.eigh(symmetric))
        eigenvalues = eigenvalues + ridge * eigenvalues.mean().clamp_min(0.0)
        mean_square = float(covariance.trace() + weights @ statistics.means.square().sum(1)) / len(covariance)
        scale = max(float(eigenvalues[-1]), floor * mean_square) or 1.0
        return cls(
            classes=statistics.classes,
            log_weights=weights.log(),
            means=statistics.means.clone(),
            mean=weights @ statistics.means,
            eigenvalues=eigenvalues.clamp_min(floor * scale),
            eigenvectors=eigenvectors.contiguous(),  # as a file gives it back: layout decides the last bit
        )

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> MixtureParameters:
        """From tensors of a file, checked."""
        names = [field.name for field in fields(cls)]
        missing = sorted(set(names) - set(state))
        if missing:
            raise FileFormatError(f"the mixture's state lacks {', '.join(missing)}")
        for name in names:
            kind = state[name].dtype
            if kind != torch.int64 if name == "classes" else not kind.is_floating_point:
                raise FileFormatError(f"the mixture's {name} has a wrong type, {kind}")
        found = cls(**{name: state[name] if name == "classes" else state[name].double() for name in names})
        k, d = len(found.log_weights.flatten()), len(found.mean.flatten())
        right = {"classes": (k,), "log_weights": (k,), "means": (k, d), "mean": (d,), "eigenvalues": (d,)}
        for name, shape in (right | {"eigenvectors": (d, d)}).items():
            value: Tensor = getattr(found, name)
            if tuple(value.shape) != shape or not value.numel() or not bool(torch.isfinite(value).all()):
                raise FileFormatError(f"the mixture's {name} must hold finite numbers of shape {shape}; it does not")
        found._check()
        return found

    def _check(self) -> None:
        """Refuse parameters that no fit gives, by more than rounding to float32 does."""
        weights, steps = self.log_weights.exp(), self.eigenvalues.diff()
        apart = float((weights @ self.means - self.mean).abs().max())
        rules = {
            "classes must be different, ascending, from 0": self.classes[0] >= 0 and (self.classes.diff() > 0).all(),
            "log_weights must be of weights that sum to 1": abs(float(weights.sum()) - 1) < 1e-3,
            "mean must be the mean of the means": apart <= 1e-3 * float(self.means.abs().max()),
            "eigenvalues must be above 0 and ascend": self.eigenvalues[0] > 0 and (steps >= 0).all(),
            "eigenvectors must have length 1": (self.eigenvectors.norm(dim=0) - 1).abs().max() < 1e-3,
        }
        for right, holds in rules.items():
            if not bool(holds):
                raise FileFormatError(f"the mixture's {right}; that is not so")


class Prepared:
    """The parameters as the formulas use them, in one type on one device."""

    def __init__(self, p: MixtureParameters, like: Tensor) -> None:
        whitening = p.eigenvectors * p.eigenvalues.rsqrt()
        colouring = p.eigenvalues.sqrt()[:, None] * p.eigenvectors.T
        self.mean = p.mean.to(like)
        # Rounding m moves all whitened rows; with an offset that features share, by more than they differ.
        self.shift = ((self.mean.to(p.mean) - p.mean) @ whitening).to(like)
        self.means = p.means.to(like)
        self.log_weights = p.log_weights.to(like)
        self.whitening = whitening.to(like)
        self.centres = ((p.means - p.mean) @ whitening).to(like)
        self.colouring = colouring.to(like)
        self.squares = self.centres.square().sum(1)
        self.offsets = self.log_weights - 0.5 * self.squares
        rounding = torch.finfo(like.dtype).eps * float(self.squares.max())
        self.distances = mahalanobis_sq_refined if rounding > TOLERANCE else mahalanobis_sq

    def whiten(self, z: Tensor) -> Tensor:
        """w = (z − m) V diag(λ)^(−1/2) of rows z (N, D)."""
        return torch.addmm(self.shift, z - self.mean, self.whitening)

    def distances_sq(self, w: Tensor) -> Tensor:
        """‖w − m_c‖² of whitened rows w (N, D) to every class (N, K)."""
        return self.distances(w, self.centres, self.squares)

    def mahalanobis_sq(self, z: Tensor) -> Tensor:
        """d_c²(z) of rows z (N, D) for every class (N, K)."""
        return self.distances_sq(self.whiten(z))

    def energy(self, w: Tensor) -> Tensor:
        """−log Σ_c π_c exp(−½ ‖w − m_c‖²) of whitened rows w (N, D) → (N,)."""
        return -torch.logsumexp(self.log_weights - 0.5 * self.distances_sq(w), dim=1)
