"""Divergence of the softmax from the templates of classes."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.detectors.base import Batch, Detector
from outfield.detectors.class_means import ClassSums
from outfield.detectors.registry import register
from outfield.detectors.softmax import log_shares
from outfield.detectors.state import take
from outfield.features.set import FeatureSource

TINY = torch.finfo(torch.float64).tiny


@register
class KLMatching(Detector):
    """Divergence of the softmax from the nearest template of a class (Hendrycks et al. 2022).

    score = min_c KL(p ‖ d_c), p = softmax(l), with d_c the mean softmax of the training rows that are classified as c. A
    class that no row is classified as has no template. Rows that the classifier was not trained on give the better templates.

    Attributes:
        log_templates_: log d_c (K', K), float64; where d_c would round to 0 it is the smallest number above 0.
    """

    fit_needs = ("logits",)
    score_needs = ("logits",)
    fits_in_pieces = True

    log_templates_: Tensor

    def _fit(self, train: FeatureSource) -> None:
        sums = ClassSums(train.shapes["logits"][1], self.device)
        for piece in train.batches(self.rows_at_once, ("logits",)):
            log_p = log_shares(piece["logits"].to(self.device))[0]
            sums.add(log_p.exp(), log_p.argmax(1))
        self.log_templates_ = sums.means().means.clamp_min(TINY).log()

    def _score(self, batch: Batch) -> Tensor:
        log_p = log_shares(batch["logits"])[0]
        p = log_p.exp()
        cross = -p @ self.log_templates_.to(self.device).T
        return cross.amin(1) + (p * log_p).sum(1)

    def _state(self) -> dict[str, Tensor]:
        return {"log_templates": self.log_templates_}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        self.log_templates_ = take(state, "log_templates", (None, self._width), torch.float64)
