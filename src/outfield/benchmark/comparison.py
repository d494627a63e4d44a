"""Whether one detector is better than another, with paired bootstrap intervals.

For a column (an OOD set, a level, or the average over all sets) and a metric, x_b is a detector's metric on backbone b: its
mean over the column's sets and over seeds. What is compared is

    Δ = mean_b (x_b of the first − x_b of the second)

over the backbones on which both were scored. In each of R resamples, as many rows as a set has are drawn from it with
replacement, from every set on its own (the ID test set and each OOD set), and x_b is computed anew from the drawn rows. The
same rows are drawn for both detectors, for all seeds and for all backbones: a set that has one name and one number of rows on
several backbones is taken to be the same samples. The interval over samples runs between the (1 − c) / 2 and (1 + c) / 2
quantiles of the R values of Δ, for a coverage of c.

The interval over backbones also draws, in each resample, as many backbones as there are with replacement, and so tells what
other backbones might have given. It exists where there are at least two, and is too narrow where there are only a few: drawn
from two backbones, half of all pairs are one backbone twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outfield.benchmark.result import BenchmarkRun, Key
from outfield.benchmark.summary import columns_by_level
from outfield.config import require_number
from outfield.errors import InputError, UnknownNameError
from outfield.scores import as_scores, rank

RESAMPLES = 1000
COVERAGE = 0.95
Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """Δ of one metric in one column, the first detector less the second, as a fraction, and its intervals.

    The interval over backbones, and samples, is None where there is one backbone.
    """

    value: float
    over_samples: Interval
    over_backbones: Interval | None = None

    @property
    def widest(self) -> Interval:
        """The interval over backbones where there is one, else that over samples."""
        return self.over_samples if self.over_backbones is None else self.over_backbones


@dataclass(frozen=True)
class Comparison:
    """Two detectors of a run: differences by OOD set, level and "average"; below zero the first has the lower figure.

    A set that is called like a level has the level's place.
    """

    first: str
    second: str
    backbones: tuple[str, ...]
    fpr95: Mapping[str, Difference]
    auroc: Mapping[str, Difference]


def compare(
    run: BenchmarkRun,
    first: str,
    others: Sequence[str],
    *,
    resamples: int = RESAMPLES,
    coverage: float = COVERAGE,
    seed: int = 0,
) -> list[Comparison]:
    """One detector of a run against others, by the same resamples; for what is computed see the module."""
    require_number("resamples", resamples, least=1, whole=True)
    require_number("coverage", coverage, above=0, most=1)
    require_number("seed", seed, least=0, whole=True)
    names = [first, *others]
    known = list(dict.fromkeys(key.detector for key in run.scores))
    for name in names:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "it has no scores at all"
            raise UnknownNameError(f"the run has no scores of a detector {name!r}; {there}")
    if first in others:
        raise InputError(f"{first} cannot be compared with itself; name another detector")
    scores = {key: mine for key, mine in run.scores.items() if key.detector in names}
    values = _resampled(run, scores, resamples, seed)
    return [_comparison(run, first, other, values, coverage, seed) for other in others]


Values = dict[tuple[str, str], dict[str, np.ndarray]]
"""By detector and backbone, then by OOD set: FPR95 and AUROC (1 + R, 2), means over seeds; the first of all rows."""


def _resampled(run: BenchmarkRun, scores: Mapping[Key, Mapping[str, Any]], resamples: int, seed: int) -> Values:
    """The metrics of every detector on every backbone, of all rows and of the resamples."""
    of_id = run.protocol.id
    sizes = {key: _sizes(run, key, mine) for key, mine in scores.items()}
    for key, mine in sizes.items():
        for other, theirs in sizes.items():
            if key.backbone == other.backbone and any(mine[name] != theirs[name] for name in mine.keys() & theirs):
                raise InputError(
                    f"{key.detector} and {other.detector} were not scored on the same rows of {key.backbone}: "
                    f"{mine} and {theirs}"
                )
    ready = {}
    for key, found in scores.items():
        ready[key] = SortedScores(found[of_id], {name: found[name] for name in sizes[key] if name != of_id})
    sets = {(name, n): n for mine in sizes.values() for name, n in mine.items()}
    whole = {one: np.ones((n, 1), np.int32) for one, n in sets.items()}
    parts: dict[Key, list[dict[str, np.ndarray]]] = {key: [] for key in ready}
    for counts in itertools.chain([whole], counts_of_resamples(sets, resamples, seed)):
        for key, one in ready.items():
            drawn = {name: counts[name, n] for name, n in sizes[key].items()}
            parts[key].append(one.metrics(drawn[of_id], drawn))
    fits: dict[tuple[str, str], list[dict[str, np.ndarray]]] = {}
    for key, drawn_parts in parts.items():
        whole_fit = {name: np.concatenate([part[name] for part in drawn_parts]) for name in drawn_parts[0]}
        fits.setdefault((key.detector, key.backbone), []).append(whole_fit)
    # Means over seeds, for the sets that all seeds have.
    return {
        pair: {name: np.mean([one[name] for one in seeds], 0) for name in set.intersection(*map(set, seeds))}
        for pair, seeds in fits.items()
    }


def _sizes(run: BenchmarkRun, key: Key, scores: Mapping[str, Any]) -> dict[str, int]:
    """Rows of the ID test set and of each OOD set of the protocol that was scored."""
    if run.protocol.id not in scores:
        raise InputError(f"there are no scores of {run.protocol.id}, the ID set, by {key.detector} on {key.backbone}")
    return {name: len(scores[name]) for name in (run.protocol.id, *run.protocol.ood) if name in scores}


def _comparison(run: BenchmarkRun, first: str, second: str, values: Values, coverage: float, seed: int) -> Comparison:
    backbones = [name for detector, name in values if detector == first and (second, name) in values]
    if not backbones:
        raise InputError(f"{first} and {second} were not scored on the same backbone; there is nothing to compare")
    pairs = [(values[first, name], values[second, name]) for name in backbones]
    shared = [ood for ood in run.protocol.ood if all(ood in one for pair in pairs for one in pair)]
    if not shared:
        raise InputError(f"{first} and {second} were not scored on the same OOD set; there is nothing to compare")
    columns = {name: (name,) for name in shared} | columns_by_level(shared, run.protocol)
    differences = {
        column: np.stack([np.mean([one[ood] - two[ood] for ood in sets], 0) for one, two in pairs], 1)
        for column, sets in columns.items()
    }
    by_metric = [
        {column: _difference(delta[..., metric], coverage, seed) for column, delta in differences.items()}
        for metric in (0, 1)
    ]
    return Comparison(first, second, tuple(backbones), *by_metric)


def _difference(delta: np.ndarray, coverage: float, seed: int) -> Difference:
    """Of Δ on every backbone (1 + R, B), the first row of all samples."""
    drawn = delta[1:]
    resamples, backbones = drawn.shape
    over_backbones = None
    if backbones > 1:
        chosen = np.random.default_rng([seed, 0]).integers(backbones, size=drawn.shape)
        over_backbones = _interval(drawn[np.arange(resamples)[:, None], chosen].mean(1), coverage)
    return Difference(float(delta[0].mean()), _interval(drawn.mean(1), coverage), over_backbones)


def intervals(
    scores_id: Any, scores_ood: Any, *, resamples: int = RESAMPLES, coverage: float = COVERAGE, seed: int = 0
) -> tuple[Interval, Interval]:
    """Of FPR95 and AUROC of one detector on one OOD set, over resamples of both sets."""
    ready, sets = SortedScores(scores_id, {"ood": scores_ood}), {"id": len(scores_id), "ood": len(scores_ood)}
    drawn = [ready.metrics(counts["id"], counts)["ood"] for counts in counts_of_resamples(sets, resamples, seed)]
    fpr95, auroc = np.concatenate(drawn).T
    return _interval(fpr95, coverage), _interval(auroc, coverage)


def _interval(values: np.ndarray, coverage: float) -> Interval:
    low, high = np.quantile(values, [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(low), float(high)


PART = 4_000_000  # counts in memory at a time


def counts_of_resamples(sets: Mapping[Any, int], resamples: int, seed: int) -> Iterator[dict[Any, np.ndarray]]:
    """Number of times each row of each set is drawn (N, r), some of the resamples at a time.

    The rows of the i-th set, counted from 1, are those of ``numpy.random.default_rng([seed, i]).integers(N, size=(resamples,
    N))``, however many resamples are in memory at a time.
    """
    generators = {name: np.random.default_rng([seed, place]) for place, name in enumerate(sets, 1)}
    part = max(1, PART // sum(sets.values()))
    for start in range(0, resamples, part):
        some = min(part, resamples - start)
        yield {name: _counts(generators[name].integers(n, size=(some, n))) for name, n in sets.items()}


def _counts(rows: np.ndarray) -> np.ndarray:
    """How often each of the numbers 0 … N − 1 is in each of these draws (r, N), as (N, r)."""
    some, n = rows.shape
    apart = rows * some + np.arange(some)[:, None]
    return np.bincount(apart.ravel(), minlength=some * n).reshape(n, some).astype(np.int32)


class SortedScores:
    """Scores of the ID test set (N,) and of OOD sets (M,) by one fitted detector, sorted once."""

    def __init__(self, scores_id: Any, scores_ood: Mapping[str, Any]) -> None:
        ids = as_scores("scores_id", scores_id)
        self._order = np.argsort(ids)
        self._ids = ids[self._order]
        self._oods = {}
        for name, scores in scores_ood.items():
            oods = as_scores(name, scores)
            order = np.argsort(oods)
            below, not_above = (np.searchsorted(self._ids, oods[order], side) for side in ("left", "right"))
            self._oods[name] = order, oods[order], below, not_above

    def metrics(self, counts_id: np.ndarray, counts_ood: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """FPR95 and AUROC (r, 2) of each OOD set in each resample; counts (N, r) and (M, r) say how often a row was drawn."""
        up_to = _cumulative(counts_id[self._order])
        # The lowest threshold that keeps 95 % of the drawn ID rows is the first score at which so many were counted.
        thresholds = self._ids[(up_to[1:] < rank(0.95, len(self._ids))).sum(0)]
        found = {}
        for name, (order, oods, below, not_above) in self._oods.items():
            mine = counts_ood[name][order]
            accepted = _cumulative(mine)[np.searchsorted(oods, thresholds, "right"), np.arange(mine.shape[1])]
            won_twice = (mine * (up_to[below] + up_to[not_above])).sum(0, dtype=np.int64)
            found[name] = np.stack([accepted / len(mine), won_twice / (2 * len(self._ids) * len(oods))], 1)
        return found


def _cumulative(counts: np.ndarray) -> np.ndarray:
    """0, c₁, c₁ + c₂, … of each resample: (N, r) → (N + 1, r)."""
    found = np.zeros((len(counts) + 1, counts.shape[1]), np.int32)
    np.cumsum(counts, 0, out=found[1:])
    return found
