"""Several detectors as one: each is calibrated on held-out ID rows, and what they find unusual is added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from outfield.config import arguments, construct, require, require_choice, require_number
from outfield.detectors.base import LARGEST, Batch, Detector
from outfield.detectors.calibration import Calibration
from outfield.detectors.held_out import check_apart, split_off
from outfield.detectors.knn import KNN
from outfield.detectors.logits import EnergyLogits
from outfield.detectors.mixture import SSD
from outfield.detectors.naming import names_of
from outfield.detectors.registry import register
from outfield.detectors.state import take
from outfield.errors import FileFormatError, InputError, NotFittedError, OutfieldError, TooFewSamplesError
from outfield.features.set import FeatureSource

RULES = ("fisher", "z")
LEAST = 20
"""Held-out rows that calibrate the members, and again as many for their sum: fewer say nothing about a tail."""


@dataclass(frozen=True)
class Explanation:
    """Why rows were scored as they were.

    Attributes:
        members: the detectors, in words.
        scores: each member's own score (N, M), float64.
        terms: what each member adds to the sum (N, M), float64.
        p_values: of each member's score among held-out ID rows (N, M), float64.
    """

    members: tuple[str, ...]
    scores: Tensor
    terms: Tensor
    p_values: Tensor

    @property
    def loudest(self) -> list[str]:
        """For each row the member that adds most to its score."""
        return [self.members[i] for i in self.terms.argmax(1).tolist()]


@register
class Fused(Detector):
    """Several detectors as one, each calibrated on held-out ID rows (Fisher 1925).

    score = Σ_m t_m(s_m(x)), where s_m is a member's score and t_m says how unusual it is among the scores of ID rows that no
    member was fitted on: −log p with a tail that goes on growing ("fisher"), or standard deviations from the mean ("z"); see
    :class:`outfield.detectors.calibration.Calibration`. Half of the held-out rows calibrate the members, the other half their
    sum, so that :meth:`p_values` are valid.

    Args:
        members: the detectors; copies of them are fitted.
        rule: how terms are made, "fisher" or "z".
        held_out: share of the training rows that is kept for calibration where fit is given no held-out rows. A network knows
            its training images better than others: rows that it has not seen calibrate better.
        seed: of the split of rows.

    Attributes:
        members_: the fitted members.
        calibrations_: of each member.
        sum_: the calibration of the sum.
    """

    fits_in_pieces = True

    members_: tuple[Detector, ...]
    calibrations_: tuple[Calibration, ...]
    sum_: Calibration

    def __init__(
        self,
        members: Sequence[Detector] = (EnergyLogits(), KNN(k=5), SSD()),
        rule: str = "fisher",
        held_out: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.members = members
        self.rule = rule
        self.held_out = held_out
        self.seed = seed

    def _check_settings(self) -> None:
        sequence = isinstance(self.members, tuple | list) and len(self.members) > 0
        good = sequence and all(isinstance(member, Detector) for member in self.members)
        require(good, "members", self.members, "a list of detectors, at least one")
        for member in self.members:
            try:
                member.check_settings()
            except InputError as error:
                raise InputError(f"members is {self.members!r:.200}; {type(member).__name__}: {error}") from error
        require_choice("rule", self.rule, RULES)
        require_number("held_out", self.held_out, above=0, most=0.5)
        require_number("seed", self.seed, least=0, whole=True)

    @property
    def needs_to_fit(self) -> tuple[str, ...]:
        found = [name for member in self._all() for name in (member.on, *member.needs_to_fit, *member.needs_to_score)]
        return tuple(name for name in dict.fromkeys(found) if name != "features")

    @property
    def needs_to_score(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for member in self._all() for name in member.needs_to_score))

    def _all(self) -> Sequence[Detector]:
        """The members, fitted where this detector is."""
        return self.members_ if self._fitted else self.members

    @property
    def names(self) -> tuple[str, ...]:
        """The members in words, each once: see :func:`outfield.detectors.naming.names_of`."""
        return names_of(self._all())

    def fit(self, train: FeatureSource, held_out: FeatureSource | None = None) -> Self:
        """Fit every member, and calibrate them and their sum; returns self.

        Args:
            train: ID training data.
            held_out: ID rows that neither the members nor, at best, the network was trained on. Without them, a share of the
                training rows is kept for this, and members are fitted on the others.

        Raises:
            InputError: a setting of a wrong type or value, or the held-out rows are training rows.
            MissingFieldError: a member lacks a field.
            TooFewSamplesError: too few rows to calibrate.
        """
        with self._fitting(train, "fit") as data:
            self._fit(data, held_out)
        return self

    def _fit(self, train: FeatureSource, held_out: FeatureSource | None = None) -> None:
        if held_out is None:
            train, held_out = split_off(train, float(self.held_out), int(self.seed), 2 * LEAST)
        else:
            self._check_held_out(train, held_out)
        self.members_ = tuple(self._fresh(member).fit(train) for member in self.members)
        self._calibrate(held_out)

    @classmethod
    def of_fitted(
        cls, members: Sequence[Detector], held_out: FeatureSource, rule: str = "fisher", seed: int = 0
    ) -> Self:
        """Of members that are fitted already, calibrated on ID rows that they were not fitted on.

        Args:
            members: fitted detectors; they become this detector's own.
            held_out: ID rows.
            rule: see the class.
            seed: see the class.

        Raises:
            InputError: a setting of a wrong type or value.
            NotFittedError: a member is not fitted.
            TooFewSamplesError: too few rows to calibrate.
        """
        made = cls(tuple(members), rule, seed=seed)
        with made._fitting(held_out, "of_fitted", made.needs_to_score):
            for member in members:
                if not member._fitted:
                    raise NotFittedError(f"{member!r:.100} is not fitted; of_fitted takes fitted detectors")
            made._check_rows(held_out)
            made.members_ = tuple(members)
            made._calibrate(held_out)
        return made

    def _fresh(self, member: Detector) -> Detector:
        made: Detector = construct(type(member), arguments(member))
        return made.to(self._device)

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

    def _terms(self, scores: Tensor) -> Tensor:
        """What members whose scores are the columns of (N, M) add to the sum (N, M)."""
        with_columns = zip(self.calibrations_, scores.unbind(1), strict=True)
        if self.rule == "z":
            return torch.stack([one.standard(column) for one, column in with_columns], dim=1)
        return torch.stack([one.surprise(column) for one, column in with_columns], dim=1)

    def _rows(self) -> int:
        return max(member._rows() for member in self.members_)

    def _read_to_score(self) -> tuple[str, ...]:
        return self.needs_to_score

    def _score(self, batch: Batch) -> Tensor:
        return self._terms(self._member_scores(batch)).sum(1)

    def _member_scores(self, batch: Batch) -> Tensor:
        """(n, M), float64; each member takes as many rows at once as it would alone."""
        columns = [torch.cat([*self._pieces_of(member, batch)]) for member in self.members_]
        return torch.stack(columns, dim=1)

    def _pieces_of(self, member: Detector, batch: Batch) -> Iterator[Tensor]:
        wanted = {"features" if name == member.on else name: batch[name] for name in member.needs_to_score}
        rows = len(next(iter(wanted.values())))
        for start in range(0, rows, member._rows()):
            piece = {name: value[start : start + member._rows()] for name, value in wanted.items()}
            yield member._score(piece).clamp(-LARGEST, LARGEST).float().double()

    def p_values(self, test: FeatureSource) -> Tensor:
        """For each row (N,), float64, the share of held-out ID rows with at least its score: valid under the ID distribution."""
        scores = self.score(test)
        return self.sum_.p_values(scores)

    def explain(self, test: FeatureSource) -> Explanation:
        """Each member's own score of each row, and what it adds to the sum."""
        if not self._fitted:
            raise NotFittedError("this Fused is not fitted; call fit(train) or load a saved one first")
        scores = torch.stack([member.score(test).double() for member in self.members_], dim=1)
        calibrations = [one.to(scores.device) for one in self.calibrations_]
        p_values = [one.p_values(column) for one, column in zip(calibrations, scores.unbind(1), strict=True)]
        terms = self._terms(scores.to(self.device)).cpu()
        return Explanation(self.names, scores, terms, torch.stack(p_values, dim=1))

    def _check_width(self, data: FeatureSource) -> None:
        for member in self.members_:
            member._check_width(data)

    def _check_about(self, data: FeatureSource) -> None:
        for member in self.members_:
            member._check_about(data)

    def _moved(self) -> None:
        if hasattr(self, "calibrations_"):
            self.calibrations_ = tuple(one.to(self.device) for one in self.calibrations_)
        for member in getattr(self, "members_", ()):
            if member._device != self._device:
                member.to(self._device)

    def _state(self) -> dict[str, Tensor]:
        found = {f"{i}.calibration": one.scores for i, one in enumerate(self.calibrations_)}
        for i, member in enumerate(self.members_):
            found |= {f"{i}.member.{name}": value for name, value in member._state().items()}
        return found | {"sum": self.sum_.scores}

    def _notes(self) -> dict[str, Any]:
        return {"members": [member._header() for member in self.members_]}

    def _load_notes(self, notes: dict[str, Any]) -> None:
        headers = notes.get("members")
        if not isinstance(headers, list) or len(headers) != len(self.members):
            raise FileFormatError(f"there must be notes on {len(self.members)} members")
        self._headers = headers

    def _load_state(self, state: dict[str, Tensor]) -> None:
        rebuilt = []
        for i, (member, header) in enumerate(zip(self.members, self._headers, strict=True)):
            begin = f"{i}.member."
            part = {name.removeprefix(begin): value for name, value in state.items() if name.startswith(begin)}
            try:
                rebuilt.append(type(member)._rebuilt(header, part))
            except (OutfieldError, KeyError, TypeError) as error:
                raise FileFormatError(f"member {i}, {type(member).__name__}: {error}") from error
            if repr(rebuilt[-1]) != repr(member):
                raise FileFormatError(f"member {i} is {rebuilt[-1]!r:.100}, but the settings say {member!r:.100}")
        if self._width != rebuilt[0]._width:
            raise FileFormatError(f"width is {self._width}, but {rebuilt[0]._width} in its first member")
        self.members_ = tuple(rebuilt)
        self.sum_ = self._calibration(state, "sum")
        found = [self._calibration(state, f"{i}.calibration") for i in range(len(rebuilt))]
        rows = {len(one.scores) for one in found}
        if len(rows) > 1 or len(self.sum_.scores) - rows.pop() not in (0, 1):
            raise FileFormatError("its calibrations are of different numbers of rows")
        self.calibrations_ = tuple(found)
        self._moved()

    def _calibration(self, state: dict[str, Tensor], name: str) -> Calibration:
        scores = take(state, name, (None,), torch.float64)
        if bool((scores.diff() < 0).any()):
            raise FileFormatError(f"{name} is not in ascending order")
        return Calibration(scores)
