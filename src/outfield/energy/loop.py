"""The training loop of S models side by side: epochs over batches, their history, divergence, checkpoints. No printing."""

from __future__ import annotations

import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from outfield.config import require, to_plain
from outfield.energy.batches import Batches, Rows, fingerprint_of_rows
from outfield.energy.chains import Projection, Sampler, make_start
from outfield.energy.engine import make_step
from outfield.energy.network import CorrectedEnergy
from outfield.energy.training_step import History, Training
from outfield.errors import DivergenceError, FileFormatError, InputError, OutfieldWarning, StorageError
from outfield.files import PathLike, Record, as_path, read_record, tensors_under, write_record
from outfield.modes import own_modes, products

VERSION = 2  # of what a checkpoint holds
CHECK_EVERY = 25  # batches between looks at the energies' size (each look waits for the device)

Models = Sequence[CorrectedEnergy]
# called after each step with (steps done, steps in all, history so far, of the first model)
Progress = Callable[[int, int, History], None]


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
    """Train the network on rows z (N, D), in place; on the CPU equal seeds give equal bits, also across a resume."""
    return train_seeds([model], z, training, sampler, project, [seed], checkpoint, progress)[0]


def train_seeds(
    models: Models,
    z: Rows,
    training: Training,
    sampler: Sampler,
    project: Projection,
    seeds: Sequence[int],
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> list[History]:
    """Train models that differ in their weights only, each from its own seed; see :func:`train`."""
    with own_modes(z.device):
        run = Run(models, z, training, sampler, project, seeds)
        keeper = None if checkpoint is None else Keeper(checkpoint, run)
        if keeper is not None:
            keeper.resume()
        try:
            while not run.over:
                run.step()
                if keeper is not None:
                    keeper.after_step(run.over)
                if progress is not None:
                    progress(run.epoch * run.batches + run.batch, training.epochs * run.batches, run.histories[0])
        except (KeyboardInterrupt, SystemExit) as error:
            if keeper is not None:
                keeper.interrupted(error)
            raise
    return run.histories


class Run:
    """The state of a training loop between two steps: ``epoch`` epochs and ``batch`` batches of the next one are done."""

    def __init__(
        self, models: Models, z: Rows, training: Training, sampler: Sampler, project: Projection, seeds: Sequence[int]
    ) -> None:
        self.models, self.z, self.project, self.seeds = models, z, project, seeds
        self.training, self.sampler = training, sampler
        self.generators = [torch.Generator(z.device).manual_seed(seed) for seed in seeds]
        self.batch_size = min(training.batch_size, len(z))
        self.batches = len(z) // self.batch_size
        self.rows = Batches(z, self.batch_size)
        starts = [make_start(training.start, m.prior, training.replay_size, training.replay_fresh) for m in models]
        fits = list(zip(models, starts, self.generators, strict=True))
        self.stepper = make_step(fits, z[:1], self.batch_size, training, sampler, project)
        self.epoch = self.batch = 0
        self.orders = torch.zeros(len(models), len(z), dtype=torch.int64, device=z.device)
        self.sums = torch.zeros(len(models), 3, dtype=torch.float64, device=z.device)
        self.largest = torch.zeros(len(models), dtype=torch.float32, device=z.device)
        self.histories = [History() for _ in models]
        self.averages = [
            {name: torch.zeros_like(value) for name, value in _weights(model.network) if training.average > 1}
            for model in models
        ]

    @property
    def over(self) -> bool:
        return self.epoch == self.training.epochs

    def step(self) -> None:
        """One batch: chains, loss, optimiser; closes the epoch after its last batch."""
        if self.batch == 0:
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
        self._average()
        if self.over:  # the last step's weights have not been looked at yet: see what they make of real rows
            with torch.no_grad(), products(self.z.device):
                rows = self.z[: self.batch_size]
                self.largest = torch.stack([model.residual(rows).abs().mean() for model in self.models])
            self.check()

    @torch.no_grad()
    def _average(self) -> None:
        """The mean of the weights at the ends of the last epochs, which varies less from fit to fit than the last weights do."""
        count = self.epoch - max(0, self.training.epochs - self.training.average)
        for model, means in zip(self.models, self.averages, strict=True):
            for name, value in _weights(model.network) if count > 0 and means else ():
                means[name] += (value - means[name]) / count
                if self.over:
                    value.copy_(means[name])

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

    def identity(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """What must be equal for a checkpoint to belong to this fit: the rows, and settings, ready for JSON."""
        first = self.models[0]
        settings = {
            "training": to_plain(self.training), "sampler": to_plain(self.sampler),
            "projection": getattr(self.project, "__name__", type(self.project).__name__),
            "seeds": [int(seed) for seed in self.seeds],
            "weights": {name: list(value.shape) for name, value in first.network.state_dict().items()},
            **{name: to_plain(getattr(first, name)) for name in ("temperature", "prior", "prior_temperature")},
            "device": self.z.device.type,
        }  # fmt: skip
        more = dict(checkpoint.identity)
        settings |= more.pop("settings", {})
        return {"features": fingerprint_of_rows(self.z), "settings": settings, **more}

    def state(self) -> Record:
        """What must survive a restart; the next step changes its tensors in place."""
        tensors = {"sums": self.sums, "largest": self.largest, "orders": self.orders}
        rows = zip(self.models, self.averages, self.generators, self.stepper.state(), strict=True)
        for index, (model, means, generator, state) in enumerate(rows):
            state |= {f"network.{name}": value for name, value in model.network.state_dict().items()}
            state |= {f"average.{name}": value for name, value in means.items()}
            state["generator"] = generator.get_state()
            tensors |= {f"{index}.{name}": value for name, value in state.items()}
        header = {"epoch": self.epoch, "batch": self.batch, "histories": [asdict(h) for h in self.histories]}
        return Record(header, tensors)

    def take(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go on from a checkpoint of this fit."""
        fits = zip(self.models, self.averages, self.generators, strict=True)
        for index, (model, means, generator) in enumerate(fits):
            for name, value in means.items():
                value.copy_(tensors[f"{index}.average.{name}"])
            model.network.load_state_dict(tensors_under(tensors, f"{index}.network."))
            generator.set_state(tensors[f"{index}.generator"])
        there = {name: value.to(self.z.device) for name, value in tensors.items()}
        self.stepper.load_state([tensors_under(there, f"{index}.") for index in range(len(self.models))])
        self.orders, self.sums, self.largest = (there[name] for name in ("orders", "sums", "largest"))
        self.epoch, self.batch = header["epoch"], header["batch"]
        self.histories = [History(**entry) for entry in header["histories"]]


def _weights(network: nn.Module) -> list[tuple[str, Tensor]]:
    """The floating tensors of a network, by name, as they are trained: what is written to them is in the network."""
    return [(name, value) for name, value in network.state_dict().items() if value.is_floating_point()]


@dataclass(frozen=True)
class Checkpoint:
    """Where a running fit is kept so that one that was interrupted or killed can go on.

    Args:
        path: A ``.safetensors`` file, replaced atomically.
        seconds: How often it is written; it is also written at the end, and when the fit is interrupted (Ctrl-C).
        identity: What, besides the rows and the settings of the loop, must be equal for a checkpoint to belong to a fit, ready
            for JSON. Detectors fill it in.
    """

    path: PathLike
    seconds: float = 30.0
    identity: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        as_path(self.path)
        number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        require(number and self.seconds >= 0, "seconds", self.seconds, "a number, at least 0")


class Keeper:
    """Keeps a run in its checkpoint, whose ``identity`` must be equal.

    An interrupt can come in the middle of a step, when weights, moments and generators belong to no step at all. So what a
    step has changed is copied when the step is whole, into one of two sets of tensors in turn; an interrupt writes the last.
    """

    def __init__(self, checkpoint: Checkpoint, run: Run) -> None:
        self.path, self.seconds, self.run = as_path(checkpoint.path), checkpoint.seconds, run
        self.identity: dict[str, Any] = json.loads(json.dumps(run.identity(checkpoint)))
        self.written = time.monotonic()
        self._whole: Record | None = None
        self._spare: dict[str, Tensor] = {}

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one, undamaged and of this fit."""
        if not self.path.exists():
            return
        header, tensors = read_record(self.path, "Checkpoint")
        named, afresh = f"the checkpoint {self.path}", "delete it or name another file to start afresh"
        if header.get("version") != VERSION:
            raise FileFormatError(f"{named} was written by another version of Outfield and cannot be used; {afresh}")
        for key, value in self.identity.items():
            there = header["identity"].get(key)
            if there != value:
                what = ", ".join(differences(there, value)) if isinstance(value, dict) else ""
                raise InputError(f"{named} belongs to a fit with other {key}{f' ({what})' if what else ''}; {afresh}")
        self.run.take(header, tensors)

    def after_step(self, over: bool) -> None:
        """Remember the step that has just ended; write it if it is the last one, or if it is time."""
        header, tensors = self.run.state()
        copied = self._spare
        if copied.keys() != tensors.keys():
            copied = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        kinds = defaultdict(list)
        for name, tensor in tensors.items():
            kinds[tensor.device, tensor.dtype].append(name)
        with torch.no_grad():
            for names in kinds.values():  # few launches on a GPU
                torch._foreach_copy_([copied[name] for name in names], [tensors[name] for name in names])
        self._spare = {} if self._whole is None else dict(self._whole.tensors)
        self._whole = Record(header, copied)
        if over or time.monotonic() - self.written >= self.seconds:
            self.run.check()
            self.write()

    def write(self) -> None:
        """Write the last whole step, unless its numbers are not finite: then the next step will say that it diverged."""
        if self._whole is not None and all(bool(torch.isfinite(one).all()) for one in self._whole.tensors.values()):
            header = {**self._whole.header, "version": VERSION, "identity": self.identity}
            write_record(self.path, "Checkpoint", Record(header, self._whole.tensors))
            self.written = time.monotonic()

    def interrupted(self, error: BaseException) -> None:
        """Write the last whole step of a fit that is being interrupted, unless it diverged; a second interrupt goes through."""
        if self._whole is None:
            return
        try:
            self.run.check()
            self.write()
            error.add_note(f"The fit up to here is kept in {self.path}; the same fit again goes on from there.")
        except DivergenceError:
            return
        except StorageError as failure:
            warnings.warn(f"the interrupted fit was not kept: {failure}", OutfieldWarning, stacklevel=2)


def differences(there: Any, here: Any, path: str = "") -> Iterator[str]:
    """Where two plain settings differ, each as ``training.epochs is 3 there and 4 here``."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in here:
            yield from differences(there.get(key), here[key], f"{path}.{key}" if path else key)
    elif there != here:
        yield f"{path} is {there!r:.60} there and {here!r:.60} here"
