"""Markov chains that follow an energy: Langevin, Metropolis-adjusted Langevin, Hamiltonian Monte Carlo.

:func:`run_chains` is a pure function of the energy, the starting points, the sampler's settings, a projection and a random
generator. Global random state, grad mode and module modes are left as they were found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from outfield.config import configurable, require, require_number
from outfield.energy.projection import Projection, identity
from outfield.errors import InputError

Energy = Callable[[Tensor], Tensor]

NUMBERS_AT_ONCE = 2**22
"""Normal numbers drawn together for several moves."""


class Chains(NamedTuple):
    """Where chains ended (N, D), and the share of proposals accepted, a 0-d tensor (1 where none can be refused)."""

    ends: Tensor
    acceptance: Tensor


class Random:
    """Random numbers for the moves of chains; normal ones are drawn for several moves at a time, which suits a GPU.

    Args:
        generator: where they come from.
        moves: how many moves there will be.
    """

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
    """For how many of the ``left`` moves, of so many numbers each, noise is drawn together."""
    return max(1, min(left, NUMBERS_AT_ONCE // numbers))


class Sampler(Protocol):
    """Settings of a chain and how it moves."""

    @property
    def steps(self) -> int: ...

    def move(self, energy: Energy, z: Tensor, t: int, project: Projection, random: Random) -> tuple[Tensor, Tensor]:
        """One transition at step t: new points (N, D), and whether each proposal was accepted (N,)."""
        ...


def run_chains(
    energy: Energy,
    start: Tensor,
    sampler: Sampler,
    project: Projection = identity,
    generator: torch.Generator | None = None,
) -> Chains:
    """Run one chain from each row of ``start`` (N, D).

    Args:
        energy: (N, D) → (N,), each row's energy a function of that row alone, differentiable.
        start: where the chains begin; projected first, not changed in place.
        sampler: :class:`Langevin`, :class:`MetropolisLangevin` or :class:`HamiltonianMonteCarlo`.
        project: applied to the start and after every move.
        generator: source of randomness, on the device of ``start``; None for a fresh one with seed 0.

    Returns:
        End points, detached, and the acceptance rate.
    """
    if start.ndim != 2:
        raise InputError(f"start must have shape (chains, dimensions); got {tuple(start.shape)}")
    if generator is None:
        generator = torch.Generator(start.device).manual_seed(0)
    z, random = project(start.detach()), Random(generator, sampler.steps)
    accepted = []
    for t in range(sampler.steps):
        z, taken = sampler.move(energy, z, t, project, random)
        accepted.append(taken.float().mean())
    return Chains(z, torch.stack(accepted).mean() if accepted else z.new_ones(()))


def energy_and_grad(energy: Energy, z: Tensor) -> tuple[Tensor, Tensor]:
    """E(z) (N,) and ∇E(z) (N, D), detached."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        value = energy(leaf)
        (grad,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), grad


def langevin_step(z: Tensor, grad: Tensor, step_size: float, noise_std: float, noise: Tensor) -> Tensor:
    """z − α ∇E(z) + σ ξ."""
    return z - step_size * grad + noise_std * noise


def linear(ends: tuple[float, float], t: int, steps: int) -> float:
    """Value at step t of a straight line from ``ends[0]`` (t = 0) to ``ends[1]`` (t = steps − 1)."""
    return ends[0] if steps == 1 else ends[0] + (ends[1] - ends[0]) * t / (steps - 1)


def _check(steps: int, **schedules: tuple[float, float]) -> None:
    require_number("steps", steps, least=0, whole=True)
    for name, ends in schedules.items():
        require(isinstance(ends, tuple) and len(ends) == 2, name, ends, "a pair (first, last) of numbers")
        for end in ends:
            require_number(name, end, least=0)


@configurable
@dataclass(frozen=True)
class Langevin:
    """Unadjusted Langevin: z ← P(z − α_t ∇E(z) + σ_t ξ), ξ ~ N(0, I), α and σ on straight lines.

    σ is a standard deviation. (σ = √(2 α) makes exp(−E) stationary as α → 0; the paper chooses both freely.)

    Args:
        steps: length of the chain.
        step_size: α at the first and last step.
        noise_std: σ at the first and last step.
    """

    steps: int = 20
    step_size: tuple[float, float] = (1e-6, 1e-7)
    noise_std: tuple[float, float] = (1e-3, 1e-4)

    def __post_init__(self) -> None:
        _check(self.steps, step_size=self.step_size, noise_std=self.noise_std)

    def move(self, energy: Energy, z: Tensor, t: int, project: Projection, random: Random) -> tuple[Tensor, Tensor]:
        _, grad = energy_and_grad(energy, z)
        noise = random.normal(z)
        step_size, noise_std = linear(self.step_size, t, self.steps), linear(self.noise_std, t, self.steps)
        return project(langevin_step(z, grad, step_size, noise_std, noise)), z.new_ones(())


@configurable
@dataclass(frozen=True)
class MetropolisLangevin:
    """Langevin with σ = √(2 α) and a Metropolis test, so that exp(−E) is exactly stationary (MALA, Roberts & Tweedie 1996).

    With a projection other than the identity the test compares projected points and is no longer exact.

    Args:
        steps: number of proposals.
        step_size: α at the first and last step.
    """

    steps: int = 20
    step_size: tuple[float, float] = (1e-2, 1e-2)

    def __post_init__(self) -> None:
        _check(self.steps, step_size=self.step_size)

    def move(self, energy: Energy, z: Tensor, t: int, project: Projection, random: Random) -> tuple[Tensor, Tensor]:
        step_size = linear(self.step_size, t, self.steps)
        here, grad_here = energy_and_grad(energy, z)
        proposal = project(langevin_step(z, grad_here, step_size, math.sqrt(2 * step_size), random.normal(z)))
        there, grad_there = energy_and_grad(energy, proposal)

        def log_density(to: Tensor, at: Tensor, grad: Tensor) -> Tensor:
            return (
                -(to - at + step_size * grad).square().sum(1) / (4 * step_size) if step_size else torch.zeros_like(here)
            )

        log_ratio = here - there + log_density(z, proposal, grad_there) - log_density(proposal, z, grad_here)
        return _metropolis(z, proposal, log_ratio, random)


@configurable
@dataclass(frozen=True)
class HamiltonianMonteCarlo:
    """Leapfrog trajectories with fresh momenta and a Metropolis test (Neal 2011); exp(−E) is exactly stationary.

    With a projection other than the identity the end of a trajectory is projected and the test is no longer exact.

    Args:
        steps: number of trajectories.
        step_size: length of a leapfrog step in the first and last trajectory.
        leapfrog: leapfrog steps in a trajectory.
    """

    steps: int = 20
    step_size: tuple[float, float] = (1e-1, 1e-1)
    leapfrog: int = 5

    def __post_init__(self) -> None:
        _check(self.steps, step_size=self.step_size)
        require_number("leapfrog", self.leapfrog, least=1, whole=True)

    def move(self, energy: Energy, z: Tensor, t: int, project: Projection, random: Random) -> tuple[Tensor, Tensor]:
        step_size = linear(self.step_size, t, self.steps)
        momentum = random.normal(z)
        here, grad = energy_and_grad(energy, z)
        start = here + 0.5 * momentum.square().sum(1)
        proposal = z
        for _ in range(self.leapfrog):
            momentum = momentum - 0.5 * step_size * grad
            proposal = proposal + step_size * momentum
            _, grad = energy_and_grad(energy, proposal)
            momentum = momentum - 0.5 * step_size * grad
        proposal = project(proposal)
        with torch.no_grad():
            there = energy(proposal)
        return _metropolis(z, proposal, start - there - 0.5 * momentum.square().sum(1), random)


def _metropolis(z: Tensor, proposal: Tensor, log_ratio: Tensor, random: Random) -> tuple[Tensor, Tensor]:
    """Keep the proposal with probability min(1, exp(log_ratio)); a non-finite ratio refuses it."""
    taken = random.uniform(z).log() < log_ratio
    return torch.where(taken[:, None], proposal, z), taken
