"""Markov chains that follow an energy. How a chain moves is said in :mod:`outfield.energy.samplers`.

:func:`run_chains` is a pure function of the energy, the starting points, the sampler's settings, a projection and a random
generator. Global random state, grad mode and module modes are left as they were found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from outfield.config import require
from outfield.energy.projection import Projection, identity
from outfield.errors import InputError
from outfield.modes import own_modes

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
        generator: Where the numbers come from.
        moves: How many moves there will be.
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
    """For how many of the ``left`` moves noise is drawn together, when each takes this many ``numbers``."""
    return max(1, min(left, NUMBERS_AT_ONCE // numbers))


class Sampler(Protocol):
    """Settings of a chain and how it moves.

    A state is whatever the sampler wants to keep from one move to the next, such as the gradient where the chains are; its
    attribute ``z`` (N, D) says where they are.
    """

    @property
    def steps(self) -> int: ...

    def begin(self, energy: Energy, z: Tensor) -> Any:
        """The state of chains that stand at z (N, D)."""
        ...

    def move(self, energy: Energy, state: Any, t: int, project: Projection, random: Random) -> tuple[Any, Tensor]:
        """One transition at step t: the new state, and whether each proposal was accepted (N,), or () if none can fail."""
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
        energy: (N, D) → (N,), each row's energy a function of that row alone, differentiable. Autocast of the caller does
            not reach it; an energy that wants it enters it itself.
        start: Where the chains begin; it is projected first and not changed in place.
        sampler: :class:`Langevin`, :class:`MetropolisLangevin` or :class:`HamiltonianMonteCarlo`.
        project: Applied to the start and after every move.
        generator: Source of randomness, on the device of ``start``; None for a fresh one with seed 0.

    Returns:
        End points, detached, and the acceptance rate.

    Raises:
        InputError: ``start`` is not a finite floating matrix, the generator is on another device, or the energy is not what
            it must be.
    """
    _check_start(start)
    require(
        hasattr(sampler, "begin") and hasattr(sampler, "move"), "sampler", sampler, "one such as outfield.Langevin()"
    )
    for name, function in (("energy", energy), ("project", project)):
        require(callable(function), name, function, "a function of points (N, D)")
    if generator is None:
        generator = torch.Generator(start.device).manual_seed(0)
    require(isinstance(generator, torch.Generator), "generator", generator, "a torch.Generator")
    if generator.device.type != start.device.type:
        raise InputError(f"generator is on {generator.device}, but start on {start.device}; both must be on one device")
    with own_modes(start.device):
        return follow(energy, start.clone() if start.is_inference() else start, sampler, project, generator)


def follow(
    energy: Energy,
    start: Tensor,
    sampler: Sampler,
    project: Projection,
    generator: torch.Generator,
    random: Random | None = None,
) -> Chains:
    """:func:`run_chains` without a look at the start's values, which on a GPU would wait for them.

    Random numbers come from ``random`` where it is given, else from the generator.
    """
    z = project(start.detach())
    if z.shape != start.shape:
        raise InputError(f"project gave shape {tuple(z.shape)} for points {tuple(start.shape)}; it must keep the shape")
    accepted = []
    random = Random(generator, sampler.steps) if random is None else random
    state = sampler.begin(energy, z)
    for t in range(sampler.steps):
        state, taken = sampler.move(energy, state, t, project, random)
        accepted.append(taken.float().mean())
    return Chains(state.z, torch.stack(accepted).mean() if accepted else z.new_ones(()))


def energy_and_grad(energy: Energy, z: Tensor) -> tuple[Tensor, Tensor]:
    """E(z) (N,) and ∇E(z) (N, D), detached.

    Raises:
        InputError: the energy is not one number for each row, or does not depend on z differentiably.
    """
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        value = energy(leaf)
        if not isinstance(value, Tensor) or value.shape != z.shape[:1]:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"energy gave {got} for points {tuple(z.shape)}; it must give a tensor of shape ({len(z)},)"
            )
        (grad,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True) if value.requires_grad else (None,)
    if grad is None:
        raise InputError(
            "energy has no gradient at its points; it must be computed from them by differentiable operations"
        )
    return value.detach(), grad


COMPUTED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Types of numbers that PyTorch computes with; smaller floats it only stores."""


def _check_start(start: Tensor) -> None:
    dense = isinstance(start, Tensor) and start.layout == torch.strided and not (start.is_meta or start.is_nested)
    if not dense or start.dtype not in COMPUTED:
        got = f"{start.dtype} on {start.device}" if isinstance(start, Tensor) else type(start).__name__
        raise InputError(
            f"start must be a dense tensor of float64, float32, bfloat16 or float16 of shape (chains, dimensions); got {got}"
        )
    if start.ndim != 2 or not start.numel():
        raise InputError(f"start must have shape (chains, dimensions), at least (1, 1); got {tuple(start.shape)}")
    if not bool(torch.isfinite(start).all()):
        raise InputError("start has entries that are not finite; chains cannot begin there")
