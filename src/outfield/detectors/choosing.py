"""Choosing the members of a fused detector without OOD data: by how well they tell ID rows from stand-ins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfield.config import require, require_number
from outfield.detectors.base import Detector
from outfield.detectors.candidates import default_candidates
from outfield.detectors.fused import Fused
from outfield.detectors.held_out import check_apart, split_off
from outfield.detectors.members import fresh
from outfield.detectors.naming import names_of
from outfield.detectors.summed import LEAST
from outfield.detectors.trials import Trial, sides_of, tried, weighed
from outfield.errors import DivergenceError, InputError
from outfield.features.set import FeatureSource
from outfield.features.stand_ins import feature_stand_ins
from outfield.progress import bar
from outfield.stand_in import LEVELS, StandIns

MOST_SUMS = 200_000
"""More sums than this take minutes to compare."""
SPLIT = 0.1
"""Share of the training rows that is held out where no held-out rows are given."""
VOTES, ONE_IN = 100, 50
"""So many of the best sums, but at most one in so many of all, say how much a member counts."""
LIGHTEST = 0.1
"""Members that count less than this share of the heaviest one are left out."""


@dataclass(frozen=True)
class Choice:
    """What :func:`choose` found.

    Attributes:
        detector: the chosen detector, fitted.
        chosen: how it told ID rows from stand-ins.
        trials: every sum that was tried, the best first.
        skipped: candidates that could not be fitted, and why.
    """

    detector: Fused
    chosen: Trial
    trials: Sequence[Trial]
    skipped: Mapping[str, str]

    @property
    def weights(self) -> dict[str, float]:
        """How much each member of the chosen detector counts; the heaviest 1."""
        given = self.detector.weights
        return dict(zip(self.chosen.members, given or [1.0] * len(self.chosen.members), strict=True))

    @property
    def best(self) -> Trial:
        """The best single sum."""
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

    Every candidate is fitted once. Each sum of up to ``most_members`` of them is judged by :attr:`Trial.loss`: candidates are
    calibrated on one half of the held-out rows, the share of stand-ins that is accepted is computed with the other half, and
    the same again with the halves exchanged. The best sum of thousands is best by luck as well, so the best hundred of them
    vote: a member of the chosen detector counts as often as they have it. Where fewer than 5,000 sums were tried, one in
    fifty votes.

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
    sides = sides_of(fitted, rows, seed)
    sums = [*_sums(len(fitted), most_members)]
    trials = tried(sums, names, sides)
    order = sorted(range(len(trials)), key=lambda i: (trials[i].loss, len(trials[i].members)))
    weights = _voted([sums[i] for i in order], len(fitted))
    members = [i for i, weight in enumerate(weights) if weight]
    counts = None if {*weights} <= {0.0, 1.0} else [weights[i] for i in members]
    detector = Fused.of_fitted([fitted[i] for i in members], held_out, seed=seed, weights=counts)
    chosen = weighed(members, counts or [1.0] * len(members), names, sides)
    return Choice(detector, chosen, [trials[i] for i in order], skipped)


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
    for candidate in candidates:
        try:
            candidate.check_settings()
        except InputError as error:
            raise InputError(f"{candidate!r:.100} cannot be fitted: {error}") from error
    with bar("fitting candidates", len(candidates), "detectors") as advance:
        for i, candidate in enumerate(candidates):
            try:
                fitted.append(fresh(candidate, device).fit(train))
            except (InputError, DivergenceError) as error:
                skipped[repr(candidate)] = str(error)
            advance(i + 1)
    return fitted, skipped


def _voted(best_first: Sequence[tuple[int, ...]], candidates: int) -> list[float]:
    """How much each candidate counts by the best sums' votes: 1 for that which most of them have, 0 for what too few have."""
    voters = best_first[: max(1, min(VOTES, len(best_first) // ONE_IN))]
    votes = [sum(candidate in one for one in voters) for candidate in range(candidates)]
    shares = [count / max(votes) for count in votes]
    return [share if share >= LIGHTEST else 0.0 for share in shares]
