"""Base of the detectors that are made of others: their scores are brought to one scale on the training rows, and combined."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from outfield.detectors.base import LARGEST, Batch, Detector
from outfield.detectors.state import take
from outfield.errors import FileFormatError, OutfieldError
from outfield.features.set import FeatureSource


class ComposedDetector(Detector):
    """Several detectors whose standardised scores are combined; a subclass says which, and how.

    Of a member's score s_m the combination sees t_m = (s_m − mean_m) / std_m, with mean and standard deviation (1 where it is 0)
    over the training rows. No other data is needed, so that weights between members cannot be learned here.

    Attributes:
        members_: the fitted members.
        means_: mean_m (M,), float64.
        scales_: std_m (M,), float64.
    """

    fits_in_pieces = True

    members_: tuple[Detector, ...]
    means_: Tensor
    scales_: Tensor

    @abstractmethod
    def _recipe(self) -> Sequence[Detector]:
        """Fresh members, as the settings say."""

    @abstractmethod
    def _combine(self, terms: Tensor) -> Tensor:
        """Scores (n,) from the members' standardised scores (n, M), float64."""

    def _all(self) -> Sequence[Detector]:
        """The members, fitted where this detector is."""
        return self.members_ if self._fitted else self._recipe()

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        found = [name for one in self._all() for name in (one.on, *one.needs_to_fit, *one.needs_to_score)]
        return tuple(name for name in dict.fromkeys(found) if name != "features")

    @property
    def needs_to_score(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in self._all() for name in one.needs_to_score))

    def _fit(self, train: FeatureSource) -> None:
        self.members_ = tuple(member.to(self._device).fit(train) for member in self._recipe())
        scores = torch.stack([member.score(train).double() for member in self.members_], dim=1)
        spread = scores.std(dim=0, correction=0)
        self.means_, self.scales_ = scores.mean(0), torch.where(spread > 0, spread, 1.0)
        self._moved()

    def _rows(self) -> int:
        return max(member._rows() for member in self.members_)

    def _read_to_score(self) -> tuple[str, ...]:
        return self.needs_to_score

    def _score(self, batch: Batch) -> Tensor:
        columns = [torch.cat([*self._pieces_of(member, batch)]) for member in self.members_]
        return self._combine((torch.stack(columns, dim=1) - self.means_) / self.scales_)

    def _pieces_of(self, member: Detector, batch: Batch) -> Iterator[Tensor]:
        """Scores of one member, which takes as many rows at once as it would alone."""
        wanted = {"features" if name == member.on else name: batch[name] for name in member.needs_to_score}
        for start in range(0, len(next(iter(wanted.values()))), member._rows()):
            piece = {name: value[start : start + member._rows()] for name, value in wanted.items()}
            yield member._score(piece).clamp(-LARGEST, LARGEST).float().double()

    def _check_width(self, data: FeatureSource) -> None:
        for member in self.members_:
            member._check_width(data)

    def _check_about(self, data: FeatureSource) -> None:
        for member in self.members_:
            member._check_about(data)

    def _moved(self) -> None:
        if hasattr(self, "means_"):
            self.means_, self.scales_ = self.means_.to(self.device), self.scales_.to(self.device)
        for member in getattr(self, "members_", ()):
            if member._device != self._device:
                member.to(self._device)

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
        members = self._recipe()
        self.members_ = tuple(self._rebuilt_member(i, member, state) for i, member in enumerate(members))
        if self._width != self.members_[0]._width:
            raise FileFormatError(f"width is {self._width}, but {self.members_[0]._width} in its first member")
        self.means_ = take(state, "means", (len(members),), torch.float64)
        self.scales_ = take(state, "scales", (len(members),), torch.float64)
        if not bool((self.scales_ > 0).all()):
            raise FileFormatError("scales has entries that are not above 0")
        self._moved()

    def _rebuilt_member(self, i: int, member: Detector, state: dict[str, Tensor]) -> Detector:
        begin = f"{i}."
        part = {name.removeprefix(begin): value for name, value in state.items() if name.startswith(begin)}
        try:
            made = type(member)._rebuilt(self._headers[i], part)
        except (OutfieldError, KeyError, TypeError) as error:
            raise FileFormatError(f"member {i}, {type(member).__name__}: {error}") from error
        if repr(made) != repr(member):
            raise FileFormatError(f"member {i} is {made!r:.100}, but the settings say {member!r:.100}")
        return made
