"""MSP with a second score, which counts only where it is far from that of ID rows."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from outfield.config import require_choice
from outfield.detectors.base import Batch, Detector, smallest_class
from outfield.detectors.distance.knn import KNN
from outfield.detectors.head.last_layer import within_range
from outfield.detectors.head.vim import Residual
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import log_shares
from outfield.detectors.registry import register
from outfield.errors import FileFormatError
from outfield.features import FeatureSource
from outfield.files import Record, tensors_under

SECONDS = {"norm1": None, "residual": Residual, "knn": KNN}
PREFIX = "second."


@register
class SIRC(Detector):
    """MSP, raised where a second score, of the features, is far from that of ID rows (Xia & Bouganis 2022).

    score = log (1 − max_c p_c) + log (1 + exp(−b (S − a))), p = softmax(l), the logarithm of the authors' product, with S a score
    of the features that is high for ID rows, a = μ − 3 σ, b = 1 / σ, and μ, σ mean and standard deviation of S over the training
    rows. Where S is as it is for ID rows, this is MSP, which tells right answers from wrong ones; where S is far below, S counts.

    Args:
        second: What S is: "norm1", ‖f‖₁; "residual", minus the score of :class:`outfield.Residual`; or "knn", minus that of
            :class:`outfield.KNN` with k a hundredth of the smallest class, from 1 to 50 (of a training row k + 1, since it is in
            the bank itself).

    Attributes:
        mean_: μ (1,), float64.
        spread_: σ (1,), float64, 1 where it is 0.
        columns_: D (1,), int64.
        second_: the fitted detector behind S, or None.

    >>> import outfield as of
    >>> rows = of.FeatureSet([[1.0, 2.0], [2.0, 2.0], [9.0, 1.0]], logits=[[2.0, 0.0]] * 3)
    >>> short, long = of.SIRC().fit(rows).score(of.FeatureSet([[0.0, 0.0], [9.0, 9.0]], logits=[[2.0, 0.0]] * 2)).tolist()
    >>> short > long
    True
    """

    score_needs = ("features", "logits")
    uses = ("labels",)
    fits_in_pieces = True
    learned = ("mean float64 1", "spread float64+ 1", "columns int64 1")

    second_: Detector | None = None

    def __init__(self, second: str = "norm1") -> None:
        self.second = second

    def _check_settings(self) -> None:
        require_choice("second", self.second, tuple(SECONDS))

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        kind = SECONDS[self.second]
        return () if kind is None else kind.fit_needs

    def _fit(self, train: FeatureSource) -> None:
        kind = SECONDS[self.second]
        self.second_ = None if kind is None else kind.suited(smallest_class(train)).to(self._device).fit(train)
        known = self.second_
        if isinstance(known, KNN):
            known = copy.copy(known)
            known.k = min(known.k + 1, len(train))
        found = torch.cat([self._second(features, known) for (features,) in self._read(train, "features")])
        spread = found.std(correction=0)
        self.columns_ = torch.tensor([train.shapes["features"][1]], device=self.device)
        self.mean_, self.spread_ = found.mean()[None], torch.where(spread > 0, spread, 1.0)[None]

    def _second(self, features: Tensor, detector: Detector | None) -> Tensor:
        """S of features (n, D), float64."""
        if detector is None:
            return within_range(features).abs().sum(1)
        return -detector._score({"features": features}).double()

    def _score(self, batch: Batch) -> Tensor:
        return self.combined_score(batch["logits"], self._second(batch["features"], self.second_))

    def combined_score(self, logits: Tensor, second: Tensor) -> Tensor:
        """The score (n,) of logits (n, K) and S (n,)."""
        below = -3 - (second - self.mean_) / self.spread_
        return log_shares(logits)[1].amin(1) + below.clamp_min(0) + torch.log1p((-below.abs()).exp())

    def _inside(self) -> dict[str, Detector]:
        return {} if self.second_ is None else {PREFIX: self.second_}

    def _notes(self) -> dict[str, Any]:
        return {} if self.second_ is None else {"second": self.second_.record().header}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        if SECONDS[self.second]:
            self.second_ = Detector.from_record(Record(self._told["second"], tensors_under(state, PREFIX)))
        super()._load_state(state)
        if int(self.columns_) != self._width:
            raise FileFormatError(f"columns is {int(self.columns_)}, but width is {self._width}")
