"""What detectors of a classifier's outputs share: their base, exact probabilities, and a root search."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from outfield.detectors.base import Detector, once, wide
from outfield.features import FeatureSource

LOWEST = torch.finfo(torch.float64).min
STEPS = 200


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
    double = once(wide, logits)
    below = (double - double.amax(dim=1, keepdim=True)).clamp_min(LOWEST)
    return (below * scale).clamp_min(LOWEST)


def increasing_root(
    function: Callable[[float], tuple[float, float]], low: float, high: float, tolerance: float = 1e-12
) -> float:
    """The x in [low, high], low > 0, at which an increasing function is 0; the nearer end where it is 0 nowhere between them.

    ``function`` gives value and slope at x. Newton's steps, as long as they stay in the bracket and halve the distance; else the
    bracket is halved, on a scale of logarithms. So it ends, whatever the function does between its ends.
    """
    if function(low)[0] >= 0:
        return low
    if function(high)[0] <= 0:
        return high
    x, step = math.sqrt(low * high), high
    for _ in range(STEPS):
        value, slope = function(x)
        if abs(value) <= tolerance * x * abs(slope):
            break
        low, high = (x, high) if value < 0 else (low, x)
        converges = 2 * abs(value) <= abs(step * slope)
        newton = x - value / slope if converges and slope > 0 else low
        new = newton if low < newton < high else math.sqrt(low * high)
        step, x = new - x, new
        if abs(step) <= tolerance * x:
            break
    return x
