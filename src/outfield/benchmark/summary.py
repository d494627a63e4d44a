"""Records to means and spreads: over a level's sets, over seeds, over backbones. Nothing is formatted here.

For one detector and one column (an OOD set, a level, or the average over all sets), x_bs is the mean of a metric over the
column's sets on backbone b from seed s. Of these

    mean                x̄ = mean_b x̄_b,  with x̄_b = mean_s x_bs
    std over seeds      sqrt(mean_b σ_b²), with σ_b the standard deviation of x_bs over s
    std over backbones  the standard deviation of x̄_b over b

Standard deviations divide by n − 1; they are None where n is 1, as over the seeds of a detector without randomness.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outfield.benchmark.protocol import AVERAGE, PROTOCOLS, Protocol
from outfield.benchmark.result import BenchmarkRun, LowData, Result

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
    return columns_by_level(present(records, protocol), protocol)


def columns_by_level(sets: Sequence[str], protocol: Protocol) -> dict[str, tuple[str, ...]]:
    """Of these sets, those of each level that has any, and all."""
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
    """Published figures of each detector for columns, over the very sets that a column is over, where there are any.

    A figure is as printed if it is over the same sets, else the mean of those printed of each set, if all are.
    """
    theirs = paper_columns(protocol)
    found: dict[str, dict[str, Printed]] = {name: {} for name in rows}
    for name, cells in rows.items():
        for column, sets in columns.items():
            if column in cells and {*sets} == {*theirs.get(column, (column,))}:
                found[name][column] = Printed(*cells[column])
            elif all(ood in cells for ood in sets):
                fpr95 = [value for value in (cells[ood][0] for ood in sets) if value is not None]
                mean = statistics.fmean(fpr95) if len(fpr95) == len(sets) else None
                found[name][column] = Printed(mean, statistics.fmean(cells[ood][1] for ood in sets))
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


def value(fit: Mapping[str, Result], sets: Sequence[str], metric: str) -> float:
    """x_bs: a metric's mean over sets, of one fitted detector's records by OOD set."""
    return statistics.fmean(getattr(fit[name], metric) for name in sets)


def _spread(fits: Fits, sets: Sequence[str], metric: str) -> Spread:
    values: dict[str, list[float]] = {}
    for (backbone, _), fit in fits.items():
        values.setdefault(backbone, []).append(value(fit, sets, metric))
    means = [statistics.fmean(of_backbone) for of_backbone in values.values()]
    variances = [statistics.variance(of_backbone) for of_backbone in values.values() if len(of_backbone) > 1]
    return Spread(
        mean=statistics.fmean(means),
        over_seeds=math.sqrt(statistics.fmean(variances)) if variances else None,
        over_backbones=statistics.stdev(means) if len(means) > 1 else None,
    )


def fraction_cells(run: BenchmarkRun) -> dict[str, dict[float, LowData]]:
    """By detector, then by fraction, the smallest first: means over seeds, then backbones, or why it could not be fitted."""
    found: dict[str, dict[float, LowData]] = {one.detector: {} for one in run.low_data}
    for name, fraction in sorted({(one.detector, one.fraction) for one in run.low_data}):
        mine = [one for one in run.low_data if (one.detector, one.fraction) == (name, fraction)]
        reason = next((one.reason for one in mine if one.reason), "")
        backbones = [[one for one in mine if one.backbone == each] for each in {one.backbone for one in mine}]
        means = {
            metric: statistics.fmean(statistics.fmean(getattr(one, metric) for one in those) for those in backbones)
            for metric in ([] if reason else METRICS)
        }
        found[name][fraction] = LowData(fraction, "", name, None, **means, reason=reason)
    return found
