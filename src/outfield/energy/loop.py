"""Maximum-likelihood training of energies with chains: the loop, its history, its checkpoints. No printing.

The loop trains S models side by side, each with its own weights, batches and noise; one batch of one model leaves most of a GPU
idle, and an honest table needs several seeds. What a step is, is said in :mod:`outfield.energy.eager`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outfield.energy.chains import Sampler
from outfield.energy.eager import part
from outfield.energy.engine import make_step
from outfield.energy.network import CorrectedEnergy
from outfield.energy.projection import Projection
from outfield.energy.rows import Rows, fingerprint
from outfield.energy.settings import Training
from outfield.energy.starts import make_start
from outfield.errors import DivergenceError, FileFormatError, InputError
from outfield.files import atomic, storage
from outfield.modes import own_modes, products

CHECK_EVERY = 25
"""Batches between looks at the energies' size (each look waits for the device)."""


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
        seconds: how often it is written; also at the end.
        identity: what, besides the rows and the settings of the loop, must be equal for a checkpoint to belong to a fit.
            Detectors fill it in.
    """

    path: atomic.PathLike
    seconds: float = 30.0
    identity: Mapping[str, str] = field(default_factory=dict)


Progress = Callable[[int, int, History], None]
"""Called after each step with (steps done, steps in all, history so far, of the first model)."""


def train(
    model: CorrectedEnergy,
    z: Rows,
    training: Training,
    sampler: Sampler,
    project: Projection,
    seed: int,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> History:
    """Train the model's network on rows z (N, D), a tensor or rows on disk, in place.

    Everything random comes from ``seed``; on the CPU equal seeds give equal bits, also across a resume.

    Raises:
        DivergenceError: energies became non-finite or larger than ``training.energy_limit``.
        InputError: the checkpoint belongs to another fit, or the engine or precision asked for cannot be had.
    """
    return train_seeds([model], z, training, sampler, project, [seed], checkpoint, progress)[0]


def train_seeds(
    models: Sequence[CorrectedEnergy],
    z: Rows,
    training: Training,
    sampler: Sampler,
    project: Projection,
    seeds: Sequence[int],
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> list[History]:
    """Train models that differ in their weights only, each from its own seed; see :func:`train`."""
    for name in ("temperature", "prior", "prior_temperature"):
        if len({getattr(model, name) for model in models}) > 1:
            raise InputError(f"the models differ in {name}; models that are trained together must share it")
    with own_modes(z.device):
        return _trained(models, z, training, sampler, project, seeds, checkpoint, progress)


def _trained(
    models: Sequence[CorrectedEnergy],
    z: Rows,
    training: Training,
    sampler: Sampler,
    project: Projection,
    seeds: Sequence[int],
    checkpoint: Checkpoint | None,
    progress: Progress | None,
) -> list[History]:
    run = _Run(models, z, training, sampler, project, seeds)
    if checkpoint is not None and Path(checkpoint.path).exists():
        run.restore(checkpoint)
    written = time.monotonic()
    while run.epoch < training.epochs:
        run.step()
        if progress is not None:
            progress(run.epoch * run.batches + run.batch, training.epochs * run.batches, run.histories[0])
        over = run.epoch == training.epochs
        if checkpoint is not None and (over or time.monotonic() - written >= checkpoint.seconds):
            run.check()
            run.save(checkpoint)
            written = time.monotonic()
    run.check_result()
    return run.histories


class _Run:
    """The state of a training loop between two steps."""

    def __init__(
        self,
        models: Sequence[CorrectedEnergy],
        z: Rows,
        training: Training,
        sampler: Sampler,
        project: Projection,
        seeds: Sequence[int],
    ) -> None:
        self.models, self.z, self.project, self.seeds = models, z, project, seeds
        self.training, self.sampler = training, sampler
        self.generators = [torch.Generator(z.device).manual_seed(seed) for seed in seeds]
        self.batch_size = min(training.batch_size, len(z))
        self.batches = len(z) // self.batch_size
        starts = [make_start(training.start, m.prior, training.replay_size, training.replay_fresh) for m in models]
        self.taker = make_step(models, z[:1], self.batch_size, training, sampler, project, starts, self.generators)
        self.epoch = self.batch = 0
        self.orders = torch.empty(len(models), len(z), dtype=torch.int64, device=z.device)
        self.sums = torch.zeros(len(models), 3, dtype=torch.float64, device=z.device)
        self.largest = torch.zeros(len(models), dtype=torch.float32, device=z.device)
        self.histories = [History() for _ in models]
        self._fingerprint: str | None = None

    def step(self) -> None:
        """One batch: chains, loss, optimiser; closes the epoch after its last batch."""
        if self.batch == 0:
            for order, generator in zip(self.orders, self.generators, strict=True):
                torch.randperm(len(self.z), generator=generator, out=order)
        chosen = self.orders[:, self.batch * self.batch_size : (self.batch + 1) * self.batch_size]
        result = self.taker.run(self.z[chosen])
        self.sums += result[:, :3]
        self.largest = torch.maximum(self.largest, result[:, 3:].amax(1))
        self.batch += 1
        if self.batch % CHECK_EVERY == 0 or self.batch == self.batches:
            self.check()
        if self.batch == self.batches:
            self._close_epoch()

    def _close_epoch(self) -> None:
        for history, means in zip(self.histories, (self.sums / self.batches).tolist(), strict=True):
            for values, mean in zip((history.loss, history.real_energy, history.negative_energy), means, strict=True):
                values.append(mean)
        self.sums.zero_()
        self.epoch, self.batch = self.epoch + 1, 0

    def check(self) -> None:
        """Stop a run whose energies mean nothing any more."""
        limit = self.training.energy_limit
        for seed, largest in zip(self.seeds, self.largest.tolist(), strict=True):
            if not largest <= limit:
                what = f"the mean absolute energy is {largest:.3g} (the limit is {limit:.3g})"
                which = f" of seed {seed}" if len(self.seeds) > 1 else ""
                raise DivergenceError(
                    f"training{which} diverged in epoch {self.epoch + 1}, batch {self.batch}: {what}. "
                    f"Lower learning_rate (now {self.training.learning_rate:g}), raise l2 (now {self.training.l2:g}), "
                    f"or lower the sampler's step_size (now {getattr(self.sampler, 'step_size', None)})."
                )

    def check_result(self) -> None:
        """The last step's weights have not been looked at yet: see what they make of real rows."""
        with torch.no_grad(), products(self.z.device):
            rows = self.z[: self.batch_size]
            self.largest = torch.stack([model.residual(rows).abs().mean() for model in self.models])
        self.check()

    def _identity(self, checkpoint: Checkpoint) -> dict[str, str]:
        """What must be equal for a checkpoint to belong to this fit."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self.z)
        first = self.models[0]
        model = (repr(first.network), first.temperature, repr(first.prior), first.prior_temperature)
        project = getattr(self.project, "__name__", repr(self.project))
        settings = repr((self.training, self.sampler, project, list(self.seeds), model, self.z.device.type))
        return {"features": self._fingerprint, "settings": settings, **checkpoint.identity}

    def save(self, checkpoint: Checkpoint) -> None:
        tensors = {"orders": self.orders, "sums": self.sums, "largest": self.largest}
        rows = zip(self.models, self.generators, self.taker.state(), strict=True)
        for index, (model, generator, state) in enumerate(rows):
            state |= {f"network.{name}": value for name, value in model.network.state_dict().items()}
            state["generator"] = generator.get_state()
            tensors |= {f"{index}.{name}": value for name, value in state.items()}
        header = {"epoch": self.epoch, "batch": self.batch, "histories": [asdict(h) for h in self.histories]}
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
        device = self.z.device
        states = [part(tensors, f"{index}.") for index in range(len(self.models))]
        for model, generator, state in zip(self.models, self.generators, states, strict=True):
            model.network.load_state_dict(part(state, "network."))
            generator.set_state(state["generator"])
        self.taker.load_state([{name: value.to(device) for name, value in state.items()} for state in states])
        self.orders, self.sums, self.largest = (tensors[name].to(device) for name in ("orders", "sums", "largest"))
        self.epoch, self.batch = int(header["epoch"]), int(header["batch"])
        self.histories = [History(**history) for history in header["histories"]]
