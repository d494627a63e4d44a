"""Energies: networks that map a point to one number, and their sum with a prior."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from outfield.config import configurable, require, require_number
from outfield.energy.priors import Prior
from outfield.errors import InputError
from outfield.modes import building


class Network(Protocol):
    """A recipe for the network inside an energy."""

    def build(self, width: int, seed: int) -> nn.Module:
        """A fresh network (N, width) → (N, 1), float32; equal seeds give equal weights."""


def build_network(recipe: Network, width: int, seed: int) -> nn.Module:
    """What the recipe builds, checked; one that does not look at its seed draws from a generator of it, not the global one."""
    with building(seed):
        network = recipe.build(width, seed)
    require(isinstance(network, nn.Module), "network", recipe, "a recipe that builds a torch.nn.Module")
    types = {str(p.dtype) for p in network.parameters()} - {"torch.float32"}
    if types:
        raise InputError(f"network {recipe!r} has weights of {' and '.join(sorted(types))}; they must be torch.float32")
    return network


@configurable
@dataclass(frozen=True)
class MLP:
    """width → hidden, ``depth`` layers hidden → hidden, → 1, LeakyReLU between, PyTorch's default initialisation.

    Args:
        hidden: Width of the hidden layers.
        depth: Number of layers hidden → hidden.
        slope: Slope of LeakyReLU below 0.
    """

    hidden: int = 1024
    depth: int = 4
    slope: float = 0.2

    def __post_init__(self) -> None:
        require_number("hidden", self.hidden, least=1, whole=True)
        require_number("depth", self.depth, least=0, whole=True)
        require_number("slope", self.slope, least=0, most=1e6)

    def build(self, width: int, seed: int) -> nn.Module:
        widths = [int(width), *[int(self.hidden)] * (int(self.depth) + 1)]
        return _stacked([], widths, float(self.slope), torch.Generator("cpu").manual_seed(int(seed)))


@configurable
@dataclass(frozen=True)
class SineMLP:
    """sin and cos of random projections, then ``depth`` LeakyReLU layers: for low-dimensional data with fine structure.

    A plain network on raw 2-D coordinates learns narrow arms far too slowly.

    Args:
        hidden: Width of the hidden layers.
        depth: Number of hidden layers.
        frequencies: Number of projections.
        scale: Standard deviation of the projections' frequencies, in radians per unit length.
    """

    hidden: int = 64
    depth: int = 3
    frequencies: int = 64
    scale: float = 3.0

    def __post_init__(self) -> None:
        require_number("hidden", self.hidden, least=1, whole=True)
        require_number("depth", self.depth, least=0, whole=True)
        require_number("frequencies", self.frequencies, least=1, whole=True)
        require_number("scale", self.scale, above=0, most=1e6)

    def build(self, width: int, seed: int) -> nn.Module:
        generator, frequencies = torch.Generator("cpu").manual_seed(int(seed)), int(self.frequencies)
        drawn = torch.randn(int(width), frequencies, generator=generator, device="cpu", dtype=torch.float32)
        directions = drawn.mul_(float(self.scale))
        return _stacked([_Sines(directions)], [2 * frequencies, *[int(self.hidden)] * int(self.depth)], 0.2, generator)


class _Sines(nn.Module):
    """z (N, D) → [sin(z B), cos(z B)] (N, 2F), B (D, F) fixed."""

    def __init__(self, directions: Tensor) -> None:
        super().__init__()
        self.directions: Tensor
        self.register_buffer("directions", directions)

    def forward(self, z: Tensor) -> Tensor:
        angles = z @ self.directions
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _stacked(first: list[nn.Module], widths: list[int], slope: float, generator: torch.Generator) -> nn.Module:
    """``first``, then linear layers of these widths with LeakyReLU after each, then → 1."""
    for inputs, outputs in itertools.pairwise(widths):
        first += [_linear(inputs, outputs, generator), nn.LeakyReLU(slope)]
    return nn.Sequential(*first, _linear(widths[-1], 1, generator))


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A layer as ``nn.Linear`` initialises it, uniform in ±1/√inputs, but drawn from this generator, weight before bias."""
    layer = cast(nn.Linear, skip_init(nn.Linear, inputs, outputs, device="cpu", dtype=torch.float32))
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
    nn.init.uniform_(layer.bias, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=generator)
    return layer


class CorrectedEnergy(nn.Module):
    """E(z) = E_θ(z) + E_prior(z) / T_prior,  with the residual E_θ(z) = network(z) / T.

    Without a prior it is an energy-based model on its own.

    Args:
        network: Maps points (N, D) to (N, 1).
        temperature: T.
        prior: A fitted prior, or None.
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


class Layers(NamedTuple):
    """The linear layers of a network, the last one → 1, with LeakyReLU of one slope between them."""

    linears: list[nn.Linear]
    slope: float


def layers_of(network: nn.Module) -> Layers | None:
    """The layers if the network is Linear, LeakyReLU, …, Linear → 1, all float32 and trained; else None."""
    modules = list(network) if isinstance(network, nn.Sequential) else []
    linears, activations = modules[::2], modules[1::2]
    slopes = {float(m.negative_slope) if type(m) is nn.LeakyReLU else 0.0 for m in activations}
    fits = (
        len(linears) == len(activations) + 1
        and len(slopes) == 1
        and min(slopes) > 0
        and all(type(m) is nn.Linear and m.bias is not None for m in linears)
        and all(p.dtype == torch.float32 and p.requires_grad for p in network.parameters())
        and linears[-1].out_features == 1
    )
    return Layers(cast(list[nn.Linear], linears), slopes.pop()) if fits else None
