"""Sums of candidates, and how each tells held-out ID rows from stand-ins for OOD data."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outfield.detectors.base import Detector
from outfield.detectors.calibration import Calibration
from outfield.features.set import FeatureSource
from outfield.progress import bar
from outfield.scores.vectors import rank
from outfield.stand_in import LEVELS

SUMS_AT_ONCE = 256
KEPT = (0.90, 0.93, 0.95, 0.97)
"""Shares of the ID rows that are kept where sums are compared: at one share alone a few rows decide."""

Terms = dict[tuple[str, str], Tensor]
"""What each candidate adds to a sum (n, M), for held-out rows, ("", ""), and for every other set, by its level and name."""


@dataclass(frozen=True)
class Trial:
    """One detector, or a sum of several, and how it told ID rows from stand-ins.

    Attributes:
        members: the detectors, in words.
        fpr95: the share of each stand-in set that is accepted where 95 % of the ID rows are, by the set's name.
        near: mean over the sets that stand for near OOD.
        far: mean over those that stand for far OOD.
        loss: what the choice is made by: the mean share accepted where 90, 93, 95 and 97 % of the ID rows are; near and far
            count equally, however many sets stand for each.
        real: as ``fpr95``, of real OOD sets, which were looked at after the choice; empty where there were none.
    """

    members: tuple[str, ...]
    fpr95: Mapping[str, float]
    near: float
    far: float
    loss: float
    real: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Mean FPR95, near and far counted equally."""
        return (self.near + self.far) / 2


def sides_of(
    fitted: Sequence[Detector], rows: Mapping[tuple[str, str], FeatureSource], seed: int
) -> tuple[Terms, Terms]:
    """The terms, calibrated on the first half of the held-out rows and with the second half as ID rows; and the other way."""
    order = torch.randperm(len(rows["", ""]), generator=torch.Generator().manual_seed(seed))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    sides: tuple[dict[tuple[str, str], list[Tensor]], ...] = tuple({key: [] for key in rows} for _ in halves)
    with bar("scoring candidates", len(fitted), "detectors") as advance:
        for i, detector in enumerate(fitted):
            scores = {key: detector.score(data) for key, data in rows.items()}
            for columns, calibrating, judged in zip(sides, halves, reversed(halves), strict=True):
                calibration = Calibration.of(scores["", ""][calibrating])
                for key, found in scores.items():
                    columns[key].append(calibration.surprise(found if key != ("", "") else found[judged]))
            advance(i + 1)
    first, second = ({key: torch.stack(found, dim=1) for key, found in columns.items()} for columns in sides)
    return first, second


def tried(sums: Sequence[tuple[int, ...]], names: Sequence[str], sides: Sequence[Terms]) -> list[Trial]:
    """A trial of each sum, in their order; sums of the same size are computed together."""
    others = [key for key in sides[0] if key != ("", "")]
    trials: list[Trial] = []
    with bar("trying sums", len(sums), "sums") as advance:
        for _, same in itertools.groupby(sums, len):
            group = list(same)
            for start in range(0, len(group), SUMS_AT_ONCE):
                some = group[start : start + SUMS_AT_ONCE]
                index = torch.tensor(some)
                accepted = _accepted([{key: _added(rows, index) for key, rows in terms.items()} for terms in sides])
                trials += [
                    _trial(tuple(names[i] for i in c), others, row) for c, row in zip(some, accepted, strict=True)
                ]
                advance(len(trials))
    return trials


def _accepted(sides: Sequence[Terms]) -> Tensor:
    """Of sums (n, S) of terms the share of each set's rows that is accepted at each of KEPT (S, sets, KEPT), mean over sides."""
    found = []
    for sums in sides:
        ids = sums["", ""].sort(dim=0).values
        limits = [ids[rank(kept, len(ids)) - 1] for kept in KEPT]
        others = [rows for key, rows in sums.items() if key != ("", "")]
        shares = [torch.stack([(rows <= limit).double().mean(0) for limit in limits], dim=1) for rows in others]
        found.append(torch.stack(shares, dim=1))
    return torch.stack(found).mean(0)


def weighed(members: Sequence[int], weights: Sequence[float], names: Sequence[str], sides: Sequence[Terms]) -> Trial:
    """A trial of one weighted sum."""
    others = [key for key in sides[0] if key != ("", "")]
    counts = torch.tensor(weights, dtype=torch.float64)[:, None]
    sums = [{key: rows[:, list(members)] @ counts for key, rows in terms.items()} for terms in sides]
    return _trial(tuple(names[i] for i in members), others, _accepted(sums)[0])


def _added(terms: Tensor, index: Tensor) -> Tensor:
    """Of terms (n, M) those in each row of the index (S, k), added up: (n, S)."""
    total = terms[:, index[:, 0]]
    for column in index[:, 1:].unbind(1):
        total = total + terms[:, column]
    return total


def _trial(members: tuple[str, ...], sets: Sequence[tuple[str, str]], accepted: Tensor) -> Trial:
    """From the shares of the sets' rows that are accepted at each of KEPT (sets, KEPT)."""
    at_95, overall = accepted[:, KEPT.index(0.95)].tolist(), accepted.mean(1).tolist()
    fpr95 = dict(zip(sets, at_95, strict=True))
    near, far = _levels(fpr95)
    return Trial(
        members,
        {name: value for (level, name), value in fpr95.items() if level in LEVELS},
        near,
        far,
        sum(_levels(dict(zip(sets, overall, strict=True)))) / 2,
        {name: value for (level, name), value in fpr95.items() if level == "real"},
    )


def _levels(found: Mapping[tuple[str, str], float]) -> tuple[float, float]:
    """Means over the sets that stand for near and for far OOD; where there are only ones of one level, it stands for both."""
    levels = {level: [value for (at, _), value in found.items() if at == level] for level in LEVELS}
    means = {level: sum(values) / len(values) for level, values in levels.items() if values}
    other = next(iter(means.values()))
    return means.get("near", other), means.get("far", other)
