"""How chains move: Langevin, Metropolis-adjusted Langevin, Hamiltonian Monte Carlo.

Each sampler is a frozen dataclass of settings with two pure functions, ``begin`` and ``move`` (see
:class:`outfield.energy.chains.Sampler`). Energy and gradient are carried from a move to the next, so that a move of Langevin
or of MALA costs one gradient, and a trajectory of HMC one for each of its leapfrog steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from outfield.config import configurable, require, require_number
from outfield.energy.chains import Energy, Projection, Random, energy_and_grad

MOST_STEPS = 10**9
LARGEST = 1e30
"""Step sizes above this leave what float32 can hold."""


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

    def move(
        self, energy: Energy, state: Evaluated, t: int, project: Projection, random: Random
    ) -> tuple[Evaluated, Tensor]:
        step_size = linear(self.step_size, t, self.steps)
        noise = random.normal(state.z)
        proposal = Evaluated.at(
            project(langevin_step(state.z, state.grad, step_size, math.sqrt(2 * step_size), noise)), energy
        )

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

    def move(
        self, energy: Energy, state: Evaluated, t: int, project: Projection, random: Random
    ) -> tuple[Evaluated, Tensor]:
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


def _metropolis(state: Evaluated, proposal: Evaluated, log_ratio: Tensor, random: Random) -> tuple[Evaluated, Tensor]:
    """Keep each proposal with probability min(1, exp(log_ratio)) (N,); a ratio that is not a number refuses it."""
    taken = random.uniform(state.z).log() < log_ratio
    z, grad = (
        torch.where(taken[:, None], new, old) for new, old in ((proposal.z, state.z), (proposal.grad, state.grad))
    )
    return Evaluated(z, torch.where(taken, proposal.energy, state.energy), grad), taken
