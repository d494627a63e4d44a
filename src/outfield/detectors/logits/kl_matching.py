"""Divergence of the softmax from the templates of classes."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.detectors.base import Batch
from outfield.detectors.distance.cosine_mean_she import ClassSums
from outfield.detectors.logits.softmax import LogitDetector, log_shares
from outfield.detectors.registry import register
from outfield.features import FeatureSource

TINY = torch.finfo(torch.float64).tiny


@register
class KLMatching(LogitDetector):
    """Divergence of the softmax from the nearest template of a class (Hendrycks et al. 2022).

    score = min_c KL(p ‖ d_c), p = softmax(l), with d_c the mean softmax of the training rows that are classified as c. A
    class that no row is classified as has no template. Rows that the classifier was not trained on give the better templates.

    Attributes:
        log_templates_: log d_c (K', K), float64; where d_c would round to 0 it is the smallest number above 0.
    """

    fit_needs = ("logits",)
    learned = ("log_templates float64 T D",)

    def _fit(self, train: FeatureSource) -> None:
        sums = ClassSums(train.shapes["logits"][1], self.device)
        for piece in train.batches(self.rows_at_once, ("logits",)):
            log_p = log_shares(piece["logits"].to(self.device))[0]
            sums.add(log_p.exp(), log_p.argmax(1))
        self.log_templates_ = sums.means()[1].clamp_min(TINY).log()

    def _score(self, batch: Batch) -> Tensor:
        log_p = log_shares(batch["logits"])[0]
        p = log_p.exp()
        cross = -p @ self.log_templates_.T
        return cross.amin(1) + (p * log_p).sum(1)
