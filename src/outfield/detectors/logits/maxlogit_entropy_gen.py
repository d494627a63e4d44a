"""Detectors that measure how sure the classifier's outputs are: MaxLogit, Entropy, GEN. There is nothing to learn."""

from __future__ import annotations

from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch, once, wide
from outfield.detectors.logits.softmax import LogitDetector, log_shares
from outfield.detectors.registry import register


@register
class MaxLogit(LogitDetector):
    """The largest logit, its sign turned (Hendrycks et al. 2022).

    score = −max_c l_c.
    """

    def _score(self, batch: Batch) -> Tensor:
        return -once(wide, batch["logits"]).amax(1)


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
