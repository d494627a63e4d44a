"""Base of the detectors that train a network as an energy."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import asdict, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from outfield import storage
from outfield.config import require, require_number
from outfield.detectors.base import Batch, Detector
from outfield.energy import CorrectedEnergy, Network
from outfield.errors import FileFormatError
from outfield.features import FeatureSet
from outfield.langevin import Sampler
from outfield.progress import bar
from outfield.projection import PROJECTIONS, normalise, resolve
from outfield.training import Checkpoint, History, Training, train


class LearnedEnergy(Detector):
    """A trained energy of the normalised features is the score.

    Attributes:
        model_: the energy, :class:`outfield.energy.CorrectedEnergy`.
        history_: loss and energies per epoch, :class:`outfield.training.History`.
        projection_: where its chains lived.
    """

    network: Network
    temperature: float
    sampler: Sampler
    training: Training
    projection: str
    seed: int

    def fit(self, train: FeatureSet, *, checkpoint: storage.PathLike | Checkpoint | None = None) -> Self:
        """Train; shows progress on a terminal; returns self.

        Args:
            train: ID training data.
            checkpoint: a file in which the running fit is kept. If it exists, the fit goes on from there; on the CPU it
                ends with the same bits as one that was never interrupted.

        Raises:
            MissingFieldError: labels are needed and absent.
            DivergenceError: energies became non-finite or exploded; the message says what to change.
            InputError: the checkpoint belongs to another fit.
        """
        self._check_settings()
        self._accept(train, self.fit_needs, "fit")
        if isinstance(checkpoint, str | os.PathLike):
            checkpoint = Checkpoint(checkpoint)
        require(isinstance(checkpoint, Checkpoint | None), "checkpoint", checkpoint, "a path or an outfield.Checkpoint")
        self._fit(train, checkpoint)
        return self._now_fitted(train)

    def _check_settings(self) -> None:
        super()._check_settings()
        require(isinstance(self.training, Training), "training", self.training, "an outfield.Training")
        require(hasattr(self.sampler, "move"), "sampler", self.sampler, "a sampler such as outfield.Langevin")
        require(hasattr(self.network, "build"), "network", self.network, "a network such as outfield.MLP")
        require_number("temperature", self.temperature, above=0)
        require_number("seed", self.seed, least=0, most=2**63 - 1, whole=True)

    def _fit(self, data: FeatureSet, checkpoint: Checkpoint | None = None) -> None:
        z = torch.cat([normalise(piece["features"].to(self.device)) for piece in data.batches(self.rows_at_once)])
        labels = None if data.labels is None else data.labels.to(self.device)
        projection = resolve(self.projection, z)
        model = self._build(z, labels).to(self.device)
        if checkpoint is not None and labels is not None:
            checkpoint = replace(checkpoint, identity={"labels": storage.fingerprint({"labels": labels})})
        steps = self.training.epochs * max(1, len(z) // self.training.batch_size)
        with bar(f"fitting {type(self).__name__}", steps, unit="steps") as advance:

            def progress(done: int, total: int, history: History) -> None:
                advance(done, note=f"epoch {len(history)}: loss {history.loss[-1]:.4g}" if len(history) else "")

            project = PROJECTIONS[projection]
            history = train(model, z, self.training, self.sampler, project, self.seed, checkpoint, progress)
        self.model_, self.history_, self.projection_ = self._finish(model), history, projection

    @abstractmethod
    def _build(self, z: Tensor, labels: Tensor | None) -> CorrectedEnergy:
        """A fresh model for rows z (N, D)."""

    def _score(self, batch: Batch) -> Tensor:
        energy: Tensor = self.model_(normalise(batch["features"]))
        return energy

    def _finish(self, model: CorrectedEnergy) -> CorrectedEnergy:
        """Frozen, in evaluation mode, on this detector's device."""
        return model.to(self.device).eval().requires_grad_(False)

    def _moved(self) -> None:
        if hasattr(self, "model_"):
            self.model_.to(self.device)

    def _state(self) -> dict[str, Tensor]:
        return {f"network.{name}": value for name, value in self.model_.network.state_dict().items()}

    def _load_network(self, state: dict[str, Tensor]) -> nn.Module:
        if self._width is None:
            raise FileFormatError("the file does not say how wide the features were")
        network = self.network.build(self._width, self.seed)
        network.load_state_dict({n.removeprefix("network."): v for n, v in state.items() if n.startswith("network.")})
        return network

    def _notes(self) -> dict[str, Any]:
        return {"history": asdict(self.history_), "projection": self.projection_}

    def _load_notes(self, notes: dict[str, Any]) -> None:
        self.history_ = History(**notes["history"])
        self.projection_ = notes["projection"]
