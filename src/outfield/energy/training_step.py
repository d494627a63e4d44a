"""Training of energies by maximum likelihood: its settings, its loss, and one step in plain PyTorch.

For a batch of real rows z and chain ends z' (both with a little noise added):

    L = mean E_θ(z) − mean E_θ(z') + α (mean E_θ(z)² + mean E_θ(z')²).

The prior's energy has no gradient in θ, so it appears only inside the chains. :class:`EagerStep` is the reference that
:mod:`outfield.energy.engine` must agree with. A step has ``run``, real rows (S, B, D) of S fits → (S, 5): the loss, mean E_θ of
real rows and of negatives, mean |E_θ| of both; ``state`` and ``load_state``, tensors of each fit that survive a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from outfield.config import configurable, require, require_choice, require_number
from outfield.energy.chains import STARTS, Projection, Sampler, Start, follow
from outfield.energy.network import CorrectedEnergy
from outfield.files import tensors_under
from outfield.modes import products

ENGINES = ("auto", "fused", "eager")
PRECISIONS = ("auto", "float32", "tf32", "bfloat16")
MOST = 10**9
LARGEST = 1e30  # numbers above this leave what float32 can hold when they are squared or multiplied


@configurable
@dataclass(frozen=True)
class Training:
    """How an energy is trained. The defaults are the paper's for the correction; ``EBM().training`` has those for the EBM.

    To change one of them: ``dataclasses.replace(EBM().training, epochs=5)``.

    Args:
        epochs: Passes over the training features.
        batch_size: Real rows, and chains, in a step; a rest smaller than a batch waits for the next epoch's shuffle.
        learning_rate: Learning rate of Adam.
        betas: Decay rates of Adam's two moments.
        l2: α, weight of the squared energies.
        input_noise: Standard deviation of the noise on real rows and chain ends in the loss.
        start: Where chains begin: "prior", "normal", "uniform", "data", "mixed", "replay", or "auto": the prior where there
            is one, else normal (:func:`outfield.energy.chains.make_start`).
        replay_size: Number of chain ends that "replay" keeps.
        replay_fresh: Share of chains that "replay" begins anew.
        energy_limit: Mean absolute energy above which training counts as diverged.
        engine: "fused" (:mod:`outfield.energy.engine`), "eager" (plain PyTorch), or "auto": fused wherever it can run.
        precision: Precision of the network's matrix products while training: "float32", "tf32", "bfloat16", or "auto":
            bfloat16 in the fused engine on a GPU that has units for it, else float32. Weights, chains and sums are float32 in
            any case; the prior's products keep at least TF32's precision. On a CPU "tf32" is float32.
        average: The result has the mean of the weights at the ends of this many last epochs; with 0 or 1, the last weights.
    """

    added_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({"average": 0})

    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 5e-6
    betas: tuple[float, float] = (0.0, 0.999)
    l2: float = 10.0
    input_noise: float = 1e-3
    start: str = "auto"
    replay_size: int = 10_000
    replay_fresh: float = 0.05
    energy_limit: float = 1e4
    engine: str = "auto"
    precision: str = "auto"
    average: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "replay_size"):
            require_number(name, getattr(self, name), least=1, most=MOST, whole=True)
        for name in ("l2", "input_noise"):
            require_number(name, getattr(self, name), least=0, most=LARGEST)
        for name in ("learning_rate", "energy_limit"):
            require_number(name, getattr(self, name), above=0, most=LARGEST)
        require_number("average", self.average, least=0, most=MOST, whole=True)
        require_number("replay_fresh", self.replay_fresh, least=0, most=1)
        for name, known in (("start", STARTS), ("engine", ENGINES), ("precision", PRECISIONS)):
            require_choice(name, getattr(self, name), known)
        pair = isinstance(self.betas, tuple) and len(self.betas) == 2
        require(pair and 1 not in self.betas, "betas", self.betas, "a pair of numbers from 0 to below 1")
        for beta in self.betas:
            require_number("betas", beta, least=0, most=1)


@dataclass
class History:
    """Means over each epoch's steps: loss, residual energy of real rows, residual energy of chain ends."""

    loss: list[float] = field(default_factory=list)
    real_energy: list[float] = field(default_factory=list)
    negative_energy: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.loss)


MOMENTS = ("exp_avg", "exp_avg_sq")
Fit = tuple[CorrectedEnergy, Start, torch.Generator]  # a model, where its chains begin, and its source of randomness


def loss_of(model: CorrectedEnergy, real: Tensor, negatives: Tensor, l2: float) -> tuple[Tensor, Tensor, Tensor]:
    """The loss and the residual energies of real rows and negatives (each (N,))."""
    energies = model.residual(torch.cat([real, negatives]))
    on_real, on_negatives = energies[: len(real)], energies[len(real) :]
    loss = on_real.mean() - on_negatives.mean()
    if l2:
        loss = loss + l2 * (on_real.square().mean() + on_negatives.square().mean())
    return loss, on_real, on_negatives


class EagerStep:
    """The step of one fit (S = 1) in plain PyTorch: any network, prior, sampler, projection and start."""

    def __init__(self, fit: Fit, training: Training, sampler: Sampler, project: Projection) -> None:
        model, self.start, self.generator = fit
        network = _Rounded(model.network) if training.precision == "bfloat16" else model.network
        self.model = CorrectedEnergy(network, model.temperature, model.prior, model.prior_temperature)
        self.training, self.sampler, self.project = training, sampler, project
        parameters = [p for p in model.network.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(parameters, **adam_settings(training))

    def run(self, real: Tensor) -> Tensor:
        with products(real.device, self.training.precision), torch.enable_grad():
            return self._run(real[0])

    def _run(self, real: Tensor) -> Tensor:
        begin = self.start.begin(real, self.generator)
        negatives = follow(self.model, begin, self.sampler, self.project, self.generator).ends
        self.start.end(negatives)
        z = torch.stack([real, negatives])
        noise = torch.randn(z.shape, generator=self.generator, device=z.device, dtype=z.dtype)
        noisy, noisy_negatives = z + self.training.input_noise * noise
        loss, on_real, on_negatives = loss_of(self.model, noisy, noisy_negatives, self.training.l2)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        on_real, on_negatives = on_real.detach(), on_negatives.detach()
        means = on_real.mean(), on_negatives.mean(), on_real.abs().mean(), on_negatives.abs().mean()
        return torch.stack([loss.detach(), *means])[None]

    def state(self) -> list[dict[str, Tensor]]:
        return [adam_state(self.optimiser) | self.start.state()]

    def load_state(self, states: Sequence[dict[str, Tensor]]) -> None:
        load_adam_state(self.optimiser, states[0])
        self.start.load_state(states[0])


class InTurn:
    """Steps of one fit each, taken one after the other."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = steps

    def run(self, real: Tensor) -> Tensor:
        return torch.cat([step.run(rows[None]) for step, rows in zip(self.steps, real, strict=True)])

    def state(self) -> list[dict[str, Tensor]]:
        return [state for step in self.steps for state in step.state()]

    def load_state(self, states: Sequence[dict[str, Tensor]]) -> None:
        for step, state in zip(self.steps, states, strict=True):
            step.load_state([state])


class _Rounded(nn.Module):
    """A network whose products take bfloat16 operands; its output is float32."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, z: Tensor) -> Tensor:
        with torch.autocast(z.device.type, torch.bfloat16):
            energy: Tensor = self.network(z)
        return energy.float()


def adam_settings(training: Training) -> dict[str, Any]:
    """Arguments of PyTorch's Adam, which takes Python's floats only."""
    return {"lr": float(training.learning_rate), "betas": tuple(map(float, training.betas))}


def adam_state(optimiser: torch.optim.Adam) -> dict[str, Tensor]:
    """``adam.INDEX.NAME`` for each parameter's exp_avg, exp_avg_sq and step; zeros before the first step."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    found: dict[str, Tensor] = {}
    for index, p in enumerate(parameters):
        state = optimiser.state.get(p) or {name: torch.zeros_like(p, requires_grad=False) for name in MOMENTS}
        found |= {f"adam.{index}.{name}": state[name] for name in MOMENTS}
        found[f"adam.{index}.step"] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32)
    return found


def load_adam_state(optimiser: torch.optim.Adam, tensors: dict[str, Tensor]) -> None:
    """Take back what :func:`adam_state` gave, among other tensors."""
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors_under(tensors, "adam.").items():
        index, _, key = name.partition(".")
        states.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})
