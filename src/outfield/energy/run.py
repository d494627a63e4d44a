"""The state of a training loop between two steps: what a step does to it, when it has diverged, what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from outfield.config import to_plain
from outfield.energy.averages import Averages
from outfield.energy.chains import Sampler
from outfield.energy.checkpoints import Checkpoint, State, check_like, whole_number
from outfield.energy.eager import part
from outfield.energy.engine import make_step
from outfield.energy.history import History
from outfield.energy.network import CorrectedEnergy
from outfield.energy.projection import Projection
from outfield.energy.rows import Batches, Rows, fingerprint
from outfield.energy.settings import Training
from outfield.energy.starts import make_start
from outfield.errors import DivergenceError
from outfield.modes import products

CHECK_EVERY = 25
"""Batches between looks at the energies' size (each look waits for the device)."""


class Run:
    """The state of a training loop between two steps: ``epoch`` epochs and ``batch`` batches of the next one are done."""

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
        self.rows = Batches(z, self.batch_size)
        starts = [make_start(training.start, m.prior, training.replay_size, training.replay_fresh) for m in models]
        self.stepper = make_step(models, z[:1], self.batch_size, training, sampler, project, starts, self.generators)
        self.epoch = self.batch = 0
        self.orders = torch.zeros(len(models), len(z), dtype=torch.int64, device=z.device)
        self.sums = torch.zeros(len(models), 3, dtype=torch.float64, device=z.device)
        self.largest = torch.zeros(len(models), dtype=torch.float32, device=z.device)
        self.histories = [History() for _ in models]
        self.averages = Averages([model.network for model in models], training)

    @property
    def over(self) -> bool:
        """Whether all epochs are done."""
        return self.epoch == self.training.epochs

    def step(self) -> None:
        """One batch: chains, loss, optimiser; closes the epoch after its last batch."""
        if self.batch == 0:  # a new tensor: the last one may be part of a checkpoint that is yet to be written
            orders = [torch.randperm(len(self.z), generator=g, device=self.z.device) for g in self.generators]
            self.orders = torch.stack(orders)
        result = self.stepper.run(self.rows.take(self.orders, self.batch))
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
        with torch.no_grad():
            self.averages.after_epoch(self.epoch)
            if self.over:
                self.averages.put_in_place()

    def check(self) -> None:
        """Stop a run whose energies mean nothing any more."""
        limit = self.training.energy_limit
        epoch, batch = (self.epoch + 1, self.batch) if self.batch else (self.epoch, self.batches)
        for seed, largest in zip(self.seeds, self.largest.tolist(), strict=True):
            if not largest <= limit:
                which = f" of seed {seed}" if len(self.seeds) > 1 else ""
                raise DivergenceError(
                    f"training{which} diverged in epoch {epoch} of {self.training.epochs}, batch {batch} of {self.batches}: "
                    f"the mean absolute energy is {largest:.3g} (the limit is {limit:.3g}). "
                    f"Lower learning_rate (now {self.training.learning_rate:g}), raise l2 (now {self.training.l2:g}), "
                    f"or lower the sampler's step_size (now {getattr(self.sampler, 'step_size', None)})."
                )

    def check_result(self) -> None:
        """The last step's weights have not been looked at yet: see what they make of real rows."""
        with torch.no_grad(), products(self.z.device):
            rows = self.z[: self.batch_size]
            self.largest = torch.stack([model.residual(rows).abs().mean() for model in self.models])
        self.check()

    def identity(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """What must be equal for a checkpoint to belong to this fit: the rows, and settings, ready for JSON.

        Raises:
            InputError: a setting is of a class that is not marked as configurable.
        """
        first = self.models[0]
        settings = {
            "training": to_plain(self.training),
            "sampler": to_plain(self.sampler),
            "projection": getattr(self.project, "__name__", type(self.project).__name__),
            "seeds": [int(seed) for seed in self.seeds],
            "weights": {name: list(value.shape) for name, value in first.network.state_dict().items()},
            "temperature": to_plain(first.temperature),
            "prior": to_plain(first.prior),
            "prior_temperature": to_plain(first.prior_temperature),
            "device": self.z.device.type,
        }
        more = dict(checkpoint.identity)
        settings |= more.pop("settings", {})
        return {"features": fingerprint(self.z), "settings": settings, **more}

    def state(self) -> State:
        """For a checkpoint."""
        tensors = {"sums": self.sums, "largest": self.largest}
        rows = zip(self.models, self.generators, self.stepper.state(), strict=True)
        for index, (model, generator, state) in enumerate(rows):
            state |= {f"network.{name}": value for name, value in model.network.state_dict().items()}
            state |= self.averages.state(index)
            state["generator"] = generator.get_state()
            tensors |= {f"{index}.{name}": value for name, value in state.items()}
        header = {"epoch": self.epoch, "batch": self.batch, "histories": [asdict(h) for h in self.histories]}
        return State(header, tensors, {"orders": self.orders})

    def take(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go on from a checkpoint; nothing is changed if it does not hold what it should.

        Raises:
            ValueError, KeyError, RuntimeError: what is wrong with it.
        """
        epoch = whole_number(header, "epoch", self.training.epochs)
        batch = whole_number(header, "batch", self.batches - 1 if epoch < self.training.epochs else 0)
        check_like(tensors, self._expected())
        if batch and not torch.equal(
            tensors["orders"].sort(1).values, torch.arange(len(self.z)).expand_as(self.orders)
        ):
            raise ValueError("orders does not name every row once")
        histories = [History.of(entry, epoch) for entry in header["histories"]]
        if len(histories) != len(self.models):
            raise ValueError(f"there are {len(histories)} histories, not {len(self.models)}")
        states = [part(tensors, f"{index}.") for index in range(len(self.models))]
        for index, (model, generator, state) in enumerate(zip(self.models, self.generators, states, strict=True)):
            self.averages.load_state(index, state)
            model.network.load_state_dict(part(state, "network."))
            generator.set_state(state["generator"])
        device = self.z.device
        self.stepper.load_state([{name: value.to(device) for name, value in state.items()} for state in states])
        self.orders, self.sums, self.largest = (tensors[name].to(device) for name in ("orders", "sums", "largest"))
        self.epoch, self.batch, self.histories = epoch, batch, histories

    def _expected(self) -> dict[str, Tensor]:
        """Tensors of the names, types and shapes that a checkpoint of this run has."""
        state = self.state()
        expected = state.moving | state.fixed
        if self.training.start == "replay":
            size = max(self.training.replay_size, self.batch_size)
            buffer = torch.empty(size, self.z.shape[1], dtype=self.z.dtype, device="meta")
            expected |= {f"{index}.start.buffer": buffer for index in range(len(self.models))}
        return expected
