"""How unusual a score is among the scores of held-out ID rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Calibration:
    """Scores of ID rows that the detector was not fitted on (n,), float64, in ascending order."""

    scores: Tensor

    @classmethod
    def of(cls, scores: Tensor) -> Calibration:
        """From scores in any order (n,)."""
        return cls(scores.double().sort().values)

    @property
    def spread(self) -> float:
        """Standard deviation of the scores; 1 where all of them are equal."""
        spread = float(self.scores.std(correction=0))
        return spread if spread > 0 else 1.0

    def p_values(self, scores: Tensor) -> Tensor:
        """(1 + #{held-out ≥ s}) / (n + 1) for each score s (N,), float64; P(p ≤ α) ≤ α for a fresh ID row."""
        return Calibrations([self]).p_values(scores[:, None])[:, 0]

    def surprise(self, scores: Tensor) -> Tensor:
        """−log p of each score (N,), float64, with p interpolated between held-out scores and a tail that goes on growing.

        With h_1 ≤ … ≤ h_n the held-out scores and h_j ≤ s < h_{j+1}, −log(1 − r / (n + 1)) with
        r = j + (s − h_j) / (h_{j+1} − h_j); 0 below h_1; log(n + 1) + (s − h_n) / spread from h_n on.
        """
        return Calibrations([self]).surprise(scores[:, None])[:, 0]

    def standard(self, scores: Tensor) -> Tensor:
        """(s − mean) / standard deviation of the held-out scores, for each score s (N,), float64."""
        return (scores.double() - self.scores.mean()) / self.spread

    def to(self, device: torch.device) -> Calibration:
        """The same on another device."""
        return Calibration(self.scores.to(device))


class Calibrations:
    """M calibrations of equally many scores, applied to M columns of scores at once."""

    def __init__(self, members: Sequence[Calibration]) -> None:
        h = self._scores = torch.stack([one.scores for one in members])
        self._means = torch.stack([one.scores.mean() for one in members])
        self._spreads = torch.tensor([one.spread for one in members], dtype=torch.float64, device=h.device)
        # By how many held-out scores lie at or below a score: the last of them, and how far it is to the next. Below the first
        # and from the last on nothing is interpolated: any difference divided by infinity is 0.
        none = torch.zeros_like(h[:, :1])
        self._low = torch.cat([none, h[:, :-1], none], 1)
        self._gap = torch.cat([none + torch.inf, h.diff(dim=1), none + torch.inf], 1)

    def p_values(self, scores: Tensor) -> Tensor:
        """:meth:`Calibration.p_values` of each column (N, M)."""
        n = self._scores.shape[1]
        below = torch.searchsorted(self._scores, scores.double().T.contiguous(), right=False)
        return ((1 + n - below).double() / (n + 1)).T

    def surprise(self, scores: Tensor) -> Tensor:
        """:meth:`Calibration.surprise` of each column (N, M)."""
        s, n = scores.double().T.contiguous(), self._scores.shape[1]
        above = torch.searchsorted(self._scores, s, right=True)
        between = (s - self._low.gather(1, above)) / self._gap.gather(1, above)
        excess = (s - self._scores[:, -1:]).clamp_min(0.0) / self._spreads[:, None]
        return (excess - torch.log1p(-(above + between) / (n + 1))).T

    def standard(self, scores: Tensor) -> Tensor:
        """:meth:`Calibration.standard` of each column (N, M)."""
        return (scores.double() - self._means) / self._spreads
