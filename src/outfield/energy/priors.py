"""Priors, which a network corrects; the paper's is a mixture of class-conditional Gaussians with one covariance (appendix A.3).

q(z) = Σ_c π_c N(z; μ_c, Σ),  π_c = N_c / N,  μ_c = mean of class c,  Σ = (1/N) Σ_c Σ_{i: y_i = c} (z_i − μ_c)(z_i − μ_c)ᵀ.

Σ = V diag(λ) Vᵀ is decomposed once, and every distance is taken in whitened coordinates w = (z − m) V diag(λ)^(−1/2), where all
classes are unit balls: one (N, D)·(D, D) product and one (N, D)·(D, K) product, whatever K is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from outfield.config import arguments, configurable, require, require_number
from outfield.energy.moments import ClassStatistics
from outfield.errors import FileFormatError, InputError, NotFittedError
from outfield.modes import in_full, on_one_core, own_modes, products


class Prior(ABC):
    """A density q(z) ∝ exp(−E(z)). Constructor arguments are settings; what is learned ends in ``_``.

    To add one, subclass this, mark it with :func:`outfield.config.configurable`, and pass an instance to
    ``EnergyCorrected(prior=...)``.
    """

    needs_labels: bool = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in arguments(self).items())})"

    @abstractmethod
    def fit(self, z: Tensor, labels: Tensor | None) -> Self:
        """Learn from rows z (N, D) and, where they are used, labels (N,)."""

    @abstractmethod
    def energy(self, z: Tensor) -> Tensor:
        """−log q up to a constant (N,), differentiable in z (N, D), computed in z's type on z's device."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n points drawn from q (n, D), on the generator's device. Priors without this start chains from data."""
        raise InputError(f"{type(self).__name__} cannot be sampled; start its chains from data (start='data')")

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What was learned, as tensors."""

    @abstractmethod
    def load_state(self, state: dict[str, Tensor]) -> Self:
        """Take back what :meth:`state` gave."""


TOLERANCE = 1e-2
"""Rounding of a squared distance above which the slower, refined formula is taken; real features stay far below it."""


def mahalanobis_sq(w: Tensor, centres: Tensor, squares: Tensor) -> Tensor:
    """‖w_i − m_c‖² (N, K) of whitened rows w (N, D) to whitened class means m_c (K, D), whose ``squares`` are ‖m_c‖² (K,).

    Expanded into ‖w‖² − 2 w·m + ‖m‖², so that the work is one matrix product; rounding below 0 is cut off.
    """
    cross = torch.addmm(squares, w, centres.T, alpha=-2)
    return (cross + w.square().sum(1, keepdim=True)).clamp_min(0)


def mahalanobis_sq_refined(w: Tensor, centres: Tensor, squares: Tensor) -> Tensor:
    """The same where ‖m‖² is so large that the expansion's rounding would drown small distances.

    With the nearest class a found by the expansion and u = w − m_a, ‖w − m_c‖² = ‖u‖² − 2 u·(m_c − m_a) + ‖m_c − m_a‖², whose
    terms are small for the classes near w.
    """
    nearest = mahalanobis_sq(w.detach(), centres, squares).argmin(1)
    u = w - centres[nearest]
    along = u @ centres.T
    apart = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist").square()
    difference = along - along.gather(1, nearest[:, None])
    return (u.square().sum(1, keepdim=True) - 2 * difference + apart[nearest]).clamp_min(0)


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
        names = [field.name for field in fields(cls)]
        if missing := sorted(set(names) - set(state)):
            raise FileFormatError(f"the mixture's state lacks {', '.join(missing)}")
        k, d = state["log_weights"].numel(), state["mean"].numel()
        for name, shape in zip(names, [(k,), (k,), (k, d), (d,), (d,), (d, d)], strict=True):
            value = state[name]
            kind = value.dtype == torch.int64 if name == "classes" else value.is_floating_point()
            if not (kind and tuple(value.shape) == shape and value.numel() and bool(torch.isfinite(value).all())):
                raise FileFormatError(f"the mixture's {name} must hold finite numbers of shape {shape}; it does not")
        if not bool((state["eigenvalues"] > 0).all()):
            raise FileFormatError("the mixture's eigenvalues must be above 0; they are not")
        return cls(**{name: state[name] if name == "classes" else state[name].double() for name in names})


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
        """Learned parameters; the covariance is decomposed when they are first used."""
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
            raise InputError(f"z has shape {tuple(z.shape)}; this mixture takes rows (N, {len(known.mean)})")
        return known.whiten(z)

    @in_full
    def mahalanobis_sq(self, z: Tensor) -> Tensor:
        """d_c²(z) for every class (N, K)."""
        return self.prepared(z).distances_sq(self.whiten(z))

    @in_full
    def energy(self, z: Tensor) -> Tensor:
        """E(z) = −log Σ_c π_c exp(−½ d_c²(z)) (N,)."""
        return self.prepared(z).energy(self.whiten(z))

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
        self._statistics, self._parameters, self._prepared = None, MixtureParameters.from_state(state), {}
        return self
