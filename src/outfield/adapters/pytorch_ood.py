"""pytorch-ood detectors around ours: higher = OOD in both libraries, so that scores are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn

from outfield.adapters.plain_rows import fit_on_rows, unfitted
from outfield.detectors import Detector
from outfield.errors import InputError, NotFittedError
from outfield.extras import library
from outfield.features import FeatureSet

api = library("pytorch_ood.api", extra="pytorch-ood")
features = library("pytorch_ood.utils", extra="pytorch-ood")


class OutfieldFeatures(api.FeaturesDetector):  # type: ignore[misc,name-defined]
    """Any detector of features as a ``FeaturesDetector``.

    Args:
        detector: A detector that works on features alone, such as ``of.KNN(k=5)``, or the name of one ("SSD").
        encoder: A callable that gives pooled features (B, D) of images, for ``fit`` and ``predict``; not needed for
            ``fit_features`` and ``predict_features``.
    """

    requires_fit = True

    def __init__(self, detector: Detector | str = "SSD", encoder: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.detector = unfitted(detector)
        self.encoder = encoder
        self._fitted = False

    def fit(self, data_loader: Any) -> Self:
        """Encode what a loader yields, batches (x, y), and learn from it; rows with y < 0, which are OOD there, are left out."""
        if self.encoder is None:
            raise api.ModelNotSetException
        device = self.device or "cpu"
        rows, classes = features.extract_features(data_loader=data_loader, model=self.encoder, device=device)
        return self.fit_features(rows, classes)

    def fit_features(self, x: Tensor, y: Tensor | None = None) -> Self:
        """Learn from features (N, D) and classes (N,); rows with y < 0, which are OOD in pytorch-ood, are left out."""
        rows, classes = _id_rows(x, y)
        self.detector = fit_on_rows(self.detector, FeatureSet(rows), classes, device=str(self.device or "auto"))
        self._fitted = True
        return self

    def predict_features(self, x: Tensor) -> Tensor:
        """Scores (B,), float32, where ``x`` is; higher = more OOD."""
        if not self._fitted:
            raise api.RequiresFittingException
        return self.detector.score(FeatureSet(x.detach())).to(x.device)

    def predict(self, x: Tensor) -> Tensor:
        """Scores (B,) of images, through the encoder."""
        if self.encoder is None:
            raise api.ModelNotSetException
        return self.predict_features(self.encoder(x if self.device is None else x.to(self.device)))


class OutfieldLogits(api.LogitsDetector):  # type: ignore[misc,name-defined]
    """Any detector that scores logits alone (MSP, EnergyLogits, MaxLogit, GEN, Entropy, KLMatching, …) as a ``LogitsDetector``.

    Args:
        detector: Such a detector, or its name.
        model: A network that gives logits (B, K) of images, for ``fit`` and ``predict``.
    """

    requires_fit = True

    def __init__(self, detector: Detector | str = "EnergyLogits", model: nn.Module | None = None) -> None:
        super().__init__()
        self.detector = unfitted(detector)
        self.model = model
        if self.detector.needs_to_score != ("logits",):
            name, needs = type(self.detector).__name__, " and ".join(self.detector.needs_to_score)
            raise InputError(f"{name} scores {needs}, not logits; use OutfieldFeatures for a detector of features")

    def fit_logits(self, logits: Tensor, y: Tensor | None = None) -> Self:
        """Learn from logits (N, K) and classes (N,); rows with y < 0, which are OOD in pytorch-ood, are left out."""
        self.detector.to(str(self.device or "auto")).fit(_set_of(*_id_rows(logits, y)))
        return self

    def predict_logits(self, logits: Tensor) -> Tensor:
        """Scores (B,), float32, where ``logits`` are; higher = more OOD."""
        try:
            return self.detector.score(_set_of(logits.detach())).to(logits.device)
        except NotFittedError as error:
            raise api.RequiresFittingException from error


def _id_rows(rows: Tensor, classes: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rows and classes without those below 0, which are OOD in pytorch-ood."""
    return (rows.detach(), None) if classes is None else (rows.detach()[classes >= 0], classes[classes >= 0])


def _set_of(logits: Tensor, classes: Tensor | None = None) -> FeatureSet:
    """Logits as a set, in the place of features, too, which a set must have."""
    return FeatureSet(logits, logits=logits, labels=classes)
