"""One training step: its loss with the L2 term, and the plain PyTorch way to take it.

For a batch of real rows z and chain ends z' (both with a little noise added):

    L = mean E_θ(z) − mean E_θ(z') + α (mean E_θ(z)² + mean E_θ(z')²).

The prior's energy has no gradient in θ, so it appears only inside the chains. :class:`EagerStep` is the reference that
:mod:`outfield.energy.engine` must agree with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from outfield.energy.chains import Sampler, Start, follow
from outfield.energy.network import CorrectedEnergy
from outfield.energy.projection import Projection
from outfield.energy.training import Training
from outfield.modes import products

MOMENTS = ("exp_avg", "exp_avg_sq")


class Step(Protocol):
    """Takes training steps of S independent fits side by side and keeps their weights and optimiser."""

    def run(self, real: Tensor) -> Tensor:
        """One step on real rows (S, B, D).

        Returns:
            (S, 5): the loss, mean E_θ of real rows and of negatives, mean |E_θ| of real rows and of negatives.
        """
        ...

    def state(self) -> list[dict[str, Tensor]]:
        """For each fit what must survive a restart: ``adam.INDEX.NAME`` for each parameter, ``start.NAME``."""
        ...

    def load_state(self, states: Sequence[dict[str, Tensor]]) -> None: ...


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

    def __init__(
        self,
        model: CorrectedEnergy,
        training: Training,
        sampler: Sampler,
        project: Projection,
        start: Start,
        generator: torch.Generator,
    ) -> None:
        network = _Rounded(model.network) if training.precision == "bfloat16" else model.network
        self.model = CorrectedEnergy(network, model.temperature, model.prior, model.prior_temperature)
        self.training, self.sampler, self.project = training, sampler, project
        self.start, self.generator = start, generator
        parameters = [p for p in model.network.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(parameters, **adam_settings(training))

    def run(self, real: Tensor) -> Tensor:
        with products(real.device, self.training.precision), torch.enable_grad():
            return self._run(real[0])

    def _run(self, real: Tensor) -> Tensor:
        begin = self.start.begin(real, self.generator)
        negatives = follow(self.model, begin, self.sampler, self.project, self.generator).ends
        self.start.end(negatives)
        noisy, noisy_negatives = self._noisy(torch.stack([real, negatives]))
        loss, on_real, on_negatives = loss_of(self.model, noisy, noisy_negatives, self.training.l2)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        on_real, on_negatives = on_real.detach(), on_negatives.detach()
        means = on_real.mean(), on_negatives.mean(), on_real.abs().mean(), on_negatives.abs().mean()
        return torch.stack([loss.detach(), *means])[None]

    def _noisy(self, z: Tensor) -> Tensor:
        noise = torch.randn(z.shape, generator=self.generator, device=z.device, dtype=z.dtype)
        return z + self.training.input_noise * noise

    def state(self) -> list[dict[str, Tensor]]:
        return [adam_state(self.optimiser) | {f"start.{name}": value for name, value in self.start.state().items()}]

    def load_state(self, states: Sequence[dict[str, Tensor]]) -> None:
        load_adam_state(self.optimiser, part(states[0], "adam."))
        self.start.load_state(part(states[0], "start."))


class InTurn:
    """Steps of one fit each, taken one after the other."""

    def __init__(self, steps: Sequence[Step]) -> None:
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


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def adam_settings(training: Training) -> dict[str, Any]:
    """Arguments of PyTorch's Adam, which takes Python's floats only."""
    first, second = training.betas
    return {"lr": float(training.learning_rate), "betas": (float(first), float(second))}


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
    """Take back what :func:`adam_state` gave, without its first word."""
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, _, key = name.partition(".")
        states.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})
