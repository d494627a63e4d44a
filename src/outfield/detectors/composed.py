"""Base of the detectors that are made of others: their scores are brought to one scale on the training rows, and combined."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outfield.detectors.base import Batch, Detector
from outfield.detectors.members import OfMembers, check_same, needs_of
from outfield.detectors.state import take
from outfield.errors import FileFormatError
from outfield.features.set import FeatureSource


class ComposedDetector(OfMembers):
    """Several detectors whose standardised scores are combined; a subclass says which, and how.

    Of a member's score s_m the combination sees t_m = (s_m − mean_m) / std_m, with mean and standard deviation (1 where it is 0)
    over the training rows. No other data is needed, so that weights between members cannot be learned here.

    Attributes:
        members_: the fitted members.
        means_: mean_m (M,), float64.
        scales_: std_m (M,), float64.
    """

    means_: Tensor
    scales_: Tensor

    @abstractmethod
    def _recipe(self) -> Sequence[Detector]:
        """Fresh members, as the settings say."""

    @abstractmethod
    def _combine(self, terms: Tensor) -> Tensor:
        """Scores (n,) from the members' standardised scores (n, M), float64."""

    def _all(self) -> Sequence[Detector]:
        return self.members_ if self._fitted else self._recipe()

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        return needs_of(self._all())

    def _fit(self, train: FeatureSource) -> None:
        self.members_ = tuple(member.to(self._device).fit(train) for member in self._recipe())
        scores = torch.stack([member.score(train).double() for member in self.members_], dim=1)
        spread = scores.std(dim=0, correction=0)
        self.means_, self.scales_ = scores.mean(0), torch.where(spread > 0, spread, 1.0)
        self._moved()

    def _score(self, batch: Batch) -> Tensor:
        return self._combine((self._member_scores(batch) - self.means_) / self.scales_)

    def _moved(self) -> None:
        if hasattr(self, "means_"):
            self.means_, self.scales_ = self.means_.to(self.device), self.scales_.to(self.device)
        super()._moved()

    def _state(self) -> dict[str, Tensor]:
        found = {"means": self.means_, "scales": self.scales_}
        for i, member in enumerate(self.members_):
            found |= {f"{i}.{name}": value for name, value in member._state().items()}
        return found

    def _notes(self) -> dict[str, Any]:
        return {"members": [member._header() for member in self.members_]}

    def _load_notes(self, notes: dict[str, Any]) -> None:
        headers = notes.get("members")
        count = len(self._recipe())
        if not isinstance(headers, list) or len(headers) != count:
            raise FileFormatError(f"there must be notes on {count} members")
        self._headers = headers

    def _load_state(self, state: dict[str, Tensor]) -> None:
        members, rebuilt = self._recipe(), []
        for i, (member, header) in enumerate(zip(members, self._headers, strict=True)):
            rebuilt.append(self._rebuilt_member(i, type(member), header, state, f"{i}."))
            check_same(i, rebuilt[-1], member)
        self.members_ = tuple(rebuilt)
        self._check_first_width()
        self.means_ = take(state, "means", (len(members),), torch.float64)
        self.scales_ = take(state, "scales", (len(members),), torch.float64)
        if not bool((self.scales_ > 0).all()):
            raise FileFormatError("scales has entries that are not above 0")
        self._moved()
