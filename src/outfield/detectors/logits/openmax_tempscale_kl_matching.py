"""Detectors that learn from logits: OpenMax, TempScale and KLMatching."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch, take
from outfield.detectors.distance.cosine_mean_she import ClassSums
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import LogitDetector, below_top, log_shares
from outfield.detectors.registry import register
from outfield.errors import FileFormatError, InputError, TooFewSamplesError
from outfield.features import FeatureSource

MOST = torch.finfo(torch.float64).max
SHAPES = (1e-2, 1e4)  # between these the shape is sought: values that are all but equal have no finite one
SMALLEST = 1e-12  # values below this share of the largest count as that much
RANGE = 50.0  # T lies between u / RANGE and u · RANGE
SMALLEST_UNIT, HOTTEST = 1e-300, 1e300  # logits whose u is smaller do not differ; no temperature is larger
TINY = torch.finfo(torch.float64).tiny
STEPS = 200  # of the search for a root, at most


@register
class OpenMax(LogitDetector):
    """Probability of an unknown class (Bendale & Boult 2016).

    Of each class c, over training rows that are classified right, μ_c is the mean of the logits, and F_c the Weibull
    distribution of the largest distances ‖l − μ_c‖. A row's α largest logits are lowered by how far out they lie,

        w_c = (α − rank(c)) / α · F_c(‖l − μ_c‖),  l'_c = l_c (1 − w_c),  l'_0 = Σ_c l_c w_c,

    rank(c) = 0 for the largest logit, w_c = 0 for all other classes, and

        score = exp(l'_0) / (exp(l'_0) + Σ_c exp(l'_c)),

    the probability of the unknown class 0. (Others report one minus the largest of the known; the unknown's own probability is
    what the method was made for.) F_c has two parameters and begins at 0. A class with fewer than two different distances has
    the F of all classes' distances together, and one without a row classified right is not lowered.

    Args:
        tail: How many of the largest distances of a class F_c is fitted to; all where there are fewer.
        alpha: α; all classes where there are fewer.

    Attributes:
        classes_: classes with a row that is classified right (K',).
        means_: μ_c of these classes (K', K), float64.
        scales_, shapes_: parameters of F_c (K',), float64.
    """

    fit_needs = ("labels", "logits")
    learned = ("means float64 C D", "classes int64 C", "scales float64+ C", "shapes float64+ C")

    def __init__(self, tail: int = 20, alpha: int = 10) -> None:
        self.tail, self.alpha = tail, alpha

    def _check_settings(self) -> None:
        require_number("tail", self.tail, least=2, whole=True)
        require_number("alpha", self.alpha, least=1, whole=True)

    def _fit(self, train: FeatureSource) -> None:
        sums = ClassSums(train.shapes["logits"][1], self.device)
        for logits, labels in self._right(train):
            sums.add(logits, labels)
        self.classes_, self.means_ = sums.means()
        distances, labels = self._distances(train)
        rows = [distances[labels == c].sort(descending=True).values[: int(self.tail)] for c in self.classes_]
        pooled = distances.sort(descending=True).values[: int(self.tail)]
        if not _differ(pooled):
            raise TooFewSamplesError("OpenMax needs rows that are classified right and differ from their class's mean")
        fitted = [fit_weibull(values if _differ(values) else pooled) for values in rows]
        self.scales_, self.shapes_ = torch.tensor(fitted, dtype=torch.float64, device=self.device).T.contiguous()

    def _right(self, train: FeatureSource) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and labels of the rows that are classified right."""
        for logits, labels in self._read(train, "logits", "labels"):
            right = logits.argmax(1) == labels
            yield logits[right].double(), labels[right]

    def _distances(self, train: FeatureSource) -> tuple[Tensor, Tensor]:
        """Of each row that is classified right, its distance to the mean of its class, and its label, (n,) both."""
        found = []
        for logits, labels in self._right(train):
            own = self.means_[torch.searchsorted(self.classes_, labels)]
            found.append(((logits - own).norm(dim=1), labels))
        distances, classes = (torch.cat(column) for column in zip(*found, strict=True))
        if not bool(torch.isfinite(distances).all()):
            raise InputError("logits are so large that their squares are not finite; OpenMax needs smaller ones")
        return distances, classes

    def _score(self, batch: Batch) -> Tensor:
        logits = batch["logits"].double()
        alpha = min(int(self.alpha), logits.shape[1])
        place = torch.full((logits.shape[1],), -1, device=self.device)
        place[self.classes_] = torch.arange(len(self.means_), device=self.device)
        largest, order = logits.topk(alpha, dim=1)
        moved = torch.zeros_like(logits)
        for rank in range(alpha):
            own = place[order[:, rank]]
            distances = (logits - self.means_[own]).norm(dim=1)
            away = -torch.expm1(-((distances / self.scales_[own]) ** self.shapes_[own]))  # F_c
            share = torch.where(own >= 0, (alpha - rank) / alpha * away, 0.0)
            moved.scatter_(1, order[:, rank : rank + 1], (share * largest[:, rank])[:, None])
        unknown = moved.sum(1, keepdim=True).clamp(-MOST, MOST)
        return torch.cat([unknown, logits - moved], 1).softmax(1)[:, 0]


def _differ(distances: Tensor) -> bool:
    """Whether there are two distances, not both the same."""
    return len(distances) > 1 and bool(distances[0] > distances[-1])


def fit_weibull(values: Tensor) -> tuple[float, float]:
    """Scale and shape of largest likelihood of Weibull's distribution, F(x) = 1 − exp(−(x / scale)^shape).

    With y = log(x / max x) the shape k is the root of

        Σ exp(k y) y / Σ exp(k y) − 1 / k − mean y,

    which increases in k, and scale = max x · (mean exp(k y))^(1/k). The values x (n,) are at least 0, and one is above.
    """
    largest = values.max()
    y = (values / largest).clamp_min(SMALLEST).log()
    mean = float(y.mean())

    def equation(k: float) -> tuple[float, float]:
        weights = (k * y).softmax(0)
        centre = float((weights * y).sum())
        return centre - 1 / k - mean, float((weights * (y - centre).square()).sum()) + k**-2

    shape = increasing_root(equation, *SHAPES)
    return float(largest * (shape * y).exp().mean() ** (1 / shape)), shape


@register
class TempScale(LogitDetector):
    """MSP at the temperature that fits the labels best (Guo et al. 2017).

    score = 1 − max_c softmax(l / T)_c, with T the minimum of the labels' negative log-likelihood

        Σ_i [log Σ_c exp(l_ic / T) − l_iy / T]

    over the rows that fit is given. It is convex in 1 / T: T is exact. It is kept between u / 50 and 50 u, u the mean of
    max_c l_c − mean_c l_c: where every row is classified right the sum falls for ever as T goes to 0, and where labels have
    nothing to do with the logits, as T grows. Rows that the classifier was not trained on give the better T.

    Attributes:
        temperature_: T.
    """

    fit_needs = ("labels", "logits")

    def _fit(self, train: FeatureSource) -> None:
        unit = 0.0
        for (logits,) in self._read(train, "logits"):
            below = below_top(logits)
            unit -= float((below / below.shape[1] / len(train)).sum())
        if unit < SMALLEST_UNIT:
            self.temperature_ = 1.0
            return
        inverse = increasing_root(lambda x: self._slope(train, unit, x), 1 / RANGE, RANGE)
        self.temperature_ = min(unit / inverse, HOTTEST)

    def _slope(self, train: FeatureSource, unit: float, inverse: float) -> tuple[float, float]:
        """First and second derivative of the mean negative log-likelihood in ``inverse`` = u / T."""
        first = second = 0.0
        for logits, labels in self._read(train, "logits", "labels"):
            x = below_top(logits, 1 / unit)
            p = (inverse * x).softmax(1)
            mean = (p * x).sum(1, keepdim=True)
            first += float((mean - x.gather(1, labels[:, None])).sum())
            second += float((p * (x - mean).square()).sum())
        return first / len(train), second / len(train)

    def _score(self, batch: Batch) -> Tensor:
        return log_shares(batch["logits"], 1 / self.temperature_)[1].amin(1).exp()

    def _state(self) -> dict[str, Tensor]:
        return {
            "temperature": torch.tensor([self.temperature_], dtype=torch.float64, device="cpu"),
            "classes": torch.tensor([self._width], dtype=torch.int64, device="cpu"),
        }

    def _load_state(self, state: dict[str, Tensor]) -> None:
        self.temperature_ = float(take(state, "temperature", (1,), torch.float64))
        classes = int(take(state, "classes", (1,), torch.int64))
        if classes != self._width:
            raise FileFormatError(f"classes is {classes}, but width is {self._width}")


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
        for (logits,) in self._read(train, "logits"):
            log_p = log_shares(logits)[0]
            sums.add(log_p.exp(), log_p.argmax(1))
        self.log_templates_ = sums.means()[1].clamp_min(TINY).log()

    def _score(self, batch: Batch) -> Tensor:
        log_p = log_shares(batch["logits"])[0]
        p = log_p.exp()
        cross = -p @ self.log_templates_.T
        return cross.amin(1) + (p * log_p).sum(1)


def increasing_root(
    function: Callable[[float], tuple[float, float]], low: float, high: float, tolerance: float = 1e-12
) -> float:
    """The x in [low, high], low > 0, at which an increasing function, given with its slope, is 0, or the nearer end."""
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
