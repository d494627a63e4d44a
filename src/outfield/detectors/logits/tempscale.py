"""The maximum softmax probability at the temperature that suits the labels best."""

from __future__ import annotations

import torch
from torch import Tensor

from outfield.detectors.base import Batch, take
from outfield.detectors.logits.softmax import LogitDetector, below_top, increasing_root, log_shares
from outfield.detectors.registry import register
from outfield.errors import FileFormatError
from outfield.features import FeatureSource

RANGE = 50.0  # T lies between u / RANGE and u · RANGE
SMALLEST, LARGEST = 1e-300, 1e300  # logits whose u is smaller do not differ; no temperature is larger


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
    temperature_: float

    def _fit(self, train: FeatureSource) -> None:
        unit = 0.0
        for piece in train.batches(self.rows_at_once, ("logits",)):
            below = below_top(piece["logits"].to(self.device))
            unit -= float((below / below.shape[1] / len(train)).sum())
        if unit < SMALLEST:
            self.temperature_ = 1.0
            return
        inverse = increasing_root(lambda x: self._slope(train, unit, x), 1 / RANGE, RANGE)
        self.temperature_ = min(unit / inverse, LARGEST)

    def _slope(self, train: FeatureSource, unit: float, inverse: float) -> tuple[float, float]:
        """First and second derivative of the mean negative log-likelihood in ``inverse`` = u / T."""
        first = second = 0.0
        for piece in train.batches(self.rows_at_once, ("logits", "labels")):
            x = below_top(piece["logits"].to(self.device), 1 / unit)
            p = (inverse * x).softmax(1)
            mean = (p * x).sum(1, keepdim=True)
            first += float((mean - x.gather(1, piece["labels"].to(self.device)[:, None])).sum())
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
        if not SMALLEST / RANGE <= self.temperature_ <= LARGEST:
            raise FileFormatError(f"temperature is {self.temperature_:g}; it must be above 0")
        classes = int(take(state, "classes", (1,), torch.int64))
        if classes != self._width:
            raise FileFormatError(f"classes is {classes}, but width is {self._width}")
