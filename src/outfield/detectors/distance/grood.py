"""Nearest neighbours among gradients by a prototype of OOD rows, which are a formula."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.detectors.base import Batch, labels_of
from outfield.detectors.distance.cosine_mean_she import ClassSums
from outfield.detectors.distance.neighbours import BankDetector
from outfield.detectors.head.last_layer import lengths, within_range
from outfield.detectors.registry import register
from outfield.features import HEAD, FeatureSource, head_of

TINY = torch.finfo(torch.float64).tiny


@register
class GROOD(BankDetector):
    """Distance to the nearest gradient of a training row by a prototype of OOD rows (ElAraby et al. 2025).

    score = min_i ‖g(f) − g(f_i)‖ over the training rows i that the network classifies right (over all where it does none), with

        g(f) = p_ν(f) (f − ν) / ‖f − ν‖, p_ν(f) = exp(−‖f − ν‖) / (exp(−‖f − ν‖) + Σ_c exp(−‖f − μ_c‖)).

    μ_c is the mean feature of class c, and ν, the prototype of OOD rows, the mean of (f_i + μ_s(i)) / 2 over all training rows,
    with s(i) the class of row i's second largest logit. g is the derivative by ν of −log p_c(f), the same for every class c.

    Features are taken as they come. The authors mix the rows in front of the last block and let the network go on; here, without
    the network, they are mixed as features. The authors' index of neighbours is approximate, this one is exact.

    Attributes:
        bank_: g of the training rows (N', D), float32.
        prototypes_: μ_c of every class that was seen (K', D), float64.
        origin_: ν (D,), float64.

    >>> import outfield as of
    >>> rows = of.FeatureSet([[0.0, 1.0], [0.0, 2.0], [3.0, 0.0]], labels=[0, 0, 1], head_weight=[[0.0, 1.0], [1.0, 0.0]])
    >>> of.GROOD().fit(rows).score(rows).tolist()
    [0.0, 0.0, 0.0]
    """

    fit_needs = ("labels", HEAD)
    learned = (*BankDetector.learned, "prototypes float64 K D", "origin float64 D")

    def _fit(self, train: FeatureSource) -> None:
        seen = labels_of(train).unique().to(self.device)
        head, sums, right = head_of(train), ClassSums(train.shapes["features"][1], self.device), []
        seconds = torch.zeros(len(seen), dtype=torch.float64, device=self.device)
        for features, labels in self._read(train, "features", "labels"):
            best = head.logits(features)[:, seen].topk(min(2, len(seen)), dim=1).indices
            sums.add(within_range(features), labels)
            seconds += best[:, -1].bincount(minlength=len(seen))
            right.append(seen[best[:, 0]] == labels)
        self.prototypes_ = sums.means()[1]
        self.origin_ = (sums.sums.sum(0) + seconds @ self.prototypes_) / (2 * len(train))
        gradients, chosen = self._gathered(train, "features", self._gradients), torch.cat(right)
        self._keep(gradients[chosen] if bool(chosen.any()) else gradients)

    def _gradients(self, features: Tensor) -> Tensor:
        """g of features (n, D), float32.

        ‖f − ν‖ − ‖f − μ_c‖ is taken as (‖f − ν‖² − ‖f − μ_c‖²) / (‖f − ν‖ + ‖f − μ_c‖), whose numerator does not grow with f².
        """
        away, means = within_range(features) - self.origin_, self.prototypes_ - self.origin_
        far = lengths(away)[:, None]
        difference = 2 * away @ means.T - means.square().sum(1)
        distances = (far.square() - difference).clamp_min(0).sqrt()
        nearer = difference / (far + distances).clamp_min(TINY)
        log_p = -torch.cat([torch.zeros_like(far), nearer], 1).logsumexp(1, keepdim=True)
        return (log_p.exp() * away / far.clamp_min(TINY)).float()

    def _score(self, batch: Batch) -> Tensor:
        return self._neighbours.kth_distance(self._gradients(batch["features"]), 1)
