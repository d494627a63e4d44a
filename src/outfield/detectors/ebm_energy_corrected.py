"""Detectors that train a network as an energy: EnergyCorrected, whose prior it corrects, and EBM, which has none."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from numbers import Integral
from typing import Any, Self, cast

from torch import Tensor, nn

from outfield.config import arguments, construct, require, require_choice, require_number, to_plain
from outfield.detectors.base import Batch, Detector, labels_of, take
from outfield.detectors.distance.ssd_mixture_rmds import statistics_of
from outfield.detectors.registry import register
from outfield.energy import (
    MLP,
    PROJECTIONS,
    Checkpoint,
    CorrectedEnergy,
    History,
    Langevin,
    MixturePrior,
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
from outfield.errors import InputError
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
    prior: Prior | None = None
    prior_temperature: float = 1.0
    sampler: Sampler
    training: Training
    projection: str
    seed: int
    projection_: str

    fits_in_pieces = uses_checkpoint = trained = True

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        return ("labels",) if self.prior is not None and self.prior.needs_labels else ()

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
        labels = {"labels": fingerprint({"labels": labels_of(data)})} if "labels" in data.shapes else {}
        return {"settings": {"network": to_plain(self.network)}, **labels}

    def _fresh_prior(self) -> Prior | None:
        return None if self.prior is None else construct(type(self.prior), arguments(self.prior))

    def _fit_prior(self, data: FeatureSource, z: Rows) -> Prior | None:
        """The fitted prior, if there is one, from the normalised rows z (N, D)."""
        prior = self._fresh_prior()
        if prior is None:
            return None
        if isinstance(z, Tensor):
            return prior.fit(z, data.in_memory().labels)
        if not isinstance(prior, MixturePrior):
            raise InputError(f"{type(prior).__name__} cannot be fitted in pieces; load the features first, in_memory()")
        return prior.merge(statistics_of(data, self.device))

    def _assemble(self, network: nn.Module, prior: Prior | None) -> CorrectedEnergy:
        """A fresh model."""
        return CorrectedEnergy(network, float(self.temperature), prior, float(self.prior_temperature))

    def _score(self, batch: Batch) -> Tensor:
        energy: Tensor = self.model_(normalise(batch["features"]))
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
        network, prior = self.model_.network.state_dict(), self.model_.prior
        found = {f"network.{name}": value for name, value in network.items()}
        return found | {f"prior.{name}": value for name, value in ({} if prior is None else prior.state()).items()}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        given, prior = tensors_under(state, "network."), self._fresh_prior()
        network = build_network(self.network, cast(int, self._width), int(self.seed))
        wanted = {name: (tuple(value.shape), value.dtype) for name, value in network.state_dict().items()}
        network.load_state_dict({name: take(given, name, *about) for name, about in wanted.items()})
        if prior is not None:
            prior.load_state(tensors_under(state, "prior."))
        self.model_ = self._finish(self._assemble(network, prior))
        self.history_, self.projection_ = History(**self._told["history"]), self._told["projection"]
        require_choice("projection", self.projection_, tuple(PROJECTIONS))

    def _notes(self) -> dict[str, Any]:
        return {"history": asdict(self.history_), "projection": self.projection_}


def _checkpoint(given: PathLike | Checkpoint | None) -> Checkpoint | None:
    """The checkpoint, its file found writable before any work."""
    if given is None:
        return None
    given = Checkpoint(given) if isinstance(given, str | os.PathLike) else given
    require(isinstance(given, Checkpoint), "checkpoint", given, "a path or an outfield.Checkpoint")
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


@register
class EnergyCorrected(LearnedEnergy):
    """A prior whose energy a network corrects, the paper's method (Lafon, Rambour & Thome 2022).

    score = E_θ(z) + E_prior(z) / T_prior, with E_θ = network / T trained by maximum likelihood, chains starting from the prior.
    The defaults are the paper's.

    Args:
        prior: what is corrected; a fresh copy of it is fitted.
        prior_temperature: T_prior. The paper's T_G = 1000 is stated for an energy without the factor ½: 500 here.
        network: recipe of the network.
        temperature: T in E_θ = network / T.
        sampler: how chains move.
        training: optimiser, loss and where chains start.
        projection: where chains live: "relu_sphere", "sphere", "none", or "auto" for the first unless features are negative.
        seed: of weights, batches and chains.
        field: the one that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        prior_: the fitted prior.
    """

    def __init__(
        self,
        prior: Prior = MixturePrior(),
        prior_temperature: float = 500.0,
        network: Network = MLP(),
        temperature: float = 1.0,
        sampler: Sampler = Langevin(),
        training: Training = Training(),
        projection: str = "auto",
        seed: int = 0,
        field: str = "features",
    ) -> None:
        self.prior, self.prior_temperature, self.network = prior, prior_temperature, network
        self.temperature, self.sampler, self.training = temperature, sampler, training
        self.projection, self.seed, self.field = projection, seed, field

    @classmethod
    def paper(cls, prior_temperature: float = 500.0, seed: int = 0) -> Self:
        """With the paper's settings, which are the defaults.

        Args:
            prior_temperature: 500 is T_G = 1000 as the paper's text defines the energy, without the factor ½; the authors'
                later code divides the energy with its ½ by 1000, which is 1000 here.
            seed: of weights, batches and chains.
        """
        return cls(prior_temperature=prior_temperature, seed=seed)

    @classmethod
    def quick(cls, prior_temperature: float = 2000.0, seed: int = 0) -> Self:
        """A fiftieth of the paper's network, taught by rows between classes: less than a minute on a CPU for 50,000 rows.

        Chains begin between two real rows (``start="mixed"``), because samples of the mixture lie on the other side of the data
        than OOD rows do, and make one move as long as the paper's twenty together. Start, temperature and epochs were chosen by
        the rows that a classifier gets wrong on its own test data (``docs/correction.md``). With fewer than some 5,000 rows the
        network hardly learns anything, and the score is the mixture's.

        Args:
            prior_temperature: how much the residual counts; the one number worth choosing for a network, by stand-ins.
            seed: of weights, batches and chains.
        """
        return cls(
            MixturePrior(floor=1e-6), prior_temperature, MLP(hidden=128, depth=2, slope=0.2), 1.0,
            Langevin(steps=1, step_size=(1.1e-5, 1.1e-5), noise_std=(2.75e-3, 2.75e-3)),
            Training(epochs=5, learning_rate=3e-4, start="mixed", average=2), seed=seed,
        )  # fmt: skip

    @property
    def prior_(self) -> Prior:
        return cast(Prior, self.model_.prior)

    def _check_settings(self) -> None:
        super()._check_settings()
        require(isinstance(self.prior, Prior), "prior", self.prior, "an outfield.Prior")
        require_number("prior_temperature", self.prior_temperature, above=0)
