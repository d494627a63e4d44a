"""Low data: every detector fitted on a part of the training rows, and what becomes of its mean FPR95 and AUROC.

Of each class a random share of the rows is taken, ⌈f · n⌉ of n, so that every class stays. The rows of a smaller fraction are
among those of a larger one, and the same for every detector, seed and backbone with the same labels.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outfield.benchmark.fitting import TRAIN, OneBackbone, Sets
from outfield.benchmark.records import BenchmarkRun, LowData, Record
from outfield.benchmark.stages import Stages
from outfield.config import require, require_number
from outfield.detectors.base import Detector
from outfield.errors import DivergenceError, InputError
from outfield.features.part import Part
from outfield.features.set import FeatureSource
from outfield.scores.vectors import rank

SEED = 0
"""Of the choice of rows."""
ROWS_AT_ONCE = 8192


def checked_fractions(fractions: Iterable[float]) -> list[float]:
    """The fractions, the smallest first, with 1 among them unless there are none.

    Raises:
        InputError: one is not above 0 and at most 1, or comes twice.
    """
    found = list(fractions)
    for fraction in found:
        require_number("fraction", fraction, above=0, most=1)
    require(len({*found}) == len(found), "fractions", found, "different numbers")
    return sorted({*map(float, found), 1.0}) if found else []


def rows_of(labels: Tensor, fraction: float, seed: int = SEED) -> Tensor:
    """Which rows (N,) belong to a fraction: of every class with n rows the first ⌈f · n⌉ in a random order.

    Args:
        labels: The class of each row (N,).
        fraction: Above 0 and at most 1.
        seed: Of the order, which is the same for every fraction.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        mine = order[labels[order] == label]
        mask[mine[: rank(fraction, len(mine))]] = True
    return mask


class FractionOfSets(Sets):
    """The same sets with a part of the training rows."""

    def __init__(self, sets: Sets, fraction: float) -> None:
        self._sets, self._fraction, self.ood = sets, fraction, sets.ood
        self.has_held_out, self.stand_ins = sets.has_held_out, sets.stand_ins
        self._train: Part | None = None

    def __getitem__(self, name: str) -> FeatureSource:
        if name != TRAIN:
            return self._sets[name]
        if self._train is None:
            train = self._sets[TRAIN]
            self._train = Part(train, rows_of(_labels(train), self._fraction))
        return self._train

    def identity(self, name: str, fields: Collection[str] = ()) -> str:
        whole = self._sets.identity(name, fields)
        return f"{whole} fraction {self._fraction!r} seed {SEED}" if name == TRAIN else whole


def _labels(train: FeatureSource) -> Tensor:
    """The classes of all rows (N,); one class where there are no labels."""
    if "labels" not in train.shapes:
        return torch.zeros(len(train))
    return torch.cat([piece["labels"] for piece in train.batches(ROWS_AT_ONCE, ["labels"])])


def add_fractions(
    one: OneBackbone, detectors: Mapping[str, Detector], seeds: Sequence[int], fractions: Sequence[float]
) -> None:
    """Fit and score the detectors on every fraction, and put means over the OOD sets into the run.

    Those of all rows are taken from the run's records, where they are already. A detector that cannot be fitted on so few
    rows has the reason in the place of figures.
    """
    for fraction in fractions:
        sets = FractionOfSets(one.sets, fraction)
        for name, detector in detectors.items():
            if name in one.run.provenance.get("left_out", {}):
                continue
            if fraction == 1:
                mine = [r for r in one.run.records if (r.backbone, r.detector) == (one.name, name)]
                one.run.low_data += _means(mine, fraction)
            else:
                one.run.low_data += _fitted_on(one, sets, fraction, name, detector, seeds)


def _fitted_on(
    one: OneBackbone, sets: Sets, fraction: float, name: str, detector: Detector, seeds: Sequence[int]
) -> list[LowData]:
    scratch = BenchmarkRun(one.run.protocol)
    stages = Stages(one.stages.folder, str(one.stages.here["device"]))  # the log of the run is about all rows
    one.say(f"{one.name}: {name} on {100 * fraction:g} % of the training rows")
    try:
        replace(one, sets=sets, run=scratch, stages=stages).add(name, detector, seeds)
    except (InputError, DivergenceError) as error:
        return [LowData(fraction, one.name, name, None, reason=str(error))]
    return _means(scratch.records, fraction)


def _means(records: Sequence[Record], fraction: float) -> list[LowData]:
    """Means over the OOD sets of one detector's records on one backbone, seed by seed."""
    found = []
    for backbone, detector, seed in dict.fromkeys((one.backbone, one.detector, one.seed) for one in records):
        mine = [record for record in records if record.seed == seed]
        fpr95, auroc = (statistics.fmean(getattr(record, metric) for record in mine) for metric in ("fpr95", "auroc"))
        found.append(LowData(fraction, backbone, detector, seed, fpr95, auroc))
    return found


@dataclass(frozen=True)
class FractionCell:
    """A detector's figures on a fraction: means over seeds, then backbones; None, with reasons, where it could not be fitted."""

    fpr95: float | None
    auroc: float | None
    reasons: tuple[str, ...] = ()


def fraction_cells(run: BenchmarkRun) -> dict[str, dict[float, FractionCell]]:
    """By detector, then by fraction, the smallest first."""
    found: dict[str, dict[float, FractionCell]] = {}
    for name in dict.fromkeys(one.detector for one in run.low_data):
        for fraction in sorted({one.fraction for one in run.low_data}):
            mine = [one for one in run.low_data if (one.detector, one.fraction) == (name, fraction)]
            if mine:
                found.setdefault(name, {})[fraction] = _cell(mine)
    return found


def _cell(mine: Sequence[LowData]) -> FractionCell:
    reasons = tuple(dict.fromkeys(one.reason for one in mine if one.reason))
    if reasons:
        return FractionCell(None, None, reasons)
    return FractionCell(_mean(mine, "fpr95"), _mean(mine, "auroc"))


def _mean(mine: Sequence[LowData], metric: str) -> float:
    """Over seeds, then over backbones."""
    by_backbone: dict[str, list[float]] = {}
    for one in mine:
        by_backbone.setdefault(one.backbone, []).append(getattr(one, metric))
    return statistics.fmean(map(statistics.fmean, by_backbone.values()))
