"""Maximum-likelihood training of an energy with chains: the loop, its history, its checkpoints. No printing.

One step, for a batch of real rows z and chain ends z' (both with a little noise added):

    L = mean E_θ(z) − mean E_θ(z') + α (mean E_θ(z)² + mean E_θ(z')²).

The prior's energy has no gradient in θ, so it appears only inside the chains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outfield import storage
from outfield.config import configurable, require, require_number
from outfield.energy import CorrectedEnergy
from outfield.errors import DivergenceError, FileFormatError, InputError
from outfield.langevin import Sampler, run_chains
from outfield.projection import Projection
from outfield.starts import STARTS, Start, make_start

CHECK_EVERY = 25
"""Batches between looks at the energies' size (each look waits for the device)."""


@configurable
@dataclass(frozen=True)
class Training:
    """How an energy is trained. The defaults are the paper's for the correction; ``EBM().training`` has those for the EBM.

    To change one of them: ``dataclasses.replace(EBM().training, epochs=5)``.

    Args:
        epochs: passes over the training features.
        batch_size: real rows, and chains, in a step; a rest smaller than a batch waits for the next epoch's shuffle.
        learning_rate: of Adam.
        betas: of Adam.
        l2: α, weight of the squared energies.
        input_noise: standard deviation of the noise on real rows and chain ends in the loss.
        start: where chains begin: "prior", "normal", "data", "replay", or "auto": the prior where there is one, else normal.
        replay_size: chain ends kept by "replay".
        replay_fresh: share of chains that "replay" begins anew.
        energy_limit: mean absolute energy above which training counts as diverged.
    """

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

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("replay_size", 1)):
            require_number(name, getattr(self, name), least=least, whole=True)
        for name in ("l2", "input_noise"):
            require_number(name, getattr(self, name), least=0)
        for name in ("learning_rate", "energy_limit"):
            require_number(name, getattr(self, name), above=0)
        require_number("replay_fresh", self.replay_fresh, least=0, most=1)
        require(self.start in STARTS, "start", self.start, f"one of {', '.join(STARTS)}")
        pair = isinstance(self.betas, tuple) and len(self.betas) == 2
        require(
            pair and all(0 <= beta < 1 for beta in self.betas),
            "betas",
            self.betas,
            "a pair of numbers from 0 to below 1",
        )


@dataclass
class History:
    """Means over each epoch's steps: loss, residual energy of real rows, residual energy of chain ends."""

    loss: list[float] = field(default_factory=list)
    real_energy: list[float] = field(default_factory=list)
    negative_energy: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.loss)


@dataclass(frozen=True)
class Checkpoint:
    """Where a running fit is kept so that a killed one can go on.

    Args:
        path: a ``.safetensors`` file, replaced atomically.
        seconds: how often it is written; also after every epoch.
        identity: what, besides the rows and the settings of the loop, must be equal for a checkpoint to belong to a fit.
            Detectors fill it in.
    """

    path: storage.PathLike
    seconds: float = 30.0
    identity: Mapping[str, str] = field(default_factory=dict)


Progress = Callable[[int, int, History], None]
"""Called after each step with (steps done, steps in all, history so far)."""


def loss_of(model: CorrectedEnergy, real: Tensor, negatives: Tensor, l2: float) -> tuple[Tensor, Tensor, Tensor]:
    """The loss and the residual energies of real rows and negatives (each (N,))."""
    energies = model.residual(torch.cat([real, negatives]))
    on_real, on_negatives = energies[: len(real)], energies[len(real) :]
    loss = on_real.mean() - on_negatives.mean()
    if l2:
        loss = loss + l2 * (on_real.square().mean() + on_negatives.square().mean())
    return loss, on_real, on_negatives


def train(
    model: CorrectedEnergy,
    z: Tensor,
    training: Training,
    sampler: Sampler,
    project: Projection,
    seed: int,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> History:
    """Train the model's network on rows z (N, D), in place.

    Everything random comes from ``seed``; on the CPU equal seeds give equal bits, also across a resume.

    Raises:
        DivergenceError: energies became non-finite or larger than ``training.energy_limit``.
        InputError: the checkpoint belongs to another fit.
    """
    run = _Run(model, z, training, sampler, project, seed)
    if checkpoint is not None and Path(checkpoint.path).exists():
        run.restore(checkpoint)
    written = time.monotonic()
    while run.epoch < training.epochs:
        run.step()
        if progress is not None:
            progress(run.epoch * run.batches + run.batch, training.epochs * run.batches, run.history)
        due = run.batch == 0 or (checkpoint is not None and time.monotonic() - written >= checkpoint.seconds)
        if checkpoint is not None and due:
            run.check()
            run.save(checkpoint)
            written = time.monotonic()
    run.check_result()
    return run.history


class _Run:
    """The state of a training loop between two steps."""

    def __init__(
        self, model: CorrectedEnergy, z: Tensor, training: Training, sampler: Sampler, project: Projection, seed: int
    ) -> None:
        self.model, self.z, self.project, self.seed = model, z, project, seed
        self.training, self.sampler = training, sampler
        self.generator = torch.Generator(z.device).manual_seed(seed)
        self.parameters = [p for p in model.network.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(self.parameters, lr=training.learning_rate, betas=training.betas)
        self.start: Start = make_start(training.start, model.prior, training.replay_size, training.replay_fresh)
        self.batch_size = min(training.batch_size, len(z))
        self.batches = len(z) // self.batch_size
        self.epoch = self.batch = 0
        self.order = torch.empty(0, dtype=torch.int64, device=z.device)
        self.sums = torch.zeros(3, dtype=torch.float64, device=z.device)
        self.largest = torch.zeros((), device=z.device)
        self.history = History()
        self._fingerprint: str | None = None

    def step(self) -> None:
        """One batch: chains, loss, optimiser; closes the epoch after its last batch."""
        if self.batch == 0:
            self.order = torch.randperm(len(self.z), generator=self.generator, device=self.z.device)
        real = self.z[self.order[self.batch * self.batch_size : (self.batch + 1) * self.batch_size]]
        begin = self.start.begin(real, self.generator)
        negatives = run_chains(self.model, begin, self.sampler, self.project, self.generator).ends
        self.start.end(negatives)
        loss, on_real, on_negatives = loss_of(self.model, self._noisy(real), self._noisy(negatives), self.training.l2)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self._record(loss.detach(), on_real.detach(), on_negatives.detach())
        self.batch += 1
        if self.batch % CHECK_EVERY == 0 or self.batch == self.batches:
            self.check()
        if self.batch == self.batches:
            self._close_epoch()

    def _record(self, loss: Tensor, on_real: Tensor, on_negatives: Tensor) -> None:
        self.sums += torch.stack([loss, on_real.mean(), on_negatives.mean()])
        for energies in (on_real, on_negatives):
            self.largest = torch.maximum(self.largest, energies.abs().mean())

    def _noisy(self, z: Tensor) -> Tensor:
        noise = torch.randn(z.shape, generator=self.generator, device=z.device, dtype=z.dtype)
        return z + self.training.input_noise * noise

    def _close_epoch(self) -> None:
        loss, real, negative = (self.sums / self.batches).tolist()
        self.history.loss.append(loss)
        self.history.real_energy.append(real)
        self.history.negative_energy.append(negative)
        self.sums.zero_()
        self.epoch, self.batch = self.epoch + 1, 0

    def check(self) -> None:
        """Stop a run whose energies mean nothing any more."""
        largest, limit = float(self.largest), self.training.energy_limit
        if not largest <= limit:
            what = f"the mean absolute energy is {largest:.3g} (the limit is {limit:.3g})"
            raise DivergenceError(
                f"training diverged in epoch {self.epoch + 1}, batch {self.batch}: {what}. "
                f"Lower learning_rate (now {self.training.learning_rate:g}), raise l2 (now {self.training.l2:g}), "
                f"or lower the sampler's step_size (now {getattr(self.sampler, 'step_size', None)})."
            )

    def check_result(self) -> None:
        """The last step's weights have not been looked at yet: see what they make of real rows."""
        with torch.no_grad():
            self.largest = self.model.residual(self.z[: self.batch_size]).abs().mean()
        self.check()

    def _identity(self, checkpoint: Checkpoint) -> dict[str, str]:
        """What must be equal for a checkpoint to belong to this fit."""
        if self._fingerprint is None:
            self._fingerprint = storage.fingerprint({"z": self.z})
        model = (repr(self.model.network), self.model.temperature, repr(self.model.prior), self.model.prior_temperature)
        project = getattr(self.project, "__name__", repr(self.project))
        settings = repr((self.training, self.sampler, project, self.seed, model, self.z.device.type))
        return {"features": self._fingerprint, "settings": settings, **checkpoint.identity}

    def save(self, checkpoint: Checkpoint) -> None:
        tensors = {f"network.{name}": value for name, value in self.model.network.state_dict().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{name}": value for name, value in state.items()}
        tensors |= {f"start.{name}": value for name, value in self.start.state().items()}
        tensors |= {
            "generator": self.generator.get_state(),
            "order": self.order,
            "sums": self.sums,
            "largest": self.largest,
        }
        header = {"epoch": self.epoch, "batch": self.batch, "history": asdict(self.history)}
        storage.write(checkpoint.path, "Checkpoint", header | {"identity": self._identity(checkpoint)}, tensors)

    def restore(self, checkpoint: Checkpoint) -> None:
        path = checkpoint.path
        header, tensors = storage.read(path, "Checkpoint")
        for key, value in self._identity(checkpoint).items():
            if header.get("identity", {}).get(key) != value:
                raise InputError(
                    f"the checkpoint {path} belongs to a fit with other {key}; delete it or name another file to start afresh"
                )
        try:
            self._take(header, tensors)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise FileFormatError(f"the checkpoint {path} is incomplete ({error})") from error

    def _take(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        device = self.z.device
        self.model.network.load_state_dict(part("network."))
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in part("adam.").items():
            index, _, key = name.partition(".")
            states.setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict({"state": states, "param_groups": self.optimiser.state_dict()["param_groups"]})
        self.start.load_state({name: value.to(device) for name, value in part("start.").items()})
        self.generator.set_state(tensors["generator"])
        self.order, self.sums, self.largest = (tensors[name].to(device) for name in ("order", "sums", "largest"))
        self.epoch, self.batch, self.history = int(header["epoch"]), int(header["batch"]), History(**header["history"])
