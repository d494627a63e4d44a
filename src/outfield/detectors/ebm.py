"""Base of the detectors that train a network as an energy, and EBM, which has no prior."""

from __future__ import annotations

import contextlib
import copy
import os
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from numbers import Integral
from typing import Any, Self, cast

from torch import Tensor, nn

from outfield.config import require, require_choice, require_number, to_plain
from outfield.detectors.base import Batch, Detector, labels_of, once, take
from outfield.detectors.registry import register
from outfield.energy import (
    MLP,
    PROJECTIONS,
    Checkpoint,
    CorrectedEnergy,
    History,
    Langevin,
    Network,
    Prior,
    Rows,
    Sampler,
    Training,
    build_network,
    projection_for,
    rows_of,
    train_seeds,
)
from outfield.errors import FileFormatError
from outfield.features import FeatureSource, normalise
from outfield.files import RECORD_ENDINGS, PathLike, check_output, fingerprint, tensors_under
from outfield.progress import bar


class LearnedEnergy(Detector):
    """A trained energy of the normalised features is the score.

    Attributes:
        model_: the energy, :class:`outfield.energy.CorrectedEnergy`.
        history_: loss and energies per epoch, :class:`outfield.energy.History`.
        projection_: where its chains lived.
    """

    network: Network
    temperature: float
    sampler: Sampler
    training: Training
    projection: str
    seed: int
    model_: CorrectedEnergy
    history_: History
    projection_: str

    fits_in_pieces = uses_checkpoint = trained = True

    def _check_settings(self) -> None:
        require(isinstance(self.training, Training), "training", self.training, "an outfield.Training")
        require_choice("projection", self.projection, ("auto", *PROJECTIONS))
        moves = hasattr(self.sampler, "begin") and hasattr(self.sampler, "move")
        require(moves, "sampler", self.sampler, "a sampler such as outfield.Langevin")
        require(hasattr(self.network, "build"), "network", self.network, "a network such as outfield.MLP")
        require_number("temperature", self.temperature, above=0)
        require_number("seed", self.seed, least=0, whole=True)

    def fit_seeds(
        self, train: FeatureSource, seeds: Iterable[int], *, checkpoint: PathLike | Checkpoint | None = None
    ) -> list[Self]:
        """Fit a copy of this detector for each seed, side by side; this one stays as it is.

        On a GPU all of them share every kernel, which takes far less time than one after the other. Each copy has its own
        weights, batches and noise, and is what ``fit`` with that seed would give, up to rounding.

        Args:
            train: ID training data.
            seeds: different whole numbers.
            checkpoint: a file in which all the running fits are kept together; see :meth:`fit`.

        Raises:
            DivergenceError: one of them diverged; the message says which.
        """
        chosen = [*seeds] if isinstance(seeds, Iterable) else []
        good = bool(chosen) and len(set(chosen)) == len(chosen) and all(isinstance(one, Integral) for one in chosen)
        require(good, "seeds", seeds, "different whole numbers, such as range(4)")
        copies = [copy.copy(self) for _ in chosen]
        for one, seed in zip(copies, chosen, strict=True):
            one.seed = int(seed)
        with contextlib.ExitStack() as stack:
            for one in copies:
                data = stack.enter_context(one._fitting(train, "fit"))
            self._fit_together(copies, data, _checkpoint(checkpoint))
        return copies

    def _fit(self, data: FeatureSource, checkpoint: PathLike | Checkpoint | None = None) -> None:
        self._fit_together([self], data, _checkpoint(checkpoint))

    def _fit_together(self, ours: Sequence[Self], data: FeatureSource, checkpoint: Checkpoint | None) -> None:
        """Fit detectors that differ in their seed only."""
        with rows_of(data, self.device) as z:
            projection = projection_for(self.projection, z)
            prior = self._fit_prior(data, z)
            models = [self._assemble(build_network(one.network, z.shape[1], int(one.seed)), prior) for one in ours]
            for model in models:
                model.to(self.device)
            if checkpoint is not None:
                checkpoint = replace(checkpoint, identity={**checkpoint.identity, **self._identity(data)})
            steps = self.training.epochs * max(1, len(z) // self.training.batch_size)
            several = f", {len(ours)} seeds" if len(ours) > 1 else ""
            with bar(f"fitting {type(self).__name__}{several}", steps, unit="steps") as advance:

                def progress(done: int, total: int, history: History) -> None:
                    advance(done, note=f"epoch {len(history)}: loss {history.loss[-1]:.4g}" if len(history) else "")

                project, seeds = PROJECTIONS[projection], [int(one.seed) for one in ours]
                histories = train_seeds(models, z, self.training, self.sampler, project, seeds, checkpoint, progress)
            for one, model, history in zip(ours, models, histories, strict=True):
                one.model_, one.history_, one.projection_ = one._finish(model), history, projection

    def _identity(self, data: FeatureSource) -> dict[str, Any]:
        """What a checkpoint must agree in, besides what the loop knows."""
        identity: dict[str, Any] = {"settings": {"network": to_plain(self.network)}}
        return identity | ({"labels": fingerprint({"labels": labels_of(data)})} if "labels" in data.shapes else {})

    def _fit_prior(self, data: FeatureSource, z: Rows) -> Prior | None:
        """The fitted prior, if there is one, from the normalised rows z (N, D)."""
        return None

    @abstractmethod
    def _assemble(self, network: nn.Module, prior: Prior | None) -> CorrectedEnergy:
        """A fresh model."""

    def _score(self, batch: Batch) -> Tensor:
        energy: Tensor = self.model_(once(normalise, batch["features"]))
        return energy

    def _finish(self, model: CorrectedEnergy) -> CorrectedEnergy:
        """Frozen, on this detector's device, sharing nothing with what was trained beside it."""
        model.prior = copy.copy(model.prior)
        for parameter in model.network.parameters():
            parameter.grad, parameter.data = None, parameter.data.clone()
        return model.to(self.device).eval().requires_grad_(False)

    def _moved(self) -> None:
        if hasattr(self, "model_"):
            self.model_.to(self.device)

    def _state(self) -> dict[str, Tensor]:
        return {f"network.{name}": value for name, value in self.model_.network.state_dict().items()}

    def _load_network(self, state: dict[str, Tensor]) -> nn.Module:
        given = tensors_under(state, "network.")
        width, count = cast(int, self._width), sum(value.numel() for value in given.values())
        if hasattr(self.network, "weights") and self.network.weights(width) != count:  # before memory is asked for
            raise FileFormatError(f"the file has {count} weights, but {self.network!r} has other ones")
        network = build_network(self.network, width, int(self.seed))
        wanted = {name: (tuple(value.shape), value.dtype) for name, value in network.state_dict().items()}
        network.load_state_dict({name: take(given, name, *about) for name, about in wanted.items()})
        return network

    def _notes(self) -> dict[str, Any]:
        return {"history": asdict(self.history_), "projection": self.projection_}

    def _load_notes(self, notes: dict[str, Any]) -> None:
        self.history_ = History.of(notes["history"])
        require_choice("projection", notes["projection"], tuple(PROJECTIONS))
        self.projection_ = notes["projection"]


def _checkpoint(given: PathLike | Checkpoint | None) -> Checkpoint | None:
    """The checkpoint, its file found writable before any work."""
    if isinstance(given, str | os.PathLike):
        given = Checkpoint(given)
    elif given is not None:
        require(isinstance(given, Checkpoint), "checkpoint", given, "a path or an outfield.Checkpoint")
    if given is not None:
        check_output(given.path, RECORD_ENDINGS, "checkpoint")
    return given


@register
class EBM(LearnedEnergy):
    """An energy-based model on its own (Lafon, Rambour & Thome 2022, "ours without mixture").

    score = E_θ(z) = network(z) / T, trained by maximum likelihood with chains that start from N(0, I).
    The defaults are the paper's. 200 steps a batch make it ten times as costly as the correction.

    Args:
        network: recipe of the network.
        temperature: T.
        sampler: how chains move.
        training: optimiser, loss and where chains start.
        projection: where chains live: "relu_sphere", "sphere", "none", or "auto" for the first unless features are negative.
        seed: of weights, batches and chains.
        field: the one that it works on: "features", or a stage of the network such as "stage2".
    """

    def __init__(
        self,
        network: Network = MLP(),
        temperature: float = 1e-2,
        sampler: Sampler = Langevin(steps=200, step_size=(1e-2, 1e-3), noise_std=(1e-2, 1e-3)),
        training: Training = Training(learning_rate=5e-5, l2=0.1),
        projection: str = "auto",
        seed: int = 0,
        field: str = "features",
    ) -> None:
        self.network, self.temperature, self.sampler = network, temperature, sampler
        self.training, self.projection, self.seed = training, projection, seed
        self.field = field

    @classmethod
    def paper(cls, seed: int = 0) -> Self:
        """With the paper's settings, which are the defaults; ``seed`` is that of weights, batches and chains."""
        return cls(seed=seed)

    def _check_settings(self) -> None:
        super()._check_settings()
        start = self.training.start
        wanted = "auto, normal, uniform, data, mixed or replay: there is no prior here"
        require(start != "prior", "training.start", start, wanted)

    def _assemble(self, network: nn.Module, prior: Prior | None) -> CorrectedEnergy:
        return CorrectedEnergy(network, float(self.temperature))

    def _load_state(self, state: dict[str, Tensor]) -> None:
        self.model_ = self._finish(self._assemble(self._load_network(state), None))
