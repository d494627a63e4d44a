"""The logits' energy, guided by the nearest training features."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch, log_total, once, take
from outfield.detectors.distance.bank import BankDetector, largest_weighted
from outfield.detectors.registry import register
from outfield.errors import FileFormatError
from outfield.features import FeatureSource


@register
class NNGuide(BankDetector):
    """Energy of the logits, guided by nearest neighbours (Park et al. 2023).

    score = −e(l) · mean of the k largest cos(z, z_i) e(l_i) over all training rows i, with e(l) = log Σ_c exp(l_c).

    The authors take k = 100 of a hundredth of the training rows; here all rows are kept, and k is smaller.

    Args:
        k: How many training rows guide a score.
        on: The field that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        bank_: normalised training features (N, D), float32.
        energies_: e(l_i) (N,), float64.
        classes_: number of logits.
    """

    fit_needs = ("logits",)
    score_needs = ("features", "logits")
    learned = (*BankDetector.learned, "energies float64 N")

    classes_: int

    def __init__(self, k: int = 10, on: str = "features") -> None:
        self.k, self.on = k, on

    def _check_settings(self) -> None:
        require_number("k", self.k, least=1, whole=True)

    def _fit(self, train: FeatureSource) -> None:
        super()._fit(train)
        self.energies_ = self._gathered(train, "logits", log_total)
        self.classes_ = train.shapes["logits"][1]

    def _check_width(self, data: FeatureSource) -> None:
        super()._check_width(data)
        self._check_columns(data, "logits", self.classes_)

    def _score(self, batch: Batch) -> Tensor:
        best = largest_weighted(batch["features"], self.bank_, self.energies_, int(self.k))
        return -once(log_total, batch["logits"]) * best.mean(1)

    def _state(self) -> dict[str, Tensor]:
        return super()._state() | {"classes": torch.tensor([self.classes_], dtype=torch.int64, device="cpu")}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        super()._load_state(state)
        self.classes_ = int(take(state, "classes", (1,), torch.int64))
        if self.classes_ < 1:
            raise FileFormatError(f"classes is {self.classes_}; it must be at least 1")
