"""The mixture of class-conditional Gaussians with one covariance (appendix A.3 of the paper).

q(z) = Σ_c π_c N(z; μ_c, Σ),  π_c = N_c / N,  μ_c = mean of class c,  Σ = (1/N) Σ_c Σ_{i: y_i = c} (z_i − μ_c)(z_i − μ_c)ᵀ.

Fitting is one pass over batches in float64 (:class:`ClassStatistics`); afterwards Σ = V diag(λ) Vᵀ is decomposed once,
with its eigenvalues floored, and every distance is taken in whitened coordinates w = (z − m) V diag(λ)^(−1/2), where all
classes are unit balls: one (N, D)·(D, D) product and one (N, D)·(D, K) product, whatever K is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from outfield.config import configurable, require_number
from outfield.errors import FileFormatError, InputError, NotFittedError
from outfield.prior import Prior

ROWS_AT_ONCE = 8192
TOLERANCE = 1e-2
"""Rounding of a squared distance above which the slower, refined formula is taken; real features stay far below it."""


@dataclass(frozen=True)
class ClassStatistics:
    """Sufficient statistics of the mixture; two of them merge into that of the joined data (Chan et al. 1979).

    Attributes:
        classes: labels seen, ascending (K,), int64.
        counts: N_c (K,), float64.
        means: μ_c (K, D), float64.
        scatter: Σ_c Σ_i (z_i − μ_c)(z_i − μ_c)ᵀ (D, D), float64.
    """

    classes: Tensor
    counts: Tensor
    means: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, z: Tensor, labels: Tensor) -> ClassStatistics:
        """Statistics of one batch: z (N, D) of any floating type, labels (N,)."""
        classes, index = labels.to(z.device).unique(return_inverse=True)
        z = z.double()
        counts = torch.bincount(index, minlength=len(classes)).double()
        sums = z.new_zeros(len(classes), z.shape[1]).index_add_(0, index, z)
        means = sums / counts[:, None]
        centred = z - means[index]
        return cls(classes, counts, means, centred.T @ centred)

    def merge(self, other: ClassStatistics) -> ClassStatistics:
        """Statistics of both batches together.

        For each class δ = μ_b − μ_a:  μ = μ_a + δ N_b / N,  scatter = S_a + S_b + Σ_c (N_a N_b / N) δ δᵀ.
        """
        if self.means.shape[1] != other.means.shape[1]:
            raise InputError(f"batches of width {self.means.shape[1]} and {other.means.shape[1]} cannot be merged")
        classes = torch.cat([self.classes, other.classes]).unique()
        counts_a, means_a = self._on(classes)
        counts_b, means_b = other._on(classes)
        total = counts_a + counts_b
        delta = means_b - means_a
        share = counts_b / total
        both = (counts_a * share)[:, None] * delta
        return ClassStatistics(
            classes, total, means_a + share[:, None] * delta, self.scatter + other.scatter + both.T @ delta
        )

    def _on(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Counts and means laid out for a superset of this batch's classes (0 where a class is absent)."""
        index = torch.searchsorted(classes, self.classes)
        counts = self.counts.new_zeros(len(classes)).index_copy_(0, index, self.counts)
        means = self.means.new_zeros(len(classes), self.means.shape[1]).index_copy_(0, index, self.means)
        return counts, means


def mahalanobis_sq(w: Tensor, centres: Tensor) -> Tensor:
    """Squared distances ‖w_i − m_c‖² (N, K) of whitened rows w (N, D) to whitened class means m_c (K, D).

    Expanded into ‖w‖² − 2 w·m + ‖m‖², so that the work is one matrix product; rounding below 0 is cut off.
    """
    cross = torch.addmm(centres.square().sum(1), w, centres.T, alpha=-2)
    return (cross + w.square().sum(1, keepdim=True)).clamp_min(0)


def mahalanobis_sq_refined(w: Tensor, centres: Tensor) -> Tensor:
    """The same where ‖m‖² is so large that the expansion's rounding would drown small distances.

    With the nearest class a found by the expansion and u = w − m_a, ‖w − m_c‖² = ‖u‖² − 2 u·(m_c − m_a) + ‖m_c − m_a‖², whose
    terms are small for the classes near w.
    """
    nearest = mahalanobis_sq(w.detach(), centres).argmin(1)
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
    def of(cls, statistics: ClassStatistics, floor: float) -> MixtureParameters:
        """From the statistics, with eigenvalues raised to ``floor`` times the largest (see :class:`MixturePrior`)."""
        n = statistics.counts.sum()
        weights = statistics.counts / n
        covariance = statistics.scatter / n
        eigenvalues, eigenvectors = torch.linalg.eigh((covariance + covariance.T) / 2)
        mean_square = float(covariance.trace() + weights @ statistics.means.square().sum(1)) / len(covariance)
        scale = max(float(eigenvalues[-1]), floor * mean_square) or 1.0
        return cls(
            classes=statistics.classes,
            log_weights=weights.log(),
            means=statistics.means,
            mean=weights @ statistics.means,
            eigenvalues=eigenvalues.clamp_min(floor * scale),
            eigenvectors=eigenvectors.contiguous(),  # as a file gives it back: layout decides the last bit
        )


class _Ready:
    """The parameters as the formulas use them, in one type on one device."""

    def __init__(self, p: MixtureParameters, like: Tensor) -> None:
        whitening = p.eigenvectors * p.eigenvalues.rsqrt()
        colouring = p.eigenvalues.sqrt()[:, None] * p.eigenvectors.T
        self.mean = p.mean.to(like)
        self.means = p.means.to(like)
        self.log_weights = p.log_weights.to(like)
        self.whitening = whitening.to(like)
        self.centres = ((p.means - p.mean) @ whitening).to(like)
        self.colouring = colouring.to(like)
        rounding = torch.finfo(like.dtype).eps * float(self.centres.square().sum(1).max())
        self.distances = mahalanobis_sq_refined if rounding > TOLERANCE else mahalanobis_sq


@configurable
class MixturePrior(Prior):
    """Mixture of Gaussians with class means and one covariance.

    The energy is E(z) = −log Σ_c π_c exp(−½ d_c²(z)), d_c² = (z − μ_c)ᵀ Σ⁻¹ (z − μ_c): the proper negative log-density
    without its constant ½ (D log 2π + log det Σ), which :meth:`log_prob` includes. The paper's E_G has neither the ½ nor
    π_c, so a temperature that the paper states for E_G is half as large here (its T_G = 1000 is 500).

    Args:
        floor: eigenvalues of Σ below ``floor`` times the largest are raised to that. It keeps the energy finite with fewer
            samples than dimensions or constant features (directions never seen in training become steep walls), and lies
            far below the eigenvalues of real features (6e-5 of the largest for CIFAR-10). When all features are constant
            the floor is ``floor``² times their mean square.
    """

    needs_labels = True

    def __init__(self, floor: float = 1e-6) -> None:
        require_number("floor", floor, above=0, most=1)
        self.floor = floor
        self._statistics: ClassStatistics | None = None
        self._parameters: MixtureParameters | None = None
        self._ready: dict[tuple[torch.device, torch.dtype], _Ready] = {}

    def fit(self, z: Tensor, labels: Tensor | None) -> Self:
        """Learn from all rows (in pieces, so that the float64 copy stays small)."""
        if labels is None:
            raise InputError("the mixture needs labels; pass zeros for a single Gaussian")
        self._statistics = None
        for start in range(0, len(z), ROWS_AT_ONCE):
            self.partial_fit(z[start : start + ROWS_AT_ONCE], labels[start : start + ROWS_AT_ONCE])
        return self

    def partial_fit(self, z: Tensor, labels: Tensor) -> Self:
        """Learn from one more batch: rows z (N, D), labels (N,)."""
        return self.merge(ClassStatistics.of(z, labels))

    def merge(self, statistics: ClassStatistics) -> Self:
        """Learn from statistics gathered elsewhere (another process, another machine)."""
        if self._statistics is None and self._parameters is not None:
            raise InputError("this mixture was loaded from a file, which holds no statistics; fit a new one instead")
        self._statistics = statistics if self._statistics is None else self._statistics.merge(statistics)
        self._parameters, self._ready = None, {}
        return self

    @property
    def parameters_(self) -> MixtureParameters:
        """Learned parameters; the covariance is decomposed when they are first asked for."""
        if self._parameters is None:
            if self._statistics is None:
                raise NotFittedError("this mixture is not fitted; call fit or partial_fit first")
            self._parameters = MixtureParameters.of(self._statistics, self.floor)
        return self._parameters

    def _on(self, like: Tensor) -> _Ready:
        key = (like.device, like.dtype)
        if key not in self._ready:
            self._ready[key] = _Ready(self.parameters_, like)
        return self._ready[key]

    def whiten(self, z: Tensor) -> Tensor:
        """w = (z − m) V diag(λ)^(−1/2) (N, D): coordinates in which every class has covariance I."""
        ready = self._on(z)
        return (z - ready.mean) @ ready.whitening

    def mahalanobis_sq(self, z: Tensor) -> Tensor:
        """d_c²(z) for every class (N, K)."""
        ready = self._on(z)
        return ready.distances(self.whiten(z), ready.centres)

    def energy_whitened(self, w: Tensor) -> Tensor:
        """The energy at whitened points w (N, D) → (N,)."""
        ready = self._on(w)
        return -torch.logsumexp(ready.log_weights - 0.5 * ready.distances(w, ready.centres), dim=1)

    def energy(self, z: Tensor) -> Tensor:
        """E(z) = −log Σ_c π_c exp(−½ d_c²(z)) (N,)."""
        return self.energy_whitened(self.whiten(z))

    def log_prob(self, z: Tensor) -> Tensor:
        """log q(z) with its constant (N,): exp of it integrates to 1."""
        eigenvalues = self.parameters_.eigenvalues
        constant = 0.5 * (len(eigenvalues) * math.log(2 * math.pi) + float(eigenvalues.log().sum()))
        return -self.energy(z) - constant

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n points from q (n, D), float32: one component is chosen for each, and only that one is drawn."""
        noise = torch.randn(n, len(self.parameters_.mean), generator=generator, device=generator.device)
        ready = self._on(noise)
        chosen = torch.multinomial(ready.log_weights.exp(), n, replacement=True, generator=generator)
        return ready.means[chosen] + noise @ ready.colouring

    def state(self) -> dict[str, Tensor]:
        return {field.name: getattr(self.parameters_, field.name) for field in fields(MixtureParameters)}

    def load_state(self, state: dict[str, Tensor]) -> Self:
        missing = sorted({field.name for field in fields(MixtureParameters)} - set(state))
        if missing:
            raise FileFormatError(f"the mixture's state lacks {', '.join(missing)}")
        self._statistics, self._parameters, self._ready = None, MixtureParameters(**state), {}
        return self
