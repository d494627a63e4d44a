"""Energies: networks that map a point to one number, and their sum with a prior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from outfield.config import configurable, require_number
from outfield.energy.priors.prior import Prior


class Network(Protocol):
    """A recipe for the network inside an energy."""

    def build(self, width: int, seed: int) -> nn.Module:
        """A fresh network (N, width) → (N, 1); equal seeds give equal weights."""
        ...


@configurable
@dataclass(frozen=True)
class MLP:
    """width → hidden, ``depth`` layers hidden → hidden, → 1, LeakyReLU between, PyTorch's default initialisation."""

    hidden: int = 1024
    depth: int = 4
    slope: float = 0.2

    def __post_init__(self) -> None:
        require_number("hidden", self.hidden, least=1, whole=True)
        require_number("depth", self.depth, least=0, whole=True)
        require_number("slope", self.slope)

    def build(self, width: int, seed: int) -> nn.Module:
        return _seeded(seed, lambda: nn.Sequential(*self._layers(width)))

    def _layers(self, width: int) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Linear(width, self.hidden), nn.LeakyReLU(self.slope)]
        for _ in range(self.depth):
            layers += [nn.Linear(self.hidden, self.hidden), nn.LeakyReLU(self.slope)]
        return [*layers, nn.Linear(self.hidden, 1)]


@configurable
@dataclass(frozen=True)
class SineMLP:
    """sin and cos of random projections, then ``depth`` LeakyReLU layers: for low-dimensional data with fine structure.

    A plain network on raw 2-D coordinates learns narrow arms far too slowly; ``scale`` is the standard deviation of the
    projections' frequencies, in radians per unit length.
    """

    hidden: int = 64
    depth: int = 3
    frequencies: int = 64
    scale: float = 3.0

    def build(self, width: int, seed: int) -> nn.Module:
        return _seeded(seed, lambda: nn.Sequential(*self._layers(width)))

    def _layers(self, width: int) -> list[nn.Module]:
        layers: list[nn.Module] = [_Sines(width, self.frequencies, self.scale)]
        inputs = 2 * self.frequencies
        for _ in range(self.depth):
            layers += [nn.Linear(inputs, self.hidden), nn.LeakyReLU(0.2)]
            inputs = self.hidden
        return [*layers, nn.Linear(inputs, 1)]


class _Sines(nn.Module):
    """z (N, D) → [sin(z B), cos(z B)] (N, 2F), B fixed."""

    def __init__(self, width: int, frequencies: int, scale: float) -> None:
        super().__init__()
        self.directions: Tensor
        self.register_buffer("directions", torch.randn(width, frequencies) * scale)

    def forward(self, z: Tensor) -> Tensor:
        angles = z @ self.directions
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class CorrectedEnergy(nn.Module):
    """E(z) = E_θ(z) + E_prior(z) / T_prior,  with the residual E_θ(z) = network(z) / T.

    Without a prior it is an energy-based model on its own.

    Args:
        network: (N, D) → (N, 1).
        temperature: T.
        prior: a fitted prior, or None.
        prior_temperature: T_prior, stated for the prior's own energy.
    """

    def __init__(
        self, network: nn.Module, temperature: float = 1.0, prior: Prior | None = None, prior_temperature: float = 1.0
    ) -> None:
        super().__init__()
        for name, value in (("temperature", temperature), ("prior_temperature", prior_temperature)):
            require_number(name, value, above=0)
        self.network = network
        self.temperature = temperature
        self.prior = prior
        self.prior_temperature = prior_temperature

    def residual(self, z: Tensor) -> Tensor:
        """E_θ(z) (N,)."""
        energy: Tensor = self.network(z).squeeze(-1) / self.temperature
        return energy

    def forward(self, z: Tensor) -> Tensor:
        """E(z) (N,)."""
        if self.prior is None:
            return self.residual(z)
        return self.residual(z) + self.prior.energy(z) / self.prior_temperature


@dataclass(frozen=True)
class Layers:
    """The linear layers of a network, the last one → 1, with LeakyReLU of one slope between them."""

    linears: list[nn.Linear]
    slope: float


def layers_of(network: nn.Module) -> Layers | None:
    """The layers if the network is Linear, LeakyReLU, …, Linear → 1, all float32 and trained; else None."""
    modules = list(network) if isinstance(network, nn.Sequential) else []
    linears, activations = modules[::2], modules[1::2]
    if not activations or not all(type(m) is nn.Linear and m.bias is not None for m in linears):
        return None
    slopes = {m.negative_slope for m in activations if type(m) is nn.LeakyReLU}
    if (
        len(linears) != len(activations) + 1
        or len(slopes) != 1
        or not all(type(m) is nn.LeakyReLU for m in activations)
    ):
        return None
    plain = all(p.dtype == torch.float32 and p.requires_grad for p in network.parameters())
    slope = float(slopes.pop())
    return (
        Layers(cast(list[nn.Linear], linears), slope) if plain and slope > 0 and linears[-1].out_features == 1 else None
    )


def _seeded(seed: int, build: Callable[[], nn.Module]) -> nn.Module:
    """Build with the CPU generator at ``seed``, then put it back; no other generator is touched."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()
