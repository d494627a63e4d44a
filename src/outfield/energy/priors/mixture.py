"""The mixture of class-conditional Gaussians with one covariance (appendix A.3 of the paper).

q(z) = Σ_c π_c N(z; μ_c, Σ),  π_c = N_c / N,  μ_c = mean of class c,  Σ = (1/N) Σ_c Σ_{i: y_i = c} (z_i − μ_c)(z_i − μ_c)ᵀ.

Fitting is one pass over batches in float64 (:class:`outfield.ClassStatistics`); afterwards Σ = V diag(λ) Vᵀ is
decomposed once, with its eigenvalues floored, and every distance is taken in whitened coordinates
w = (z − m) V diag(λ)^(−1/2), where all classes are unit balls: one (N, D)·(D, D) product and one (N, D)·(D, K) product,
whatever K is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from outfield.config import configurable, require_number
from outfield.energy.priors.moments import ClassStatistics, one_thread_each
from outfield.energy.priors.prior import Prior
from outfield.errors import FileFormatError, InputError, NotFittedError

TOLERANCE = 1e-2
"""Rounding of a squared distance above which the slower, refined formula is taken; real features stay far below it."""


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
        with one_thread_each():  # LAPACK gains little from more, and waits long for them on a busy machine
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


class Ready:
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
        self.offsets = self.log_weights - 0.5 * self.centres.square().sum(1)
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
        self._ready: dict[tuple[torch.device, torch.dtype], Ready] = {}

    def fit(self, z: Tensor, labels: Tensor | None) -> Self:
        """Learn from all rows: z (N, D), labels (N,)."""
        if labels is None:
            raise InputError("the mixture needs labels; pass zeros for a single Gaussian")
        self._statistics, self._parameters = None, None
        return self.partial_fit(z, labels)

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

    def ready(self, like: Tensor) -> Ready:
        """The learned parameters as the formulas use them, in the type and on the device of ``like``; made once."""
        key = (like.device, like.dtype)
        if key not in self._ready:
            self._ready[key] = Ready(self.parameters_, like)
        return self._ready[key]

    def whiten(self, z: Tensor) -> Tensor:
        """w = (z − m) V diag(λ)^(−1/2) (N, D): coordinates in which every class has covariance I."""
        ready = self.ready(z)
        return (z - ready.mean) @ ready.whitening

    def mahalanobis_sq(self, z: Tensor) -> Tensor:
        """d_c²(z) for every class (N, K)."""
        ready = self.ready(z)
        return ready.distances(self.whiten(z), ready.centres)

    def energy_whitened(self, w: Tensor) -> Tensor:
        """The energy at whitened points w (N, D) → (N,)."""
        ready = self.ready(w)
        return -torch.logsumexp(ready.log_weights - 0.5 * ready.distances(w, ready.centres), dim=1)

    def energy(self, z: Tensor) -> Tensor:
        """E(z) = −log Σ_c π_c exp(−½ d_c²(z)) (N,)."""
        return self.energy_whitened(self.whiten(z))

    def gradient(self, z: Tensor) -> Tensor:
        """∇E(z) = V diag(λ)^(−1/2) (w − Σ_c p_c(z) m_c) (N, D), p_c the posterior of class c: :meth:`energy` differentiated."""
        ready = self.ready(z)
        w = self.whiten(z)
        if self.well_scaled(z):
            posterior = torch.addmm(ready.offsets, w, ready.centres.T).softmax(1)
        else:
            posterior = (ready.log_weights - 0.5 * ready.distances(w, ready.centres)).softmax(1)
        return torch.addmm(w, posterior, ready.centres, alpha=-1) @ ready.whitening.T

    def well_scaled(self, like: Tensor) -> bool:
        """Whether distances in the type of ``like`` need no refinement (see :func:`mahalanobis_sq_refined`)."""
        return self.ready(like).distances is mahalanobis_sq

    def log_prob(self, z: Tensor) -> Tensor:
        """log q(z) with its constant (N,): exp of it integrates to 1."""
        eigenvalues = self.parameters_.eigenvalues
        constant = 0.5 * (len(eigenvalues) * math.log(2 * math.pi) + float(eigenvalues.log().sum()))
        return -self.energy(z) - constant

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n points from q (n, D), float32: one component is chosen for each, and only that one is drawn."""
        noise = torch.randn(n, len(self.parameters_.mean), generator=generator, device=generator.device)
        ready = self.ready(noise)
        chosen = torch.multinomial(ready.log_weights.exp(), n, replacement=True, generator=generator)
        return ready.means[chosen] + noise @ ready.colouring

    def state(self) -> dict[str, Tensor]:
        return {field.name: getattr(self.parameters_, field.name) for field in fields(MixtureParameters)}

    def load_state(self, state: dict[str, Tensor]) -> Self:
        missing = sorted({field.name for field in fields(MixtureParameters)} - set(state))
        if missing:
            raise FileFormatError(f"the mixture's state lacks {', '.join(missing)}")
        whole = {name: value.double() if value.is_floating_point() else value for name, value in state.items()}
        self._statistics, self._parameters, self._ready = None, MixtureParameters(**whole), {}
        return self
