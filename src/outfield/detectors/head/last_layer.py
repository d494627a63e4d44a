"""Bases of the detectors that apply the classifier's last layer, logits = W f + b, themselves."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from outfield.config import require, require_number, shown
from outfield.detectors.base import LARGEST, Batch, Detector
from outfield.errors import InputError, as_ours
from outfield.features import HEAD, FeatureSet, FeatureSource, Wrapped, head_of
from outfield.files import tensors_under

PREFIX = "detector."


def within_range(values: Tensor) -> Tensor:
    """The values as float64, cut off at float32's range, so that products and squares of them stay finite."""
    return values.double().clamp(-LARGEST, LARGEST)


def total(parts: Iterable[Tensor]) -> Tensor:
    """The sum of at least one tensor, part by part."""
    return functools.reduce(torch.add, parts)


def lengths(rows: Tensor) -> Tensor:
    """‖x‖ (n,) of each row (n, D)."""
    found: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return found


class HeadDetector(Detector):
    """A detector that learns W and b, and perhaps more.

    Features are taken as they come, since the layer was trained on them so: nothing is normalised. All numbers are float64,
    cut off at float32's range.
    """

    fit_needs = (HEAD,)
    fits_in_pieces = True
    learned: ClassVar[tuple[str, ...]] = ("weight float64 K D", "bias float64 K")

    def _fit(self, train: FeatureSource) -> None:
        head = head_of(train)
        self.weight_ = within_range(head.weight).to(self.device)
        self.bias_ = within_range(head.bias).to(self.device)
        self._learn(train)

    def _learn(self, train: FeatureSource) -> None:
        """Learn more than W and b."""

    def _pieces(self, train: FeatureSource) -> Iterator[Tensor]:
        return (within_range(features) for (features,) in self._read(train, "features"))

    def _mean(self, train: FeatureSource) -> Tensor:
        return total(features.sum(0) for features in self._pieces(train)) / len(train)

    def _logits(self, features: Tensor) -> Tensor:
        """W f + b (n, K) of features (n, D)."""
        return features @ self.weight_.T + self.bias_

    def _score(self, batch: Batch) -> Tensor:
        return self._score_features(within_range(batch["features"]))

    @abstractmethod
    def _score_features(self, features: Tensor) -> Tensor:
        """Scores (n,) of features (n, D), float64 on ``self.device``."""


class Shaper(HeadDetector):
    """Shapes features, applies the last layer, and gives the logits to ``detector_``, a copy fitted on such logits."""

    detector: Detector

    def _check_settings(self) -> None:
        right = isinstance(self.detector, Detector) and self.detector.needs_to_score == ("logits",)
        require(right, "detector", self.detector, "a detector that scores logits, such as outfield.EnergyLogits()")
        for name in ("percentile", "high", "low"):
            if hasattr(self, name):
                require_number(name, getattr(self, name), above=0, most=100)
        with as_ours(f"detector is {shown(self.detector)}", InputError, InputError):
            self.detector.check_settings()

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        return HEAD, *(name for name in self.detector.needs_to_fit if name not in ("logits", HEAD))

    def _fit(self, train: FeatureSource) -> None:
        super()._fit(train)
        data = Shaped(train, lambda rows: self._seen(within_range(rows.to(self.device))), len(self.weight_))
        self.detector_ = self.detector.fresh().to(self._device).fit(data)

    def _shaped(self, features: Tensor) -> Tensor:
        """f′ (n, D) of features f (n, D)."""
        return features

    def _shaped_logits(self, features: Tensor) -> Tensor:
        """W f′ + b (n, K)."""
        return self._logits(self._shaped(features))

    def _seen(self, features: Tensor) -> Tensor:
        """The logits as the detector sees them, cut off at float32's range."""
        return self._shaped_logits(features).clamp(-LARGEST, LARGEST)

    def _score_features(self, features: Tensor) -> Tensor:
        return self.detector_._score({"logits": self._seen(features)})

    def _inside(self) -> dict[str, Detector]:
        return {PREFIX: self.detector_} if "detector_" in self.__dict__ else {}

    def _notes(self) -> dict[str, Any]:
        notes = self.detector_._notes()
        return {"detector": notes} if notes else {}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        super()._load_state(state)
        self.detector_ = self.detector.fresh().to(self._device)
        self.detector_._width, self.detector_._told = len(self.weight_), self._told.get("detector", {})
        self.detector_._load_state(tensors_under(state, PREFIX))
        self.detector_._fitted = True


class Shaped(Wrapped):
    """A source of features whose logits (N, classes) are made from its features; it is read in its order."""

    def __init__(self, source: FeatureSource, logits: Callable[[Tensor], Tensor], classes: int) -> None:
        super().__init__(source)
        self.logits, self.classes, self.picks_rows = logits, classes, False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {**self.source.shapes, "logits": (len(self.source), self.classes)}

    def batches(self, size: int, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
        chosen = self._chosen(names)
        read = dict.fromkeys("features" if name == "logits" else name for name in chosen)
        for piece in self.source.batches(size, read):
            yield {name: self.logits(piece["features"]).cpu() if name == "logits" else piece[name] for name in chosen}

    def rows(self, index: Sequence[int] | np.ndarray | Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        raise NotImplementedError

    def in_memory(self) -> FeatureSet:
        logits = torch.cat([piece["logits"] for piece in self.batches(Shaper.rows_at_once, ["logits"])])
        return FeatureSet(**{**self.source.in_memory().tensors(), "logits": logits})
