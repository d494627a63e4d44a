"""Detectors that look only at the classifier's outputs: MSP, ODIN, Energy-logits. There is nothing to learn."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch, log_total, once, wide
from outfield.detectors.logits.softmax import LogitDetector
from outfield.detectors.registry import register


@register
class MSP(LogitDetector):
    """Maximum softmax probability (Hendrycks & Gimpel 2017).

    score = 1 − max_c softmax(l)_c, computed as r / (1 + r) with r = Σ_{c ≠ max} exp(l_c − l_max), so that confident rows keep
    their order instead of all rounding to 0 (up to a margin of about 100, where float32 ends).
    """

    def _score(self, batch: Batch) -> Tensor:
        logits = once(wide, batch["logits"])
        top, index = logits.max(dim=1, keepdim=True)
        rest = (logits - top).exp().scatter(1, index, 0.0).sum(1)
        return rest / (1 + rest)


@register
class ODIN(LogitDetector):
    """MSP with a temperature, at the perturbed input (Liang et al. 2018).

    Scores ``odin_logits`` l, the outputs at x̃ = x − ε sign(−∇ log S(x; T)). With S = max_c softmax(l / T)_c,

        score = T (−log S − log K) = T log mean_c exp(l_c / T) − max_c l_c,

    an increasing function of 1 − S that keeps its resolution at T = 1000, where S itself differs in the fourth digit.

    Args:
        temperature: T.
    """

    score_needs = ("odin_logits",)

    def __init__(self, temperature: float = 1000.0) -> None:
        self.temperature = temperature

    def _check_settings(self) -> None:
        require_number("temperature", self.temperature, above=0)

    def _score(self, batch: Batch) -> Tensor:
        logits = batch["odin_logits"].double()
        below, temperature = logits - logits.amax(dim=1, keepdim=True), float(self.temperature)
        return temperature * torch.log1p(torch.expm1(below / temperature).mean(1))


@register
class EnergyLogits(LogitDetector):
    """Free energy of the logits (Liu et al. 2020).

    score = −T log Σ_c exp(l_c / T).

    Args:
        temperature: T.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature

    def _check_settings(self) -> None:
        require_number("temperature", self.temperature, above=0)

    def _score(self, batch: Batch) -> Tensor:
        temperature, logits = float(self.temperature), batch["logits"]
        if temperature == 1:
            return -once(log_total, logits)
        return -temperature * torch.logsumexp(once(wide, logits) / temperature, dim=1)
