"""Published figures to stand beside a run's (the paper's on its protocols, OpenOOD's on its own), and the paper's claims.

Every figure is in percent as printed, averages too; none is computed here. Rows go by the names of our detectors, columns by ours
of the OOD sets, or by level. The paper is Lafon, Rambour & Thome 2022: (FPR95, AUROC) on CIFAR-10 and CIFAR-100.

OpenOOD's figures are those of its 1.5 leaderboard for methods that need no training of their own: AUROC on near and far OOD, to
one digit. They come from another network (a ResNet-18 that OpenOOD trained) and from OpenOOD's own selection of images of every
set, and the settings of many methods were chosen on OOD validation data. No FPR95 is taken over, because OpenOOD's is the share
of ID samples that is rejected. Its EBO is our ``EnergyLogits``, its MLS our ``MaxLogit``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from outfield.benchmark.protocol import AVERAGE, Protocol
from outfield.benchmark.result import Result
from outfield.benchmark.summary import (
    METRICS,
    Columns,
    Fits,
    Printed,
    PrintedTable,
    Summary,
    by_backbone,
    by_fit,
    paper_columns,
    summarise,
)
from outfield.images import title


def _read_tables() -> dict[str, PrintedTable]:
    """The tables of ``published.txt``: a line of title and columns, then lines of ``detector | 57.0 / 88.0 | …``, or of AUROC."""

    def printed(cell: str) -> Printed:
        *fpr95, auroc = map(float, cell.split("/"))
        return Printed(fpr95[0] if fpr95 else None, auroc)

    tables: dict[str, PrintedTable] = {}
    for block in files(__package__).joinpath("published.txt").read_text(encoding="utf-8").split("\n\n"):
        title, _, lines = block.partition(": ")
        names, *rows = ([cell.strip() for cell in line.split("|")] for line in lines.splitlines())
        tables[title] = {name: dict(zip(names, map(printed, cells), strict=True)) for name, *cells in rows}
    return tables


_TABLES = _read_tables()
BY_LEVEL = {name: _TABLES[f"levels {name}"] for name in ("cifar10", "cifar100")}
BY_SET = {name: _TABLES[f"sets {name}"] for name in BY_LEVEL}
"""The detailed tables of the appendix, by ID set; the average is the mean of the six sets."""
OPENOOD = {name: _TABLES[f"levels {name}"] for name in ("openood-cifar10", "openood-cifar100")}

REMARKS = {
    "cifar10": {
        "KNN": "The paper's Table 1 prints 42.3 as KNN's FPR95 on near OOD; its detailed table gives 47.9 and 42.6, "
        "whose mean is 45.3.",
        "EnergyCorrected": "The paper's text says that the correction raises the AUROC on mid OOD from SSD's 91.8 to 92.8; "
        "its tables print 92.5.",
    },
    "cifar100": {
        "KNN": "The paper prints 82.0 as KNN's average AUROC; the mean of the six sets in its detailed table is 81.7."
    },
}
"""Where the paper contradicts itself by more than rounding: by ID set, then by detector."""

OPENOOD_NOTE = (
    "OpenOOD's figures are of another network, a ResNet-18, and of its own selection of images of each set; the settings of "
    "many of its methods were chosen on OOD validation data. It prints AUROC; its FPR95 is another quantity."
)


@dataclass(frozen=True)
class Published:
    """Who published figures for a protocol, as a table and as a sentence names them, and which, by detector and column.

    The notes are to be said wherever the figures are shown.
    """

    label: str
    words: str
    reference: str
    rows: PrintedTable
    notes: tuple[str, ...]


def published_beside(protocol: Protocol, detectors: Iterable[str] = ()) -> Published:
    """Figures to show beside a run of this protocol, if any are published, with remarks on the detectors that are shown."""
    if protocol.key in OPENOOD:
        reference = "OpenOOD 1.5's leaderboard, ResNet-18"
        return Published("OpenOOD", "OpenOOD", reference, OPENOOD[protocol.key], (OPENOOD_NOTE,))
    by_set, by_level = BY_SET.get(protocol.key, {}), BY_LEVEL.get(protocol.key, {})
    rows = {name: {**by_set.get(name, {}), **by_level.get(name, {})} for name in {**by_set, **by_level}}
    shown = {*detectors}
    notes = tuple(text for name, text in REMARKS.get(protocol.key, {}).items() if name in shown)
    return Published("paper", "the paper", "Lafon, Rambour & Thome 2022", rows, notes)


HOLDS, PARTLY, FAILS, UNTESTED = "holds", "partly", "does not hold", "not tested"
MARGIN = {"fpr95": 0.01, "auroc": 0.005}
"""Differences up to which two means count as on par: 1 point of FPR95, half a point of AUROC."""
ABOVE = 1e-9  # the least gain: gains are rounded to nine digits
OURS = "EnergyCorrected"
COMPARED = ("MSP", "ODIN", "EnergyLogits", "KNN", "SSD", "EBM", OURS)
"""The rows of the paper's detailed tables, among which "best" is meant."""


@dataclass(frozen=True)
class Check:
    """One comparison: what was compared, both numbers (fractions), how many of how many comparisons came out as claimed."""

    what: str
    found: float
    against: float
    passed: int
    of: int = 1


@dataclass(frozen=True)
class Claim:
    """Something the paper says, the comparisons it was tested by, and what the run lacks to test it."""

    name: str
    statement: str
    checks: tuple[Check, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """ "holds" if every comparison came out as claimed, "does not hold" if no check did throughout, else "partly"."""
        if self.lacks:
            return UNTESTED
        good = [check.passed == check.of for check in self.checks]
        return HOLDS if all(good) else PARTLY if any(good) else FAILS


@dataclass(frozen=True)
class _Test:
    """Least and most gain over another detector, or the paper's best, on average or on each backbone and seed."""

    column: str
    metric: str
    detector: str
    other: str | None
    words: str
    least: float = -1
    most: float = 1
    each: bool = False


def _on_par(detector: str, other: str | None, column: str) -> list[_Test]:
    return [_Test(column, m, detector, other, "on par with {other}'s", least=-MARGIN[m]) for m in METRICS]


def _best(detector: str, column: str) -> list[_Test]:
    lowest = _Test(column, "fpr95", detector, None, "the lowest (next: {other})", least=0)
    return [lowest, _on_par(detector, None, column)[1]]


def _better(other: str, column: str) -> list[_Test]:
    words = "better than {other}'s on every backbone and seed"
    return [_Test(column, metric, OURS, other, words, ABOVE, each=True) for metric in METRICS]


_ALONE = [*_on_par("EBM", "KNN", AVERAGE), *_best("EBM", "near"), *_best("EBM", "mid")]
_ON_PAR = "on par with {other}'s on every backbone and seed"
_KEEPS = _Test("far", "auroc", OURS, "SSD", _ON_PAR, -MARGIN["auroc"], each=True)
_FAILS = _Test("far", "fpr95", "EBM", "SSD", "at least 10 points above {other}'s", most=-0.1)  # 34.7 in the paper
_WORSE = [_Test("near", metric, OURS, "KNN", "worse than {other}'s", most=-ABOVE) for metric in METRICS]
_COMPARABLE = [_Test("mid", m, OURS, "KNN", "at most 1 point worse than {other}'s", least=-0.01) for m in METRICS]
_LEVELS = [*_better("SSD", "near"), *_better("SSD", "mid"), _KEEPS]
_B = ("b", "The correction improves on SSD on near and mid OOD and keeps its level on far OOD", _LEVELS)
_E = ("e", "The correction improves on the EBM", _better("EBM", AVERAGE))
CLAIMS = {
    "cifar10": [
        ("a", "The EBM alone is competitive with KNN, and best on near and mid OOD", _ALONE),
        _B,
        ("c", "On average the correction is on par with KNN", _on_par(OURS, "KNN", AVERAGE)),
        _E,
    ],
    "cifar100": [
        _B,
        ("c", "On average the correction is best", _best(OURS, AVERAGE)),
        ("d", "The EBM alone fails on far OOD, the correction does not", [_FAILS, *_on_par(OURS, "SSD", "far")]),
        _E,
        ("f", "The correction is worse than KNN on near OOD, and comparable with it on mid OOD", _WORSE + _COMPARABLE),
    ],
}
"""What the paper says of each ID set, and the comparisons that test it. (Its CIFAR-10 figures bear out (e) in AUROC alone.)"""


def check_claims(records: Sequence[Result], protocol: Protocol) -> list[Claim]:
    """The paper's claims about the protocol's ID set, judged; none for another than CIFAR-10 and CIFAR-100.

    Means are over a level's sets in the paper, then over seeds, then over backbones. "On par" allows 1 point of FPR95 and half a
    point of AUROC to the worse. "Best" is the lowest FPR95 of the paper's rows, with an AUROC on par with the highest. What is
    compared on every backbone and seed is compared with the other detector's mean over seeds there.

    A claim holds if all of its checks pass, does not hold if none does, and holds partly otherwise. It is not tested where the
    run lacks a detector or a set that it is about, or a backbone on which all of its detectors were run.
    """
    if protocol.key not in CLAIMS:
        return []
    columns, fits = paper_columns(protocol), by_fit(records)
    means = summarise(records, columns)
    return [_judged(*claim, columns, fits, means) for claim in CLAIMS[protocol.key]]


def _judged(
    name: str, statement: str, tests: Sequence[_Test], columns: Columns, fits: Mapping[str, Fits], means: Summary
) -> Claim:
    named = [other for test in tests for other in (test.detector, test.other)]
    detectors = COMPARED if None in named else tuple(dict.fromkeys(filter(None, named)))
    lacks = [detector for detector in detectors if detector not in fits]
    sets = dict.fromkeys(ood for test in tests for ood in columns[test.column])
    there = [fit for detector in detectors for fit in fits.get(detector, {}).values()]
    lacks += [title(ood) for ood in sets if any(ood not in fit for fit in there)]
    if not lacks and not set.intersection(*({backbone for backbone, _ in fits[each]} for each in detectors)):
        lacks = [f"a backbone that {' and '.join(detectors)} share"]
    checks = () if lacks else tuple(_checked(test, columns[test.column], fits, means) for test in tests)
    return Claim(name, statement, checks, tuple(lacks))


def _checked(test: _Test, sets: Sequence[str], fits: Mapping[str, Fits], means: Summary) -> Check:
    def mean(detector: str) -> float:
        return float(getattr(means[detector][test.column], test.metric).mean)

    best = min if test.metric == "fpr95" else max
    other = test.other or best((name for name in COMPARED if name != test.detector), key=mean)
    pairs = [(mean(test.detector), mean(other))]
    if test.each:
        mine, theirs = (by_backbone(fits[name], sets, test.metric) for name in (test.detector, other))
        pairs = [(one, statistics.fmean(theirs[name])) for name in mine if name in theirs for one in mine[name]]
    # Rounded where floating point would decide a comparison with a margin.
    sign = -1 if test.metric == "fpr95" else 1
    passed = sum(test.least <= round(sign * (found - against), 9) <= test.most for found, against in pairs)
    found, against = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    what = f"{test.column}: {test.metric.upper()} of {test.detector} {test.words.format(other=other)}"
    return Check(what, found, against, passed, len(pairs))
