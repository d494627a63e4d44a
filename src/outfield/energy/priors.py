"""Priors, which a network corrects; the paper's is a mixture of class-conditional Gaussians with one covariance (appendix A.3).

q(z) = Σ_c π_c N(z; μ_c, Σ),  π_c = N_c / N,  μ_c = mean of class c,  Σ = (1/N) Σ_c Σ_{i: y_i = c} (z_i − μ_c)(z_i − μ_c)ᵀ.

Counts, means and scatter of the classes are gathered in one pass over pieces in float64. On the CPU each worker takes every
T-th piece and runs its operations on one thread: a piece small enough for the cache is normalised, converted, centred and
multiplied before the next one arrives, and no operation waits for another worker.

Σ = V diag(λ) Vᵀ is decomposed once, and every distance is taken in whitened coordinates w = (z − m) V diag(λ)^(−1/2), where all
classes are unit balls: one (N, D)·(D, D) product and one (N, D)·(D, K) product, whatever K is.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from outfield.config import arguments, configurable, require, require_number
from outfield.energy.chains import identity, kind_of
from outfield.errors import FileFormatError, InputError, NotFittedError
from outfield.modes import can_limit, in_full, limited_worker, on_one_core, own_modes, products

PIECE_ROWS = 512
# A piece on the CPU holds at least this many rows and this many numbers: 2 MB in float64, or more where rows are wide
PIECE_NUMBERS = PIECE_ROWS * 512
GPU_ROWS = 8192
STRIP = 128  # columns of the scatter computed together; its lower triangle is not computed
AHEAD = 4  # pieces that may wait for each worker
# rounding of a squared distance above which the slower, refined formula is taken; real features stay far below it
TOLERANCE = 1e-2

Prepare = Callable[[Tensor], Tensor]


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
        """Statistics of one batch: z (N, D) of any floating type, labels (N,).

        Raises:
            InputError: z is not a finite floating matrix with rows, or labels are not one whole number for each.
        """
        _check(z, labels)
        size = piece_rows(z.shape[1], z.device)
        return cls.over(zip(z.split(size), labels.split(size), strict=True), workers_for(len(z), z.shape[1], z.device))

    @classmethod
    def over(
        cls, pieces: Iterable[tuple[Tensor, Tensor]], workers: int = 1, prepare: Prepare = identity
    ) -> ClassStatistics:
        """Statistics of all pieces together, each seen once; memory does not grow with their number.

        Equal input gives equal bits for the same number of workers.

        Args:
            pieces: Rows (n, D) and labels (n,); at least one piece. See :func:`piece_rows` for a good n.
            workers: Number of threads that share the work, see :func:`workers_for`.
            prepare: What is done to the rows of a piece first, in its worker: (n, D) → z (n, D).

        Raises:
            InputError: there is no piece, or one does not hold finite rows and a label for each.
        """
        sums = [_Sums(prepare) for _ in range(workers)]
        if workers == 1:
            with torch.inference_mode(False):
                for rows, labels in pieces:
                    sums[0].add(rows, labels)
        else:  # piece i goes to worker i mod T, a few of them waiting for each; the first error is raised here
            waiting: deque[Future[None]] = deque()
            with ExitStack() as stack:
                pools = [stack.enter_context(limited_worker("moments")) for _ in sums]
                for i, (rows, labels) in enumerate(pieces):
                    if len(waiting) == AHEAD * workers:
                        waiting.popleft().result()
                    waiting.append(pools[i % workers].submit(sums[i % workers].add, rows, labels))
                for one in waiting:
                    one.result()
        parts = [part.statistics() for part in sums if not part.empty]
        if not parts:
            raise InputError("there are no pieces to take statistics of; at least one is needed")
        whole = functools.reduce(ClassStatistics.merge, parts)
        if not bool(torch.isfinite(whole.means).all() & torch.isfinite(whole.scatter).all()):
            raise InputError("rows hold values that are not finite, or whose squares are not; all must be finite")
        return whole

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
        scatter = self.scatter + other.scatter + both.T @ delta
        return ClassStatistics(classes, total, means_a + share[:, None] * delta, scatter)

    def _on(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Counts and means laid out for a superset of this batch's classes (0 where a class is absent)."""
        index = torch.searchsorted(classes, self.classes)
        counts = self.counts.new_zeros(len(classes)).index_copy_(0, index, self.counts)
        means = self.means.new_zeros(len(classes), self.means.shape[1]).index_copy_(0, index, self.means)
        return counts, means


class _Sums:
    """Sums about one fixed point a_c per class, the mean of the rows of c in the first piece that has any.

    With t_c = Σ_i (z_i − a_c) over class c, one pass gives S = Σ_i (z_i − a_c)(z_i − a_c)ᵀ, and afterwards
    μ_c = a_c + t_c / N_c and scatter = S − Σ_c t_c t_cᵀ / N_c. Little cancels: a_c is a mean of rows of the class, so that
    ‖a_c − μ_c‖² ≤ N_c tr Σ_c at the worst and about tr Σ_c / n for n rows drawn at random, whatever offset rows share.
    """

    def __init__(self, prepare: Prepare) -> None:
        self.prepare = prepare
        self.empty = True

    def add(self, rows: Tensor, labels: Tensor) -> None:
        _check(rows, labels)
        z = self.prepare(rows).double()
        found, index = labels.to(z.device).unique(return_inverse=True)
        if self.empty:  # tables without a class, on the device of z
            self.classes, self.counts, self.points, self.totals = (
                found[:0], z.new_zeros(0), z[:0].clone(), z[:0].clone(),
            )  # fmt: skip
            self.squares, self.empty = z.new_zeros(z.shape[1], z.shape[1]), False
        if z.shape[1] != (width := self.totals.shape[1]):
            raise InputError(f"rows have {z.shape[1]} columns, but rows before them {width}; they must agree")
        fresh = ~torch.isin(found, self.classes)
        if bool(fresh.any()):
            sums = z.new_zeros(len(found), width).index_add_(0, index, z)
            self._meet(found[fresh], (sums / torch.bincount(index, minlength=len(found))[:, None])[fresh])
        slots = torch.searchsorted(self.classes, found)[index]
        centred = self.points[slots]
        torch.sub(z, centred, out=centred)
        self.counts += torch.bincount(slots, minlength=len(self.classes))
        self.totals.index_add_(0, slots, centred)
        for i in range(0, len(self.squares), STRIP):
            self.squares[i : i + STRIP, i:].addmm_(centred[:, i : i + STRIP].T, centred[:, i:])

    def _meet(self, classes: Tensor, points: Tensor) -> None:
        """Make room for new classes (k,) and their fixed points (k, D), in ascending order of classes."""
        self.classes, order = torch.cat([self.classes, classes]).sort()
        self.points = torch.cat([self.points, points])[order]
        self.totals = torch.cat([self.totals, torch.zeros_like(points)])[order]
        self.counts = torch.cat([self.counts, self.counts.new_zeros(len(classes))])[order]

    def statistics(self) -> ClassStatistics:
        """What the sums say, each class about its own mean."""
        away = self.totals / self.counts[:, None]
        upper = self.squares.triu()
        scatter = upper + upper.triu(1).T - away.T @ self.totals
        return ClassStatistics(self.classes, self.counts, self.points + away, scatter)


def _check(rows: Tensor, labels: Tensor) -> None:
    """Refuse a piece that is not rows (n, D) and labels (n,), at least one."""
    if not isinstance(rows, Tensor) or not rows.is_floating_point() or rows.ndim != 2 or not rows.numel():
        raise InputError(f"rows must be a floating tensor (samples, width), not empty; got {kind_of(rows)}")
    kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if not isinstance(labels, Tensor) or labels.dtype not in kinds or labels.shape != rows.shape[:1]:
        raise InputError(f"labels must be whole numbers, a tensor of shape ({len(rows)},); got {kind_of(labels)}")


def piece_rows(width: int, device: torch.device) -> int:
    """Rows of a piece that keep this device busy: on the CPU as many as stay in its cache."""
    return max(PIECE_ROWS, PIECE_NUMBERS // width) if device.type == "cpu" else GPU_ROWS


def workers_for(rows: int, width: int, device: torch.device) -> int:
    """Threads worth starting for this many rows: one for a GPU, or where workers cannot be kept to one core each."""
    if device.type != "cpu" or not can_limit():
        return 1
    return max(1, min(torch.get_num_threads(), rows // piece_rows(width, device)))


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
    """What the mixture is made of, float64 (classes int64)."""

    classes: Tensor  # labels (K,)
    log_weights: Tensor  # log π_c (K,)
    means: Tensor  # μ_c (K, D)
    mean: Tensor  # Σ_c π_c μ_c (D,), the origin of the whitened coordinates
    eigenvalues: Tensor  # λ (D,), ascending, floored
    eigenvectors: Tensor  # V (D, D), Σ = V diag(λ) Vᵀ

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
        k, d = state["log_weights"].numel(), state["mean"].numel()
        shapes = {"classes": (k,), "log_weights": (k,), "means": (k, d), "mean": (d,), "eigenvalues": (d,)}
        shapes["eigenvectors"] = (d, d)
        for name, shape in shapes.items():
            value = state[name]
            kind = value.dtype == torch.int64 if name == "classes" else value.is_floating_point()
            if not (kind and tuple(value.shape) == shape and value.numel()):
                raise FileFormatError(f"the mixture's {name} must be numbers of shape {shape}; it is {kind_of(value)}")
        if not bool((state["eigenvalues"] > 0).all()):
            raise FileFormatError("the mixture's eigenvalues must be above 0; they are not")
        return cls(**{name: state[name] if name == "classes" else state[name].double() for name in shapes})


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
        width = len(self.parameters_.mean)
        noise = torch.randn(n, width, generator=generator, device=generator.device, dtype=torch.float32)
        known = self.prepared(noise)
        chosen = torch.multinomial(known.log_weights.exp(), n, replacement=True, generator=generator)
        with own_modes(noise.device), products(noise.device):
            return known.means[chosen] + noise @ known.colouring

    def state(self) -> dict[str, Tensor]:
        return dict(vars(self.parameters_))

    def load_state(self, state: dict[str, Tensor]) -> Self:
        self._statistics, self._parameters, self._prepared = None, MixtureParameters.from_state(state), {}
        return self
