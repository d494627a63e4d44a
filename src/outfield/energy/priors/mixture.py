"""The mixture of class-conditional Gaussians with one covariance (appendix A.3 of the paper).

q(z) = Σ_c π_c N(z; μ_c, Σ),  π_c = N_c / N,  μ_c = mean of class c,  Σ = (1/N) Σ_c Σ_{i: y_i = c} (z_i − μ_c)(z_i − μ_c)ᵀ.

Fitting is one pass over batches in float64 (:class:`outfield.ClassStatistics`); afterwards Σ = V diag(λ) Vᵀ is
decomposed once, with its eigenvalues floored, and every distance is taken in whitened coordinates
w = (z − m) V diag(λ)^(−1/2), where all classes are unit balls: one (N, D)·(D, D) product and one (N, D)·(D, K) product,
whatever K is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from outfield.config import configurable, require, require_number
from outfield.energy.priors.moments import ClassStatistics
from outfield.energy.priors.parameters import MixtureParameters, Prepared, mahalanobis_sq
from outfield.energy.priors.prior import Prior
from outfield.errors import InputError, NotFittedError
from outfield.modes import in_full, own_modes, products


@configurable
class MixturePrior(Prior):
    """Mixture of Gaussians with class means and one covariance.

    The energy is E(z) = −log Σ_c π_c exp(−½ d_c²(z)), d_c² = (z − μ_c)ᵀ Σ⁻¹ (z − μ_c): the proper negative log-density
    without its constant ½ (D log 2π + log det Σ), which :meth:`log_prob` includes. The paper's E_G has neither the ½ nor
    π_c, so a temperature that the paper states for E_G is half as large here (its T_G = 1000 is 500).

    Args:
        floor: Eigenvalues of Σ below ``floor`` times the largest are raised to that. It keeps the energy finite with fewer
            samples than dimensions or constant features (directions never seen in training become steep walls), and lies
            far below the eigenvalues of real features (6e-5 of the largest for CIFAR-10). When all features are constant
            the floor is ``floor``² times their mean square.
        ridge: This many times the mean eigenvalue is added to every eigenvalue before that: Σ + ridge · tr(Σ) / D · I. It
            keeps directions in which training rows hardly vary from deciding everything.
    """

    needs_labels = True
    added_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({"ridge": 0.0})

    def __init__(self, floor: float = 1e-6, ridge: float = 0.0) -> None:
        require_number("floor", floor, above=0, most=1)
        require_number("ridge", ridge, least=0)
        self.floor = floor
        self.ridge = ridge
        self._statistics: ClassStatistics | None = None
        self._parameters: MixtureParameters | None = None
        self._prepared: dict[tuple[torch.device, torch.dtype], Prepared] = {}

    def fit(self, z: Tensor, labels: Tensor | None) -> Self:
        """Learn from all rows: z (N, D), labels (N,)."""
        if labels is None:
            raise InputError("the mixture needs labels; pass zeros for a single Gaussian")
        statistics = ClassStatistics.of(z, labels)
        self._statistics, self._parameters = None, None
        return self.merge(statistics)

    def partial_fit(self, z: Tensor, labels: Tensor) -> Self:
        """Learn from one more batch: rows z (N, D), labels (N,)."""
        return self.merge(ClassStatistics.of(z, labels))

    def merge(self, statistics: ClassStatistics) -> Self:
        """Learn from statistics gathered elsewhere (another process, another machine)."""
        require(isinstance(statistics, ClassStatistics), "statistics", statistics, "an outfield.ClassStatistics")
        if self._statistics is None and self._parameters is not None:
            raise InputError("this mixture was loaded from a file, which holds no statistics; fit a new one instead")
        self._statistics = statistics if self._statistics is None else self._statistics.merge(statistics)
        self._parameters, self._prepared = None, {}
        return self

    @property
    def parameters_(self) -> MixtureParameters:
        """Learned parameters; the covariance is decomposed when they are first asked for."""
        if self._parameters is None:
            if self._statistics is None:
                raise NotFittedError("this mixture is not fitted; call fit or partial_fit first")
            with torch.inference_mode(False):  # whatever is kept must be usable outside of it
                self._parameters = MixtureParameters.of(self._statistics, float(self.floor), float(self.ridge))
        return self._parameters

    def prepared(self, like: Tensor) -> Prepared:
        """The learned parameters as the formulas use them, in the type and on the device of ``like``; made once."""
        key = (like.device, like.dtype)
        if key not in self._prepared:
            require(like.is_floating_point(), "z", like.dtype, "a floating tensor")
            with torch.inference_mode(False):
                self._prepared[key] = Prepared(self.parameters_, like)
        return self._prepared[key]

    @in_full
    def whiten(self, z: Tensor) -> Tensor:
        """w = (z − m) V diag(λ)^(−1/2) (N, D): coordinates in which every class has covariance I."""
        known = self.prepared(z)
        if z.ndim != 2 or z.shape[1] != len(known.mean):
            raise InputError(
                f"z has shape {tuple(z.shape)}; this mixture takes rows of {len(known.mean)} numbers, (N, D)"
            )
        return known.whiten(z)

    @in_full
    def mahalanobis_sq(self, z: Tensor) -> Tensor:
        """d_c²(z) for every class (N, K)."""
        return self.prepared(z).distances_sq(self.whiten(z))

    @in_full
    def energy_whitened(self, w: Tensor) -> Tensor:
        """The energy at whitened points w (N, D) → (N,)."""
        return self.prepared(w).energy(w)

    def energy(self, z: Tensor) -> Tensor:
        """E(z) = −log Σ_c π_c exp(−½ d_c²(z)) (N,)."""
        return self.energy_whitened(self.whiten(z))

    @in_full
    def gradient(self, z: Tensor) -> Tensor:
        """∇E(z) = V diag(λ)^(−1/2) (w − Σ_c p_c(z) m_c) (N, D), p_c the posterior of class c: :meth:`energy` differentiated."""
        known = self.prepared(z)
        w = self.whiten(z)
        if self.well_scaled(z):
            posterior = torch.addmm(known.offsets, w, known.centres.T).softmax(1)
        else:
            posterior = (known.log_weights - 0.5 * known.distances_sq(w)).softmax(1)
        return torch.addmm(w, posterior, known.centres, alpha=-1) @ known.whitening.T

    def well_scaled(self, like: Tensor) -> bool:
        """Whether distances in the type of ``like`` need no refinement (see :func:`mahalanobis_sq_refined`)."""
        return self.prepared(like).distances is mahalanobis_sq

    def log_prob(self, z: Tensor) -> Tensor:
        """log q(z) with its constant (N,): exp of it integrates to 1."""
        eigenvalues = self.parameters_.eigenvalues
        constant = 0.5 * (len(eigenvalues) * math.log(2 * math.pi) + float(eigenvalues.log().sum()))
        return -self.energy(z) - constant

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n points from q (n, D), float32: one component is chosen for each, and only that one is drawn."""
        require_number("n", n, least=1, most=2**40, whole=True)
        require(isinstance(generator, torch.Generator), "generator", generator, "a torch.Generator")
        width = len(self.parameters_.mean)
        noise = torch.randn(n, width, generator=generator, device=generator.device, dtype=torch.float32)
        known = self.prepared(noise)
        chosen = torch.multinomial(known.log_weights.exp(), n, replacement=True, generator=generator)
        with own_modes(noise.device), products(noise.device):
            return known.means[chosen] + noise @ known.colouring

    def state(self) -> dict[str, Tensor]:
        return {field.name: getattr(self.parameters_, field.name) for field in fields(MixtureParameters)}

    def load_state(self, state: dict[str, Tensor]) -> Self:
        """Take back what :meth:`state` gave.

        Raises:
            FileFormatError: a tensor is missing, or is not of the shape or among the values that the others call for.
        """
        self._statistics, self._parameters, self._prepared = None, MixtureParameters.from_state(state), {}
        return self
