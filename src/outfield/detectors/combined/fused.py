"""Sums of detectors, each calibrated on held-out ID rows, and Fused, the sum of given ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from outfield.config import require, require_choice, require_number
from outfield.detectors.base import LARGEST, Batch, Detector, labels_of, take
from outfield.detectors.combined.members import CombinedDetector, check_members
from outfield.detectors.distance.knn import KNN
from outfield.detectors.distance.ssd_mixture_rmds import SSD
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import EnergyLogits
from outfield.detectors.registry import register
from outfield.errors import FileFormatError, InputError, NotFittedError, TooFewSamplesError
from outfield.features import FeatureSource, Part, copies_of, split_rows
from outfield.percent import counted
from outfield.scores import Threshold

RULES = ("fisher", "z")
LEAST = 20  # held-out rows that calibrate the members, and again as many for their sum: fewer say nothing about a tail
MOST_SHARED = 0.1  # share of the held-out rows that may be training rows too: sets of images hold some twice


def apart(
    train: FeatureSource, held_out: FeatureSource | None, share: float, seed: int
) -> tuple[FeatureSource, FeatureSource]:
    """Training rows and rows that were not trained on: those that are given, or else a share that is split off."""
    if held_out is None:
        labels = labels_of(train) if "labels" in train.shapes else None
        mask = split_rows(len(train), share, seed=seed, least=2 * LEAST, labels=labels, copies=copies_of(train))
        return Part(train, ~mask), Part(train, mask)
    if not isinstance(held_out, FeatureSource):
        raise InputError(f"held_out takes an outfield.FeatureSet, not {type(held_out).__name__}")
    check_count(held_out)
    if train.shapes["features"][1:] == held_out.shapes["features"][1:]:  # else an error follows that names both widths
        copies = copies_of(train, held_out)
        known, new = copies[: len(train)], copies[len(train) :]
        shared = float(torch.isin(new, known).double().mean())
        _, which, times = known.unique(return_inverse=True, return_counts=True)
        usual = float((times[which] > 1).double().mean())  # in a table of few values new rows are equal to others, too
        if shared > usual + MOST_SHARED:
            raise InputError(f"{100 * shared:.0f} % of the held-out rows are training rows; give others")
    return train, held_out


def check_count(held_out: FeatureSource) -> None:
    """Refuse fewer held-out rows than calibrate."""
    if len(held_out) < 2 * LEAST:
        raise TooFewSamplesError(f"held_out has {counted(len(held_out), 'row')}; at least {2 * LEAST} must calibrate")


def halves(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """The numbers of the rows that calibrate members, and of those that calibrate their sum, in random order."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count // 2], order[count // 2 :]


def check_weights(weights: object, members: int) -> None:
    """Refuse a setting ``weights`` that is neither None nor one positive number for each member."""
    if weights is None:
        return
    good = isinstance(weights, tuple | list) and len(weights) == members
    require(good, "weights", weights, f"one positive number for each of the {members} members, or None")
    for weight in weights:  # type: ignore[attr-defined]
        require_number("weights", weight, above=0)


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
        n = len(self.scores)
        return (1 + n - torch.searchsorted(self.scores, scores.double())).double() / (n + 1)

    def surprise(self, scores: Tensor) -> Tensor:
        """−log p of each score (N,), float64, with p interpolated between held-out scores and a tail that goes on growing.

        With h_1 ≤ … ≤ h_n the held-out scores and h_j ≤ s < h_{j+1}, −log(1 − r / (n + 1)) with
        r = j + (s − h_j) / (h_{j+1} − h_j); 0 below h_1; log(n + 1) + (s − h_n) / spread from h_n on.
        """
        return Calibrations([self]).surprise(scores[:, None])[:, 0]

    def standard(self, scores: Tensor) -> Tensor:
        """(s − mean) / standard deviation of the held-out scores, for each score s (N,), float64."""
        return Calibrations([self]).standard(scores[:, None])[:, 0]


class Calibrations:
    """M calibrations of equally many scores, of which :meth:`surprise` is applied to M columns of scores at once."""

    def __init__(self, members: Sequence[Calibration]) -> None:
        h = self._scores = torch.stack([one.scores for one in members])
        self._means = torch.stack([one.scores.mean() for one in members])
        self._spreads = torch.tensor([one.spread for one in members], dtype=torch.float64, device=h.device)
        # By how many held-out scores lie at or below a score: the last of them, and how far it is to the next. Below the first
        # and from the last on nothing is interpolated: any difference divided by infinity is 0.
        none = torch.zeros_like(h[:, :1])
        self._low = torch.cat([none, h[:, :-1], none], 1)
        self._gap = torch.cat([none + torch.inf, h.diff(dim=1), none + torch.inf], 1)

    def standard(self, scores: Tensor) -> Tensor:
        """:meth:`Calibration.standard` of each column (N, M)."""
        return (scores.double() - self._means) / self._spreads

    def surprise(self, scores: Tensor) -> Tensor:
        """:meth:`Calibration.surprise` of each column (N, M)."""
        s, n = scores.double().T.contiguous(), self._scores.shape[1]
        above = torch.searchsorted(self._scores, s, right=True)
        between = (s - self._low.gather(1, above)) / self._gap.gather(1, above)
        excess = (s - self._scores[:, -1:]).clamp_min(0.0) / self._spreads[:, None]
        return (excess - torch.log1p(-(above + between) / (n + 1))).T


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
    def top_member(self) -> list[str]:
        """For each row the member that adds most to its score."""
        return [self.members[i] for i in self.terms.argmax(1).tolist()]

    @property
    def loudest(self) -> list[str]:
        """``top_member`` as version 0.1 called it."""
        warnings.warn("Explanation.loudest is now top_member", DeprecationWarning, stacklevel=2)
        return self.top_member


class Summed(CombinedDetector):
    """Base of detectors that are sums of fitted members; ``_fit`` of a subclass sets them and calls ``_calibrate``."""

    uses_held_out = True
    member_prefix = "member."

    rule: str = "fisher"
    held_out: float
    seed: int

    def _check_settings(self) -> None:
        require_number("held_out", self.held_out, above=0, most=0.5)
        require_number("seed", self.seed, least=0, whole=True)

    def _calibrate(self, held_out: FeatureSource) -> None:
        """Half of the rows for the members, the other half for their sum."""
        scores = [member.score(held_out).double() for member in self.members_]
        first, second = halves(len(held_out), int(self.seed))
        self.calibrations_ = tuple(Calibration.of(score[first]) for score in scores)
        self._moved()
        columns = torch.stack([score[second] for score in scores], dim=1)
        self.sum_ = Calibration.of(self._terms(columns.to(self.device)).sum(1).float().cpu())

    def _weights(self) -> Sequence[float] | None:
        """How much each fitted member counts; None where all count the same."""
        return None

    def _terms(self, scores: Tensor) -> Tensor:
        """What members whose scores are the columns of (N, M) add to the sum (N, M)."""
        found = self._joined.standard(scores) if self.rule == "z" else self._joined.surprise(scores)
        weights = self._weights()
        return found if weights is None else found * torch.tensor(weights, dtype=torch.float64, device=found.device)

    def _each(self, ask: Callable[[Calibration, Tensor], Tensor], scores: Tensor) -> Tensor:
        """What each calibration says of its column of (N, M)."""
        return torch.stack([ask(*pair) for pair in zip(self.calibrations_, scores.T.contiguous(), strict=True)], dim=1)

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
        self._check_fitted()
        return Threshold.fit(self.sum_.scores.float(), keep=keep, source=self.fingerprint())

    def explain(self, test: FeatureSource) -> Explanation:
        """Each member's own score of each row, and what it adds to the sum."""
        self._check_to_score(test)
        pieces = []
        with self._scoring():
            for batch in self._batches(test):
                scores = self._member_scores(batch)
                pieces.append((scores.cpu(), self._terms(scores).cpu(), self._each(Calibration.p_values, scores).cpu()))
        return Explanation(self.names, *(torch.cat(column) for column in zip(*pieces, strict=True)))

    def _moved(self) -> None:
        if hasattr(self, "calibrations_"):
            self.calibrations_ = tuple(Calibration(one.scores.to(self.device)) for one in self.calibrations_)
            self._joined = Calibrations(self.calibrations_)
        super()._moved()

    def _state(self) -> dict[str, Tensor]:
        own = {f"{i}.calibration": one.scores for i, one in enumerate(self.calibrations_)}
        return {**super()._state(), **own, "sum": self.sum_.scores}

    def _notes(self) -> dict[str, Any]:
        return {**super()._notes(), "held_out": len(self.calibrations_[0].scores) + len(self.sum_.scores)}

    def _load_state(self, state: dict[str, Tensor]) -> None:
        super()._load_state(state)
        names = ["sum", *(f"{i}.calibration" for i in range(len(self.members_)))]
        self.sum_, *own = (Calibration(take(state, name, (None,), torch.float64)) for name in names)
        self.calibrations_ = tuple(own)
        if len(own[0].scores) + len(self.sum_.scores) != self._told["held_out"]:
            raise FileFormatError("its calibrations are of another number of rows")
        self._moved()


@register
class Fused(Summed):
    """Several detectors as one, each calibrated on held-out ID rows (Fisher 1925).

    score = Σ_m w_m t_m(s_m(x)), where s_m is a member's score and t_m says how unusual it is among the scores of ID rows that no
    member was fitted on: −log p with a tail that goes on growing ("fisher"), or standard deviations from the mean ("z"); see
    :class:`outfield.detectors.combined.fused.Calibration`. Half of the held-out rows calibrate the members, the other half
    their sum, so that :meth:`p_values` are valid.

    Args:
        members: the detectors; copies of them are fitted.
        rule: how terms are made, "fisher" or "z".
        held_out: share of the training rows that is kept for calibration where fit is given no held-out rows. A network knows
            its training images better than others: rows that it has not seen calibrate better.
        seed: of the split of rows.
        weights: how much each member counts, w_m; None for 1 each.

    Attributes:
        members_: the fitted members.
        calibrations_: of each member.
        sum_: the calibration of the sum.
    """

    added_settings: ClassVar[Mapping[str, Any]] = {"weights": None}

    def __init__(
        self,
        members: Sequence[Detector] = (EnergyLogits(), KNN(k=5), SSD()),
        rule: str = "fisher",
        held_out: float = 0.1,
        seed: int = 0,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.members, self.rule, self.held_out = members, rule, held_out
        self.seed, self.weights = seed, weights

    def _check_settings(self) -> None:
        super()._check_settings()
        check_members(self.members)
        check_weights(self.weights, len(self.members))
        require_choice("rule", self.rule, RULES)

    def _recipe(self) -> Sequence[Detector]:
        return self.members

    def _weights(self) -> Sequence[float] | None:
        return self.weights

    def _fit(self, train: FeatureSource, held_out: FeatureSource | None = None) -> None:
        train, held_out = apart(train, held_out, float(self.held_out), int(self.seed))
        self.members_ = tuple(member.fresh().to(self._device).fit(train) for member in self.members)
        self._calibrate(held_out)

    @classmethod
    def of_fitted(
        cls,
        members: Sequence[Detector],
        held_out: FeatureSource,
        rule: str = "fisher",
        seed: int = 0,
        weights: Sequence[float] | None = None,
    ) -> Self:
        """Of members that are fitted already, calibrated on ID rows that they were not fitted on.

        Args:
            members: fitted detectors; they become this detector's own.
            held_out: ID rows.
            rule, seed, weights: see the class.

        Raises:
            InputError: a setting of a wrong type or value.
            NotFittedError: a member is not fitted.
            TooFewSamplesError: too few rows to calibrate.
        """
        made = cls(tuple(members) if isinstance(members, list) else members, rule, seed=seed, weights=weights)
        check_members(made.members)
        with made._fitting(held_out, "of_fitted", made.needs_to_score):
            for member in members:
                if not member._fitted:
                    raise NotFittedError(f"{member!r:.100} is not fitted; of_fitted takes fitted detectors")
            check_count(held_out)
            made.members_ = tuple(members)
            made._calibrate(held_out)
        return made
