"""Detectors of the classifier's outputs alone: MSP, ODIN, EnergyLogits, MaxLogit, Entropy and GEN, which learn nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch, Detector
from outfield.detectors.registry import register
from outfield.features import FeatureSource

LOWEST = torch.finfo(torch.float64).min


class LogitDetector(Detector):
    """Base of the detectors that score logits; there is nothing to learn unless a subclass does."""

    score_needs = ("logits",)
    fits_in_pieces = True

    def _fit(self, train: FeatureSource) -> None:
        pass


def log_shares(logits: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """log p and log (1 − p) for p = softmax(scale · l), float64, each with its full relative precision.

    With m the class of the largest logit and r = Σ_{c ≠ m} exp(scale (l_c − l_m)), p_m = 1 / (1 + r) and
    1 − p_m = r / (1 + r): confident rows, whose p_m rounds to 1, differ in r all the same. log (1 − p) is −inf where there is
    one class only.
    """
    below = below_top(logits, scale)
    top = below.argmax(dim=1, keepdim=True)
    log_rest = below.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    log_total = log_rest.exp().log1p()
    log_p = below - log_total
    return log_p, torch.log1p(-log_p.exp()).scatter(1, top, log_rest - log_total)


def below_top(logits: Tensor, scale: float = 1.0) -> Tensor:
    """scale · (l_c − max l) (N, K), float64: 0 at the largest logit, finite everywhere."""
    double = logits.double()
    below = (double - double.amax(dim=1, keepdim=True)).clamp_min(LOWEST)
    return (below * scale).clamp_min(LOWEST)


@register
class MSP(LogitDetector):
    """Maximum softmax probability (Hendrycks & Gimpel 2017).

    score = 1 − max_c softmax(l)_c, computed as r / (1 + r) with r = Σ_{c ≠ max} exp(l_c − l_max), so that confident rows keep
    their order instead of all rounding to 0 (up to a margin of about 100, where float32 ends).
    """

    def _score(self, batch: Batch) -> Tensor:
        logits = batch["logits"].double()
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
        temperature = float(self.temperature)
        return -temperature * torch.logsumexp(batch["logits"].double() / temperature, dim=1)


@register
class MaxLogit(LogitDetector):
    """The largest logit, its sign turned (Hendrycks et al. 2022).

    score = −max_c l_c.
    """

    def _score(self, batch: Batch) -> Tensor:
        return -batch["logits"].double().amax(1)


@register
class Entropy(LogitDetector):
    """Entropy of the softmax (Chan et al. 2021).

    score = −Σ_c p_c log p_c with p = softmax(l), between 0 and log K. Each term keeps its relative precision, so that
    confident rows keep their order.
    """

    def _score(self, batch: Batch) -> Tensor:
        log_p = log_shares(batch["logits"])[0]
        return -(log_p.exp() * log_p).sum(1)


@register
class GEN(LogitDetector):
    """Generalised entropy of the most probable classes (Liu et al. 2023).

    score = Σ_c p_c^γ (1 − p_c)^γ over the M largest p = softmax(l).

    Args:
        gamma: γ. The smaller it is, the more do small probabilities count.
        classes: M; all classes where there are fewer.
    """

    def __init__(self, gamma: float = 0.1, classes: int = 100) -> None:
        self.gamma, self.classes = gamma, classes

    def _check_settings(self) -> None:
        require_number("gamma", self.gamma, above=0, most=1)
        require_number("classes", self.classes, least=1, whole=True)

    def _score(self, batch: Batch) -> Tensor:
        log_p, log_rest = log_shares(batch["logits"])
        log_p, largest = log_p.topk(min(int(self.classes), log_p.shape[1]), dim=1)
        return (float(self.gamma) * (log_p + log_rest.gather(1, largest))).exp().sum(1)
