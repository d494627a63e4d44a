"""What detectors that are made of others share: their terms are added, and the sum is calibrated on held-out ID rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outfield.config import require, require_number
from outfield.detectors.base import LARGEST, Batch, Detector
from outfield.detectors.calibration import Calibration, Calibrations
from outfield.detectors.held_out import check_apart
from outfield.detectors.members import OfMembers
from outfield.detectors.naming import names_of
from outfield.detectors.state import take
from outfield.errors import FileFormatError, InputError, TooFewSamplesError
from outfield.features.set import FeatureSource
from outfield.modes import own_modes, products
from outfield.scores.threshold import Threshold

RULES = ("fisher", "z")
LEAST = 20
"""Held-out rows that calibrate the members, and again as many for their sum: fewer say nothing about a tail."""


def check_weights(weights: object, members: int) -> None:
    """Refuse a setting ``weights`` that is neither None nor one positive number for each member.

    Raises:
        InputError: it says what would be right.
    """
    if weights is None:
        return
    good = isinstance(weights, tuple | list) and len(weights) == members
    require(good, "weights", weights, f"one positive number for each of the {members} members, or None")
    for weight in weights:  # type: ignore[attr-defined]
        require_number("weights", weight, above=0)


@dataclass(frozen=True)
class Explanation:
    """Why rows were scored as they were.

    Attributes:
        members: the detectors, in words.
        scores: each member's own score (N, M), float64.
        terms: what each member adds to the sum, its weight included (N, M), float64.
        p_values: of each member's score among held-out ID rows (N, M), float64.
    """

    members: tuple[str, ...]
    scores: Tensor
    terms: Tensor
    p_values: Tensor

    @property
    def total(self) -> Tensor:
        """The score of each row (N,), float32, equal to what ``score`` gives: the sum of its terms."""
        return self.terms.sum(1).clamp(-LARGEST, LARGEST).float()

    @property
    def loudest(self) -> list[str]:
        """For each row the member that adds most to its score."""
        return [self.members[i] for i in self.terms.argmax(1).tolist()]


class Summed(OfMembers):
    """Base of detectors that are sums of fitted members; a subclass gives them in its ``_fit`` and calls ``_calibrate``.

    Attributes:
        members_: the fitted members.
        calibrations_: of each member.
        sum_: the calibration of the sum.
    """

    rule: str = "fisher"
    seed: int = 0

    calibrations_: tuple[Calibration, ...]
    sum_: Calibration

    _joined: tuple[tuple[Calibration, ...] | None, Calibrations | None] = (None, None)
    """The members' calibrations, and all of them as one."""
    _weighed: tuple[tuple[float, ...], Tensor] = ((), torch.empty(0))
    """The members' weights, and the same as a tensor."""
    _named: tuple[tuple[Detector, ...] | None, tuple[str, ...]] = (None, ())
    """The fitted members and their names, which take longer to make than a row to score."""

    @property
    def names(self) -> tuple[str, ...]:
        """The members in words, each once: see :func:`outfield.detectors.naming.names_of`."""
        if not self._fitted:
            return names_of(self._all())
        if self._named[0] is not self.members_:
            self._named = self.members_, names_of(self.members_)
        return self._named[1]

    def _check_held_out(self, train: FeatureSource, held_out: FeatureSource) -> None:
        if not isinstance(held_out, FeatureSource):
            raise InputError(f"held_out takes an outfield.FeatureSet, not {type(held_out).__name__}")
        self._check_rows(held_out)
        check_apart(train, held_out)

    def _check_rows(self, held_out: FeatureSource) -> None:
        if len(held_out) < 2 * LEAST:
            raise TooFewSamplesError(f"held_out has {len(held_out)} rows; at least {2 * LEAST} are needed to calibrate")

    def _calibrate(self, held_out: FeatureSource) -> None:
        """Half of the rows for the members, the other half for their sum."""
        scores = [member.score(held_out).double() for member in self.members_]
        order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(int(self.seed)))
        first, second = order[: len(order) // 2], order[len(order) // 2 :]
        self.calibrations_ = tuple(Calibration.of(score[first]) for score in scores)
        columns = torch.stack([score[second] for score in scores], dim=1)
        self.sum_ = Calibration.of(self._terms(columns).sum(1).float())
        self._moved()

    def _weights(self) -> Sequence[float] | None:
        """How much each fitted member counts; None where all count the same."""
        return None

    def _terms(self, scores: Tensor) -> Tensor:
        """What members whose scores are the columns of (N, M) add to the sum (N, M)."""
        together = self._together()
        found = together.standard(scores) if self.rule == "z" else together.surprise(scores)
        weights = self._weights()
        if weights is None:
            return found
        if self._weighed[0] != (*weights,) or self._weighed[1].device != found.device:
            self._weighed = (*weights,), torch.tensor(weights, dtype=torch.float64, device=found.device)
        return found * self._weighed[1]

    def _together(self) -> Calibrations:
        """The members' calibrations as one, made once for each fit."""
        if self._joined[0] is not self.calibrations_:
            self._joined = self.calibrations_, Calibrations(self.calibrations_)
        assert self._joined[1] is not None
        return self._joined[1]

    def _score(self, batch: Batch) -> Tensor:
        return self._terms(self._member_scores(batch)).sum(1)

    def p_values(self, test: FeatureSource) -> Tensor:
        """For each row (N,), float64, the share of held-out ID rows with at least its score: valid under the ID distribution."""
        scores = self.score(test)
        return self.sum_.p_values(scores)

    def threshold(self, keep: float = 0.95) -> Threshold:
        """The threshold that keeps this share of ID rows, by the held-out rows that calibrated the sum.

        Those that calibrated the members are no longer like other rows, so it is better than a threshold of all of them.

        Raises:
            NotFittedError: fit was not called.
            InputError: ``keep`` is not in (0, 1].
        """
        source = self.fingerprint()
        return Threshold.fit(self.sum_.scores.float(), keep=keep, source=source)

    def explain(self, test: FeatureSource) -> Explanation:
        """Each member's own score of each row, and what it adds to the sum."""
        self._check_to_score(test)
        pieces = []
        with own_modes(self.device), products(self.device), torch.no_grad():
            for batch in test.batches(self._rows(), self._read_to_score()):
                scores = self._member_scores({name: value.to(self.device) for name, value in batch.items()})
                p_values = self._together().p_values(scores)
                pieces.append((scores.cpu(), self._terms(scores).cpu(), p_values.cpu()))
        return Explanation(self.names, *(torch.cat(column) for column in zip(*pieces, strict=True)))

    def _moved(self) -> None:
        if hasattr(self, "calibrations_"):
            self.calibrations_ = tuple(one.to(self.device) for one in self.calibrations_)
        super()._moved()

    def _state(self) -> dict[str, Tensor]:
        found = {f"{i}.calibration": one.scores for i, one in enumerate(self.calibrations_)}
        for i, member in enumerate(self.members_):
            found |= {f"{i}.member.{name}": value for name, value in member._state().items()}
        return found | {"sum": self.sum_.scores}

    def _notes(self) -> dict[str, Any]:
        rows = len(self.calibrations_[0].scores) + len(self.sum_.scores)
        return {"members": [member._header() for member in self.members_], "held_out": rows}

    def _load_notes(self, notes: dict[str, Any]) -> None:
        headers = notes.get("members")
        if not isinstance(headers, list) or not headers or not all(isinstance(header, dict) for header in headers):
            raise FileFormatError("there must be notes on its members")
        self._headers, self._held_out_rows = headers, notes.get("held_out")
        self._classes = self._classes_of(headers)

    @abstractmethod
    def _classes_of(self, headers: Sequence[dict[str, Any]]) -> Sequence[type[Detector]]:
        """The classes of the members that a file has these headers of.

        Raises:
            FileFormatError: they are not those of this detector's members.
        """

    def _load_state(self, state: dict[str, Tensor]) -> None:
        rebuilt = []
        for i, (cls, header) in enumerate(zip(self._classes, self._headers, strict=True)):
            rebuilt.append(self._rebuilt_member(i, cls, header, state, f"{i}.member."))
            self._check_member(i, rebuilt[-1])
        self.members_ = tuple(rebuilt)
        self._check_first_width()
        self.sum_ = self._calibration(state, "sum")
        found = [self._calibration(state, f"{i}.calibration") for i in range(len(rebuilt))]
        rows = {len(one.scores) for one in found}
        half, more = next(iter(rows)), len(self.sum_.scores)
        # Older files do not say how many rows there were.
        if len(rows) > 1 or more - half not in (0, 1) or self._held_out_rows not in (None, half + more):
            raise FileFormatError("its calibrations are of different numbers of rows")
        self.calibrations_ = tuple(found)
        self._moved()

    def _check_member(self, number: int, member: Detector) -> None:
        """Refuse a member from a file that the settings contradict."""

    def _calibration(self, state: dict[str, Tensor], name: str) -> Calibration:
        scores = take(state, name, (None,), torch.float64)
        if bool((scores.diff() < 0).any()):
            raise FileFormatError(f"{name} is not in ascending order")
        return Calibration(scores)
