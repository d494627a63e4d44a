"""Records to means and spreads, over a level's sets, over seeds, over backbones; and by how much two detectors differ.

For one detector and one column (an OOD set, a level, or the average over all sets), x_bs is the mean of a metric over the
column's sets on backbone b from seed s. Of these

    mean                x̄ = mean_b x̄_b,  with x̄_b = mean_s x_bs
    std over seeds      sqrt(mean_b σ_b²), with σ_b the standard deviation of x_bs over s
    std over backbones  the standard deviation of x̄_b over b

Standard deviations divide by n − 1; they are None where n is 1, as over the seeds of a detector without randomness.

Two detectors are compared by paired bootstrap intervals of

    Δ = mean_b (x̄_b of the first − x̄_b of the second)

over the backbones on which both were scored. In each of R resamples, as many rows as a set has are drawn from it with
replacement, from every set on its own (the ID test set and each OOD set), and x̄_b is computed anew from the drawn rows. The
same rows are drawn for both detectors, for all seeds and for all backbones: a set that has one name and one number of rows on
several backbones is taken to be the same samples. The interval over samples runs between the (1 − c) / 2 and (1 + c) / 2
quantiles of the R values of Δ, for a coverage of c.

The interval over backbones also draws, in each resample, as many backbones as there are with replacement, and so tells what
other backbones might have given. It exists where there are at least two, and is too narrow where there are only a few: drawn
from two backbones, half of all pairs are one backbone twice.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from outfield.benchmark.protocol import AVERAGE, PROTOCOLS, Protocol
from outfield.benchmark.result import BenchmarkRun, LowData, Result
from outfield.config import require_number
from outfield.errors import InputError, UnknownNameError
from outfield.scores import as_scores, rank

METRICS = ("fpr95", "auroc")


class Printed(NamedTuple):
    """One cell of a published table, in percent; no FPR95 where only AUROC is printed."""

    fpr95: float | None
    auroc: float


PrintedTable = Mapping[str, Mapping[str, Printed]]
"""Published figures by detector, then by OOD set, level or "average"."""


@dataclass(frozen=True)
class Spread:
    """A mean and what it varies by, over seeds and over backbones; fractions."""

    mean: float
    over_seeds: float | None = None
    over_backbones: float | None = None


@dataclass(frozen=True)
class Cell:
    """FPR95 and AUROC of one detector in one column."""

    fpr95: Spread
    auroc: Spread


Columns = Mapping[str, Sequence[str]]
"""OOD sets whose mean a column shows, by its name."""
Fits = dict[tuple[str, int | None], dict[str, Result]]
"""A detector's records by backbone and seed, then by OOD set."""
Summary = dict[str, dict[str, Cell]]
"""Cells by detector, then by column."""


def present(records: Iterable[Result], protocol: Protocol) -> tuple[str, ...]:
    """OOD sets of the protocol that there are records of, nearest first."""
    found = {record.ood for record in records}
    return tuple(name for name in protocol.ood if name in found)


def level_columns(records: Sequence[Result], protocol: Protocol) -> dict[str, tuple[str, ...]]:
    """Near, mid, far and the average, over the sets that are there; a level without any is left out."""
    return _columns_by_level(present(records, protocol), protocol)


def _columns_by_level(sets: Sequence[str], protocol: Protocol) -> dict[str, tuple[str, ...]]:
    levels = {level: tuple(name for name in names if name in sets) for level, names in protocol.levels.items()}
    return {level: names for level, names in levels.items() if names} | {AVERAGE: tuple(sets)}


def set_columns(records: Sequence[Result], protocol: Protocol) -> dict[str, tuple[str, ...]]:
    """Each OOD set that is there and the average over them."""
    sets = present(records, protocol)
    return {name: (name,) for name in sets} | {AVERAGE: sets}


def paper_columns(protocol: Protocol) -> dict[str, tuple[str, ...]]:
    """The sets behind a published figure of each level and of the average: those of the published protocol, if it is one."""
    known = PROTOCOLS.get(protocol.key, protocol)
    return known.levels | {AVERAGE: known.ood}


def published(rows: PrintedTable, columns: Columns, protocol: Protocol) -> dict[str, dict[str, Printed]]:
    """Published figures for columns: as printed if over the same sets, else the mean of those printed of each set, if all are."""
    theirs = paper_columns(protocol)
    found: dict[str, dict[str, Printed]] = {name: {} for name in rows}
    for name, cells in rows.items():
        for column, sets in columns.items():
            if column in cells and {*sets} == {*theirs.get(column, (column,))}:
                found[name][column] = Printed(*cells[column])
            elif all(ood in cells for ood in sets):
                fpr95, auroc = zip(*(cells[ood] for ood in sets), strict=True)
                found[name][column] = Printed(
                    None if None in fpr95 else statistics.fmean(fpr95), statistics.fmean(auroc)
                )
    return found


def summarise(records: Iterable[Result], columns: Columns) -> Summary:
    """Cells of every detector, in the order of the records; a column that a detector lacks a set of is left out for it."""
    return {
        detector: {
            column: Cell(**{metric: _spread(fits, sets, metric) for metric in METRICS})
            for column, sets in columns.items()
            if all(set(sets) <= set(fit) for fit in fits.values())
        }
        for detector, fits in by_fit(records).items()
    }


def by_fit(records: Iterable[Result]) -> dict[str, Fits]:
    """Records by detector, then by backbone and seed, then by OOD set."""
    found: dict[str, Fits] = {}
    for record in records:
        fits = found.setdefault(record.detector, {})
        fits.setdefault((record.backbone, record.seed), {})[record.ood] = record
    return found


def by_backbone(fits: Fits, sets: Sequence[str], metric: str) -> dict[str, list[float]]:
    """x_bs by b: a metric's mean over sets, of each fitted detector."""
    values: dict[str, list[float]] = {}
    for (backbone, _), fit in fits.items():
        values.setdefault(backbone, []).append(statistics.fmean(getattr(fit[name], metric) for name in sets))
    return values


def _spread(fits: Fits, sets: Sequence[str], metric: str) -> Spread:
    values = by_backbone(fits, sets, metric).values()
    means = [*map(statistics.fmean, values)]
    variances = [statistics.variance(of_backbone) for of_backbone in values if len(of_backbone) > 1]
    over_seeds = math.sqrt(statistics.fmean(variances)) if variances else None
    return Spread(statistics.fmean(means), over_seeds, statistics.stdev(means) if len(means) > 1 else None)


def fraction_cells(run: BenchmarkRun) -> dict[str, dict[float, LowData]]:
    """By detector, then by fraction, the smallest first: means over seeds, then backbones, or why it could not be fitted."""
    found: dict[str, dict[float, LowData]] = {one.detector: {} for one in run.low_data}
    for name, fraction in sorted({(one.detector, one.fraction) for one in run.low_data}):
        mine = [one for one in run.low_data if (one.detector, one.fraction) == (name, fraction)]
        reason = next((one.reason for one in mine if one.reason), "")
        fits: Any = {(one.backbone, one.seed): {"": one} for one in mine}
        means = {} if reason else {metric: _spread(fits, [""], metric).mean for metric in METRICS}
        found[name][fraction] = LowData(fraction, "", name, None, **means, reason=reason)
    return found


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

    @property
    def clear(self) -> bool:
        """Whether zero lies outside of the widest interval."""
        return not self.widest[0] <= 0 <= self.widest[1]


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
    known = dict.fromkeys(key.detector for key in run.scores)
    for name in (first, *others):
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "it has no scores at all"
            raise UnknownNameError(f"the run has no scores of a detector {name!r}; {there}")
    if first in others:
        raise InputError(f"{first} cannot be compared with itself; name another detector")
    values = _resampled(run, {first, *others}, resamples, seed)
    return [_comparison(run, first, other, values, coverage, seed) for other in others]


Values = dict[tuple[str, str], dict[str, np.ndarray]]
"""By detector and backbone, then by OOD set: FPR95 and AUROC (1 + R, 2), means over seeds; the first of all rows."""


def _resampled(run: BenchmarkRun, detectors: Collection[str], resamples: int, seed: int) -> Values:
    """The metrics of these detectors on every backbone, of all rows and of the resamples."""
    of_id, ood = run.protocol.id, run.protocol.ood
    scores = {key: mine for key, mine in run.scores.items() if key.detector in detectors}
    sizes = {key: {name: len(mine[name]) for name in (of_id, *ood) if name in mine} for key, mine in scores.items()}
    for (key, mine), (other, theirs) in itertools.combinations(sizes.items(), 2):
        if key.backbone == other.backbone and any(mine[name] != theirs[name] for name in mine.keys() & theirs):
            names = f"{key.detector} and {other.detector}"
            raise InputError(f"{names} were not scored on the same rows of {key.backbone}: {mine} and {theirs}")
    ready = {key: SortedScores(mine[of_id], {n: mine[n] for n in ood if n in mine}) for key, mine in scores.items()}
    sets = {(name, n): n for mine in sizes.values() for name, n in mine.items()}
    whole = {one: np.ones((n, 1), np.int32) for one, n in sets.items()}
    drawn: dict[tuple[str, str], dict[str, list[np.ndarray]]] = {}
    for counts in itertools.chain([whole], counts_of_resamples(sets, resamples, seed)):
        seeds: dict[tuple[str, str], list[dict[str, np.ndarray]]] = {}
        for key, one in ready.items():
            times = {name: counts[name, n] for name, n in sizes[key].items()}
            seeds.setdefault((key.detector, key.backbone), []).append(one.metrics(times[of_id], times))
        for pair, found in seeds.items():
            parts = drawn.setdefault(pair, {})
            for name in set.intersection(*map(set, found)):  # the sets that all seeds have
                parts.setdefault(name, []).append(np.mean([fit[name] for fit in found], 0))
    return {pair: {name: np.concatenate(some) for name, some in found.items()} for pair, found in drawn.items()}


def _comparison(run: BenchmarkRun, first: str, second: str, values: Values, coverage: float, seed: int) -> Comparison:
    backbones = [name for detector, name in values if detector == first and (second, name) in values]
    if not backbones:
        raise InputError(f"{first} and {second} were not scored on the same backbone; there is nothing to compare")
    pairs = [(values[first, name], values[second, name]) for name in backbones]
    shared = [ood for ood in run.protocol.ood if all(ood in one for pair in pairs for one in pair)]
    if not shared:
        raise InputError(f"{first} and {second} were not scored on the same OOD set; there is nothing to compare")
    fpr95: dict[str, Difference] = {}
    auroc: dict[str, Difference] = {}
    for column, sets in ({name: (name,) for name in shared} | _columns_by_level(shared, run.protocol)).items():
        delta = np.stack([np.mean([one[ood] - two[ood] for ood in sets], 0) for one, two in pairs], 1)
        fpr95[column], auroc[column] = (_difference(delta[..., metric], coverage, seed) for metric in (0, 1))
    return Comparison(first, second, tuple(backbones), fpr95, auroc)


def _difference(delta: np.ndarray, coverage: float, seed: int) -> Difference:
    """Of Δ on every backbone (1 + R, B), the first row of all samples."""
    drawn, over_backbones = delta[1:], None
    if drawn.shape[1] > 1:
        chosen = np.random.default_rng([seed, 0]).integers(drawn.shape[1], size=drawn.shape)
        over_backbones = _interval(np.take_along_axis(drawn, chosen, 1).mean(1), coverage)
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
        some, counts = min(part, resamples - start), {}
        for name, n in sets.items():
            apart = generators[name].integers(n, size=(some, n)) * some + np.arange(some)[:, None]
            counts[name] = np.bincount(apart.ravel(), minlength=some * n).reshape(n, some).astype(np.int32)
        yield counts


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
    return np.pad(counts, ((1, 0), (0, 0))).cumsum(0, dtype=np.int32)
