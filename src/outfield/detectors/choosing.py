"""Choosing the members of a fused detector without OOD data: by how well they tell ID rows from stand-ins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outfield.config import require, require_number
from outfield.detectors.base import Detector
from outfield.detectors.calibration import Calibration
from outfield.detectors.candidates import default_candidates
from outfield.detectors.fused import Fused
from outfield.detectors.held_out import check_apart, split_off
from outfield.detectors.members import fresh
from outfield.detectors.naming import names_of
from outfield.detectors.summed import LEAST
from outfield.errors import InputError, MissingFieldError, OutfieldError, TooFewSamplesError
from outfield.features.set import FeatureSource
from outfield.features.stand_ins import feature_stand_ins
from outfield.progress import bar
from outfield.scores.vectors import rank
from outfield.stand_in import LEVELS, StandIns

MOST_SUMS = 200_000
"""More sums than this take minutes to compare."""
SUMS_AT_ONCE = 256
SPLIT = 0.1
"""Share of the training rows that is held out where no held-out rows are given."""


@dataclass(frozen=True)
class Trial:
    """One detector, or a sum of several, and how it told ID rows from stand-ins.

    Attributes:
        members: the detectors, in words.
        fpr95: the share of each stand-in set that is accepted where 95 % of the ID rows are, by the set's name.
        near: mean over the sets that stand for near OOD.
        far: mean over those that stand for far OOD.
        real: the same share of real OOD sets, which were looked at after the choice; empty where there were none.
    """

    members: tuple[str, ...]
    fpr95: Mapping[str, float]
    near: float
    far: float
    real: Mapping[str, float]

    @property
    def mean(self) -> float:
        """What the choice is made by: near and far count equally, however many sets stand for each."""
        return (self.near + self.far) / 2


@dataclass(frozen=True)
class Choice:
    """What :func:`choose` found.

    Attributes:
        detector: the chosen detector, fitted.
        trials: everything that was tried, the best first.
        skipped: candidates that could not be fitted, and why.
    """

    detector: Fused
    trials: Sequence[Trial]
    skipped: Mapping[str, str]

    @property
    def best(self) -> Trial:
        """The trial of the chosen detector."""
        return self.trials[0]

    @property
    def singles(self) -> list[Trial]:
        """The trials of single candidates, the best first."""
        return [trial for trial in self.trials if len(trial.members) == 1]


def choose(
    train: FeatureSource,
    held_out: FeatureSource | None = None,
    stand_ins: StandIns[Any] | Mapping[str, Mapping[str, FeatureSource]] | None = None,
    candidates: Sequence[Detector] | None = None,
    *,
    most_members: int = 4,
    real: Mapping[str, FeatureSource] | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Choice:
    """The fused detector that tells held-out ID rows best from stand-ins for OOD data; no OOD data is used.

    Every candidate is fitted once. Of each sum of up to ``most_members`` of them FPR95 is computed on every stand-in set; the
    mean over sets that stand for near OOD and the mean over those that stand for far OOD count equally.

    Args:
        train: ID training rows.
        held_out: ID rows that were not trained on: they calibrate, and are what stand-ins are told from. A tenth of the
            training rows, which are then not trained on, if None.
        stand_ins: rows that stand for OOD data, ``{"near": {name: rows}, "far": {name: rows}}`` with at least one level, or
            :func:`outfield.stand_ins` of held-out images with ``map(backbone.extract)``. Made of the held-out rows if None,
            which tell much less (:func:`outfield.feature_stand_ins`).
        candidates: the detectors to choose from; :func:`outfield.detectors.candidates.default_candidates` if None.
        most_members: how many detectors a sum may have.
        real: real OOD sets by name, looked at after the choice, to compare: they decide nothing.
        seed: of the split of held-out rows.
        device: where to fit and score.

    Raises:
        InputError: no stand-ins, no candidates, or held-out rows that are training rows.
        TooFewSamplesError: too few held-out rows.
    """
    require_number("most_members", most_members, least=1, whole=True)
    require_number("seed", seed, least=0, whole=True)
    most_members, seed = int(most_members), int(seed)
    if held_out is None:
        train, held_out = split_off(train, SPLIT, seed, 2 * LEAST)
    else:
        check_apart(train, held_out)
    named = _checked_stand_ins(feature_stand_ins(held_out, seed=seed) if stand_ins is None else stand_ins)
    wanted = default_candidates(train) if candidates is None else list(candidates)
    require(bool(wanted), "candidates", candidates, "a list of detectors, at least one")
    _check_count(len(wanted), most_members)
    fitted, skipped = _fitted(wanted, train, device)
    if not fitted:
        raise InputError(
            f"no candidate could be fitted: {'; '.join(f'{name}: {why}' for name, why in skipped.items())}"
        )
    names = names_of(fitted)
    rows = {("", ""): held_out, **named, **{("real", name): data for name, data in (real or {}).items()}}
    terms = _terms(fitted, rows, seed)
    trials = _tried([*_sums(len(fitted), most_members)], names, terms)
    order = sorted(range(len(trials)), key=lambda i: (trials[i].mean, len(trials[i].members)))
    best = trials[order[0]].members
    members = [detector for detector, name in zip(fitted, names, strict=True) if name in best]
    return Choice(Fused.of_fitted(members, held_out, seed=seed), [trials[i] for i in order], skipped)


def _checked_stand_ins(
    stand_ins: StandIns[Any] | Mapping[str, Mapping[str, FeatureSource]],
) -> dict[tuple[str, str], FeatureSource]:
    if isinstance(stand_ins, StandIns):
        stand_ins = stand_ins.by_level()
    good = isinstance(stand_ins, Mapping) and set(stand_ins) <= set(LEVELS)
    good = good and all(isinstance(sets, Mapping) for sets in stand_ins.values())
    shown = list(stand_ins) if isinstance(stand_ins, Mapping) else stand_ins
    require(good, "stand_ins", shown, 'a mapping such as {"near": {"turned": rows}, "far": {"jigsaw": rows}}')
    found = {(level, name): rows for level, sets in stand_ins.items() for name, rows in sets.items()}
    require(bool(found), "stand_ins", shown, "at least one set of rows")
    return found


def _check_count(candidates: int, most: int) -> None:
    if sum(math.comb(candidates, size) for size in range(1, min(most, candidates) + 1)) > MOST_SUMS:
        raise InputError(
            f"{candidates} candidates have more than {MOST_SUMS:,} sums of up to {most}; lower most_members or name fewer"
        )


def _sums(candidates: int, most: int) -> Iterator[tuple[int, ...]]:
    """Every choice of one to ``most`` of the candidates."""
    for size in range(1, min(most, candidates) + 1):
        yield from itertools.combinations(range(candidates), size)


def _fitted(candidates: Sequence[Detector], train: FeatureSource, device: str) -> tuple[list[Detector], dict[str, str]]:
    """Fitted copies of the candidates, and those that cannot be fitted on this data with the reason."""
    fitted: list[Detector] = []
    skipped: dict[str, str] = {}
    with bar("fitting candidates", len(candidates), "detectors") as advance:
        for i, candidate in enumerate(candidates):
            try:
                fitted.append(fresh(candidate, device).fit(train))
            except (MissingFieldError, TooFewSamplesError) as error:
                skipped[repr(candidate)] = str(error)
            except OutfieldError as error:
                raise InputError(f"{candidate!r:.100} cannot be fitted: {error}") from error
            advance(i + 1)
    return fitted, skipped


def _terms(
    fitted: Sequence[Detector], rows: Mapping[tuple[str, str], FeatureSource], seed: int
) -> dict[tuple[str, str], Tensor]:
    """What each candidate adds to a sum (n, M), for the second half of the held-out rows and for every other set."""
    held_out = rows["", ""]
    order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(seed))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    columns: dict[tuple[str, str], list[Tensor]] = {key: [] for key in rows}
    with bar("scoring candidates", len(fitted), "detectors") as advance:
        for i, detector in enumerate(fitted):
            found = {key: detector.score(data) for key, data in rows.items()}
            calibration = Calibration.of(found["", ""][first])
            found["", ""] = found["", ""][second]
            for key, scores in found.items():
                columns[key].append(calibration.surprise(scores))
            advance(i + 1)
    return {key: torch.stack(found, dim=1) for key, found in columns.items()}


def _tried(
    sums: Sequence[tuple[int, ...]], names: Sequence[str], terms: Mapping[tuple[str, str], Tensor]
) -> list[Trial]:
    """A trial of each sum, in their order; sums of the same size are computed together."""
    others = [key for key in terms if key != ("", "")]
    trials: list[Trial] = []
    with bar("trying sums", len(sums), "sums") as advance:
        for _, same in itertools.groupby(sums, len):
            group = list(same)
            for start in range(0, len(group), SUMS_AT_ONCE):
                some = group[start : start + SUMS_AT_ONCE]
                index = torch.tensor(some)
                kept = _added(terms["", ""], index).sort(dim=0).values[rank(0.95, len(terms["", ""])) - 1]
                accepted = torch.stack([(_added(terms[key], index) <= kept).double().mean(0) for key in others], dim=1)
                trials += [_trial(c, names, others, row) for c, row in zip(some, accepted.tolist(), strict=True)]
                advance(len(trials))
    return trials


def _added(terms: Tensor, index: Tensor) -> Tensor:
    """Of terms (n, M) those in each row of the index (S, k), added up: (n, S)."""
    total = terms[:, index[:, 0]]
    for column in index[:, 1:].unbind(1):
        total = total + terms[:, column]
    return total


def _trial(
    chosen: tuple[int, ...], names: Sequence[str], sets: Sequence[tuple[str, str]], accepted: Sequence[float]
) -> Trial:
    found = dict(zip(sets, accepted, strict=True))
    levels = {level: [value for (at, _), value in found.items() if at == level] for level in LEVELS}
    means = {level: sum(values) / len(values) for level, values in levels.items() if values}
    other = next(iter(means.values()))
    return Trial(
        tuple(names[i] for i in chosen),
        {name: value for (level, name), value in found.items() if level in LEVELS},
        means.get("near", other),
        means.get("far", other),
        {name: value for (level, name), value in found.items() if level == "real"},
    )
