"""Markov chains that follow an energy: where points may live, how chains are run and move, where those of training begin.

Projections are applied to chains after every step and to features once. Post-ReLU features, L2-normalised, lie on the
non-negative part of the unit sphere; a chain that may leave it teaches the network "norm ≠ 1" and nothing else.

A sampler (Langevin, MALA, HMC) is a frozen dataclass of settings with two pure functions, ``begin`` and ``move``. Energy and
gradient are carried from a move to the next, so that a move of Langevin or of MALA costs one gradient, and a trajectory of HMC
one for each of its leapfrog steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from outfield.config import configurable, require, require_number
from outfield.errors import InputError
from outfield.modes import own_modes

if TYPE_CHECKING:
    from outfield.energy.priors import Prior

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


Energy = Callable[[Tensor], Tensor]
Points = Callable[[Tensor, torch.Generator], Tensor]

NUMBERS_AT_ONCE = 2**22  # normal numbers drawn together for several moves
MOST_STEPS = 10**9
LARGEST = 1e30  # step sizes above this leave what float32 can hold
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Chains(NamedTuple):
    """Where chains ended (N, D), and the share of proposals accepted, a 0-d tensor (1 where none can be refused)."""

    ends: Tensor
    acceptance: Tensor


class Random:
    """Random numbers for a number of moves; normal ones are drawn for several moves at a time, which suits a GPU."""

    def __init__(self, generator: torch.Generator, moves: int) -> None:
        self.generator = generator
        self._left = moves
        self._drawn: list[Tensor] = []

    def normal(self, z: Tensor) -> Tensor:
        """The next move's standard normal numbers, in the shape, type and place of z."""
        if not self._drawn:
            count = moves_at_once(self._left, z.numel())
            self._left -= count
            block = torch.randn(count, *z.shape, generator=self.generator, device=z.device, dtype=z.dtype)
            self._drawn = list(block)[::-1]
        return self._drawn.pop()

    def uniform(self, z: Tensor) -> Tensor:
        """Numbers from [0, 1), one for each row of z (N, D)."""
        return torch.rand(len(z), generator=self.generator, device=z.device, dtype=z.dtype)


def moves_at_once(left: int, numbers: int) -> int:
    """For how many of the ``left`` moves noise is drawn together, when each takes this many ``numbers``."""
    return max(1, min(left, NUMBERS_AT_ONCE // numbers))


class Sampler(Protocol):
    """Settings of a chain and how it moves. A state is what it keeps between moves; its ``z`` (N, D) says where chains are."""

    @property
    def steps(self) -> int: ...

    def begin(self, energy: Energy, z: Tensor) -> Any:
        """The state of chains that stand at z (N, D)."""

    def move(self, energy: Energy, state: Any, t: int, project: Projection, random: Random) -> tuple[Any, Tensor]:
        """One transition at step t: the new state, and whether each proposal was accepted (N,), or () if none can fail."""


def run_chains(
    energy: Energy,
    start: Tensor,
    sampler: Sampler,
    project: Projection = identity,
    generator: torch.Generator | None = None,
) -> Chains:
    """Run one chain from each row of ``start`` (N, D); global random state, grad mode and module modes stay as they are.

    Args:
        energy: (N, D) → (N,), each row's energy a function of that row alone, differentiable. Autocast of the caller does
            not reach it; an energy that wants it enters it itself.
        start: Where the chains begin; it is projected first and not changed in place.
        sampler: :class:`Langevin`, :class:`MetropolisLangevin` or :class:`HamiltonianMonteCarlo`.
        project: Applied to the start and after every move.
        generator: Source of randomness, on the device of ``start``; None for a fresh one with seed 0.

    Returns:
        End points, detached, and the acceptance rate.

    Raises:
        InputError: ``start`` is not a finite floating matrix, or the energy is not what it must be.
    """
    plain = isinstance(start, Tensor) and not (start.is_nested or start.is_meta) and start.layout == torch.strided
    if not plain or start.dtype not in FLOATS or start.ndim != 2 or not start.numel():
        raise InputError(f"start must be a dense floating tensor (chains, dimensions), not empty; got {kind_of(start)}")
    if not bool(torch.isfinite(start).all()):
        raise InputError("start has entries that are not finite; chains cannot begin there")
    good = hasattr(sampler, "begin") and hasattr(sampler, "move")
    require(good, "sampler", sampler, "one such as outfield.Langevin()")
    if generator is None:
        generator = torch.Generator(start.device).manual_seed(0)
    with own_modes(start.device):
        return follow(energy, start.clone() if start.is_inference() else start, sampler, project, generator)


def follow(energy: Energy, start: Tensor, sampler: Sampler, project: Projection, generator: torch.Generator) -> Chains:
    """:func:`run_chains` without a look at the start's values, which on a GPU would wait for them."""
    z = project(start.detach())
    accepted = []
    random = Random(generator, sampler.steps)
    state = sampler.begin(energy, z)
    for t in range(sampler.steps):
        state, taken = sampler.move(energy, state, t, project, random)
        accepted.append(taken.float().mean())
    return Chains(state.z, torch.stack(accepted).mean() if accepted else z.new_ones(()))


def energy_and_grad(energy: Energy, z: Tensor) -> tuple[Tensor, Tensor]:
    """E(z) (N,) and ∇E(z) (N, D), detached; the energy must be one number for each row, and differentiable."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        value = energy(leaf)
        if not isinstance(value, Tensor) or value.shape != z.shape[:1]:
            raise InputError(f"energy gave {kind_of(value)} for {tuple(z.shape)}; it must give shape ({len(z)},)")
        (grad,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True) if value.requires_grad else (None,)
    if grad is None:
        raise InputError("energy has no gradient at its points; it must be computed by differentiable operations")
    return value.detach(), grad


def kind_of(value: object) -> str:
    """What was given, for a message: type and shape of a tensor, the class of anything else."""
    if not isinstance(value, Tensor) or value.is_nested:
        return type(value).__name__
    return f"{value.dtype} of shape {tuple(value.shape)}, {str(value.layout).removeprefix('torch.')}, on {value.device}"


class Place(NamedTuple):
    """Where chains are (N, D)."""

    z: Tensor


class Evaluated(NamedTuple):
    """Where chains are (N, D), E (N,) and ∇E (N, D) there."""

    z: Tensor
    energy: Tensor
    grad: Tensor

    @classmethod
    def at(cls, z: Tensor, energy: Energy) -> Evaluated:
        return cls(z, *energy_and_grad(energy, z))


Tried = tuple[Evaluated, Tensor]  # the new state, and whether each proposal was accepted (N,)


def langevin_step(z: Tensor, grad: Tensor, step_size: float, noise_std: float, noise: Tensor) -> Tensor:
    """z − α ∇E(z) + σ ξ."""
    return z - step_size * grad + noise_std * noise


def linear(ends: tuple[float, float], t: int, steps: int) -> float:
    """Value at step t of a straight line from ``ends[0]`` (t = 0) to ``ends[1]`` (t = steps − 1)."""
    return ends[0] if steps == 1 else ends[0] + (ends[1] - ends[0]) * t / (steps - 1)


def _check(steps: int, **schedules: tuple[float, float]) -> None:
    require_number("steps", steps, least=0, most=MOST_STEPS, whole=True)
    for name, ends in schedules.items():
        require(isinstance(ends, tuple) and len(ends) == 2, name, ends, "a pair (first, last) of numbers")
        for end in ends:
            require_number(name, end, least=0, most=LARGEST)


@configurable
@dataclass(frozen=True)
class Langevin:
    """Unadjusted Langevin: z ← P(z − α_t ∇E(z) + σ_t ξ), ξ ~ N(0, I), α and σ on straight lines.

    σ is a standard deviation. (σ = √(2 α) makes exp(−E) stationary as α → 0; the paper chooses both freely.)

    Args:
        steps: Length of the chain.
        step_size: α at the first and last step.
        noise_std: σ at the first and last step.
    """

    steps: int = 20
    step_size: tuple[float, float] = (1e-6, 1e-7)
    noise_std: tuple[float, float] = (1e-3, 1e-4)

    def __post_init__(self) -> None:
        _check(self.steps, step_size=self.step_size, noise_std=self.noise_std)

    def begin(self, energy: Energy, z: Tensor) -> Place:
        return Place(z)

    def move(self, energy: Energy, state: Place, t: int, project: Projection, random: Random) -> tuple[Place, Tensor]:
        z = state.z
        _, grad = energy_and_grad(energy, z)
        noise = random.normal(z)
        step_size, noise_std = linear(self.step_size, t, self.steps), linear(self.noise_std, t, self.steps)
        return Place(project(langevin_step(z, grad, step_size, noise_std, noise))), z.new_ones(())


class Adjusted:
    """Base of the samplers with a Metropolis test, which need the energy beside its gradient."""

    def begin(self, energy: Energy, z: Tensor) -> Evaluated:
        return Evaluated.at(z, energy)


@configurable
@dataclass(frozen=True)
class MetropolisLangevin(Adjusted):
    """Langevin with σ = √(2 α) and a Metropolis test, so that exp(−E) is exactly stationary (MALA, Roberts & Tweedie 1996).

    With a projection other than the identity the test compares projected points and is no longer exact.

    Args:
        steps: Number of proposals.
        step_size: α at the first and last step.
    """

    steps: int = 20
    step_size: tuple[float, float] = (1e-2, 1e-2)

    def __post_init__(self) -> None:
        _check(self.steps, step_size=self.step_size)

    def move(self, energy: Energy, state: Evaluated, t: int, project: Projection, random: Random) -> Tried:
        step_size = linear(self.step_size, t, self.steps)
        noise = random.normal(state.z)
        moved = langevin_step(state.z, state.grad, step_size, math.sqrt(2 * step_size), noise)
        proposal = Evaluated.at(project(moved), energy)

        def log_density(to: Tensor, at: Evaluated) -> Tensor:
            """Of proposing ``to`` from ``at``, up to a constant (N,)."""
            if not step_size:
                return torch.zeros_like(at.energy)
            return -(to - at.z + step_size * at.grad).square().sum(1) / (4 * step_size)

        log_ratio = state.energy - proposal.energy + log_density(state.z, proposal) - log_density(proposal.z, state)
        return _metropolis(state, proposal, log_ratio, random)


@configurable
@dataclass(frozen=True)
class HamiltonianMonteCarlo(Adjusted):
    """Leapfrog trajectories with fresh momenta and a Metropolis test (Neal 2011); exp(−E) is exactly stationary.

    With a projection other than the identity the end of a trajectory is projected, which costs one more gradient, and the
    test is no longer exact.

    Args:
        steps: Number of trajectories.
        step_size: Length of a leapfrog step in the first and last trajectory.
        leapfrog: Leapfrog steps in a trajectory.
    """

    steps: int = 20
    step_size: tuple[float, float] = (1e-1, 1e-1)
    leapfrog: int = 5

    def __post_init__(self) -> None:
        _check(self.steps, step_size=self.step_size)
        require_number("leapfrog", self.leapfrog, least=1, most=MOST_STEPS, whole=True)

    def move(self, energy: Energy, state: Evaluated, t: int, project: Projection, random: Random) -> Tried:
        step_size = linear(self.step_size, t, self.steps)
        momentum = random.normal(state.z)
        total = state.energy + 0.5 * momentum.square().sum(1)
        proposal = state
        for _ in range(self.leapfrog):
            momentum = momentum - 0.5 * step_size * proposal.grad
            proposal = Evaluated.at(proposal.z + step_size * momentum, energy)
            momentum = momentum - 0.5 * step_size * proposal.grad
        projected = project(proposal.z)
        if projected is not proposal.z:
            proposal = Evaluated.at(projected, energy)
        return _metropolis(state, proposal, total - proposal.energy - 0.5 * momentum.square().sum(1), random)


def _metropolis(state: Evaluated, proposal: Evaluated, log_ratio: Tensor, random: Random) -> Tried:
    """Keep each proposal with probability min(1, exp(log_ratio)) (N,); a ratio that is not a number refuses it."""
    taken = random.uniform(state.z).log() < log_ratio
    pairs = (proposal.z, state.z), (proposal.grad, state.grad)
    z, grad = (torch.where(taken[:, None], new, old) for new, old in pairs)
    return Evaluated(z, torch.where(taken, proposal.energy, state.energy), grad), taken


class Start:
    """Where the chains of a training step begin: N points for N real rows (N, D), made by ``points(real, generator)``.

    With a ``size``, that many chain ends are kept, and a chain begins at one of them, or anew with probability
    ``fresh_share``: persistent contrastive divergence (Tieleman 2008).
    """

    def __init__(self, points: Points, size: int = 0, fresh_share: float = 1.0) -> None:
        self._points, self.size, self.fresh_share, self.remembers = points, size, fresh_share, size > 0
        self._buffer: Tensor | None = None
        self._chosen: Tensor | None = None

    def begin(self, real: Tensor, generator: torch.Generator) -> Tensor:
        """Starting points (N, D) for a batch of real rows (N, D)."""
        new = self._points(real, generator)
        if not self.remembers:
            return new
        n, device = len(real), real.device
        if self._buffer is None:
            self._buffer = new[torch.arange(max(self.size, n), device=device) % n]
        self._chosen = torch.randperm(len(self._buffer), generator=generator, device=device)[:n]
        renew = torch.rand(n, generator=generator, device=device, dtype=torch.float32) < self.fresh_share
        return torch.where(renew[:, None], new, self._buffer[self._chosen])

    def end(self, ends: Tensor) -> None:
        """Told where the chains that it began ended."""
        if self._buffer is not None and self._chosen is not None:
            self._buffer[self._chosen] = ends

    def state(self) -> dict[str, Tensor]:
        return {} if self._buffer is None else {"start.buffer": self._buffer}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._buffer = state.get("start.buffer")


STARTS = ("auto", "prior", "normal", "uniform", "data", "mixed", "replay")


def make_start(name: str, prior: Prior | None, replay_size: int, replay_fresh: float) -> Start:
    """The start of that name.

    - "prior": z₀ ~ q (the paper's correction); "normal": z₀ ~ N(0, I) (the paper's EBM).
    - "uniform": in the unit cube, which chains that live on the sphere see as its non-negative part.
    - "data": the real batch, contrastive divergence (Hinton 2002).
    - "mixed": the mean of a real row and the next one of its batch, which is shuffled: between two classes, mostly. Samples of a
      prior betray themselves by more than being far from the data (``docs/correction.md``); these have the zeros and the
      coordinates of real rows.
    - "replay": ends of earlier chains. "auto", and its new chains: the prior where there is one, else normal.
    """
    memory = (replay_size, replay_fresh) if name == "replay" else ()
    if name in ("auto", "replay"):
        name = "normal" if prior is None else "prior"
    known = name != "prior" or prior is not None
    require(known, "start", name, "auto, normal, uniform, data, mixed or replay: there is no prior here")
    points: dict[str, Points] = {
        "prior": lambda real, g: cast("Prior", prior).sample(len(real), g).to(real.dtype),
        "normal": lambda real, g: torch.randn(real.shape, generator=g, device=real.device, dtype=real.dtype),
        "uniform": lambda real, g: torch.rand(real.shape, generator=g, device=real.device, dtype=real.dtype),
        "data": lambda real, g: real,
        "mixed": lambda real, g: (real + real.roll(1, 0)) / 2,
    }
    return Start(points[name], *memory)
