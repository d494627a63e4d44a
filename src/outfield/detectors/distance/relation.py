"""How many training rows a row is related to."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch
from outfield.detectors.distance.bank import BankDetector, cosines
from outfield.detectors.registry import register
from outfield.errors import FileFormatError
from outfield.features import FeatureSource

# how far the probabilities of a row may sum to something else than 1 in a file: a thousand of them in half precision
MOST_OFF = 2e-2


@register
class Relation(BankDetector):
    """Sum of relations to training rows, by features and predictions (Kim et al. 2023).

    score = −Σ_i s_i over the training rows i with s_i > τ, where s_i = max(cos(z, z_i), 0) · (p · p_i) and p = softmax(l): a row
    is related to those that look alike to the network and that it takes for the same class.

    Args:
        threshold: τ, which leaves out what is hardly related, of which there is much.
        on: The field that it works on: "features", or a stage of the network such as "stage2".

    Attributes:
        bank_: normalised training features (N, D), float32.
        probabilities_: p_i (N, K), float32.
    """

    fit_needs = ("logits",)
    score_needs = ("features", "logits")
    learned = (*BankDetector.learned, "probabilities float32 N K")

    def __init__(self, threshold: float = 0.03, on: str = "features") -> None:
        self.threshold, self.on = threshold, on

    def _check_settings(self) -> None:
        require_number("threshold", self.threshold, above=0, most=1)

    def _fit(self, train: FeatureSource) -> None:
        super()._fit(train)
        self.probabilities_ = self._gathered(train, "logits", lambda logits: _softmax(logits).float())

    def _check_width(self, data: FeatureSource) -> None:
        super()._check_width(data)
        self._check_columns(data, "logits", self.probabilities_.shape[1])

    def _score(self, batch: Batch) -> Tensor:
        p = _softmax(batch["logits"])
        total = torch.zeros(len(p), dtype=torch.float64, device=self.device)
        for part, table in cosines(batch["features"], self.bank_):
            related = table.relu() * (p @ self.probabilities_[part].double().T)
            total += torch.where(related > float(self.threshold), related, 0.0).sum(1)
        return -total

    def _load_state(self, state: dict[str, Tensor]) -> None:
        super()._load_state(state)
        totals = self.probabilities_.sum(1)
        if not bool((self.probabilities_ >= 0).all() & ((totals - 1).abs() < MOST_OFF).all()):
            raise FileFormatError("probabilities must be at least 0 and sum to 1 in each row; that is not so")


def _softmax(logits: Tensor) -> Tensor:
    return logits.double().softmax(1)
