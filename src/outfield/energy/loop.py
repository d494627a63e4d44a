"""Maximum-likelihood training of energies with chains: the loop, its history, its checkpoints. No printing.

The loop trains S models side by side, each with its own weights, batches and noise; one batch of one model leaves most of a GPU
idle, and an honest table needs several seeds. What a step is, is said in :mod:`outfield.energy.eager`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outfield.energy.chains import Sampler
from outfield.energy.checkpoints import Checkpoint, Keeper
from outfield.energy.history import History
from outfield.energy.network import CorrectedEnergy
from outfield.energy.projection import Projection
from outfield.energy.rows import Rows, fingerprint
from outfield.energy.run import Run
from outfield.energy.settings import Training
from outfield.energy.shares import current
from outfield.errors import InputError
from outfield.modes import own_modes

__all__ = ["History", "Progress", "train", "train_seeds"]

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

    An interrupt (KeyboardInterrupt, SystemExit) goes on after the last whole step has been written to the checkpoint.

    Raises:
        DivergenceError: energies became non-finite or larger than ``training.energy_limit``.
        InputError: the checkpoint belongs to another fit, or the engine or precision asked for cannot be had.
        FileFormatError: the checkpoint is damaged.
        StorageError: the checkpoint cannot be written, which is found before the first step.
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
    share = current()
    if share is not None:
        if checkpoint is not None:
            raise InputError("a fit that several processes share keeps no checkpoint; leave checkpoint out")
        share.check_equal(fingerprint(z), "the training rows")
    run = Run(models, z, training, sampler, project, seeds)
    keeper = None if checkpoint is None else Keeper(checkpoint, run, run.identity(checkpoint))
    if keeper is not None:
        keeper.resume()
    try:
        while not run.over:
            run.step()
            if run.over:
                run.check_result()
            if keeper is not None:
                keeper.after_step(run.over)
            if progress is not None:
                progress(run.epoch * run.batches + run.batch, training.epochs * run.batches, run.histories[0])
    except (KeyboardInterrupt, SystemExit) as error:
        if keeper is not None:
            keeper.interrupted(error)
        raise
    return run.histories
