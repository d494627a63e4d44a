"""The probability of a class that training did not have."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Batch
from outfield.detectors.distance.cosine_mean_she import ClassSums
from outfield.detectors.logits.softmax import LogitDetector, increasing_root
from outfield.detectors.registry import register
from outfield.errors import FileFormatError, InputError, TooFewSamplesError
from outfield.features import FeatureSource

MOST = torch.finfo(torch.float64).max
SHAPES = (1e-2, 1e4)  # between these the shape is sought: values that are all but equal have no finite one
SMALLEST = 1e-12  # values below this share of the largest count as that much


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
    learned = ("means float64 C D", "classes int64 C", "scales float64 C", "shapes float64 C")

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
        for piece in train.batches(self.rows_at_once, ("logits", "labels")):
            logits, labels = piece["logits"].to(self.device).double(), piece["labels"].to(self.device)
            right = logits.argmax(1) == labels
            yield logits[right], labels[right]

    def _distances(self, train: FeatureSource) -> tuple[Tensor, Tensor]:
        """Of each row that is classified right, its distance to the mean of its class, and its label, (n,) both."""
        found = [(self.means_.new_empty(0), self.classes_.new_empty(0))]
        for logits, labels in self._right(train):
            own = self.means_[torch.searchsorted(self.classes_, labels)]
            found.append(((logits - own).norm(dim=1), labels))
        distances = torch.cat([one for one, _ in found])
        if not bool(torch.isfinite(distances).all()):
            raise InputError("logits are so large that their squares are not finite; OpenMax needs smaller ones")
        return distances, torch.cat([one for _, one in found])

    def _score(self, batch: Batch) -> Tensor:
        logits = batch["logits"].double()
        alpha = min(int(self.alpha), logits.shape[1])
        place = torch.full((logits.shape[1],), -1, device=self.device)
        place[self.classes_] = torch.arange(len(self.means_), device=self.device)
        largest, order = logits.topk(alpha, dim=1)
        moved = torch.zeros_like(logits)
        for rank in range(alpha):
            own = place[order[:, rank]]
            away = weibull_cdf((logits - self.means_[own]).norm(dim=1), self.scales_[own], self.shapes_[own])
            share = torch.where(own >= 0, (alpha - rank) / alpha * away, 0.0)
            moved.scatter_(1, order[:, rank : rank + 1], (share * largest[:, rank])[:, None])
        unknown = moved.sum(1, keepdim=True).clamp(-MOST, MOST)
        return torch.cat([unknown, logits - moved], 1).softmax(1)[:, 0]

    def _load_state(self, state: dict[str, Tensor]) -> None:
        super()._load_state(state)
        width = self.means_.shape[1]
        ascending = bool((self.classes_.diff() > 0).all())
        if not (ascending and int(self.classes_[0]) >= 0 and int(self.classes_[-1]) < width):
            raise FileFormatError(f"classes must be different, ascending, from 0 to {width - 1}; that is not so")
        if not bool((self.scales_ > 0).all() & (self.shapes_ > 0).all()):
            raise FileFormatError("scales and shapes must be above 0; that is not so")


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


def weibull_cdf(x: Tensor, scale: Tensor, shape: Tensor) -> Tensor:
    """F(x) of distances x, at least 0; the three are broadcast."""
    return -torch.expm1(-((x / scale) ** shape))
