"""Whether a run bears out what the paper says of CIFAR-10 and CIFAR-100. Nothing is formatted here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from outfield.benchmark.paper import AVERAGE
from outfield.benchmark.protocol import Protocol
from outfield.benchmark.result import Result
from outfield.benchmark.summary import METRICS, Summary, by_fit, paper_columns, summarise, value
from outfield.images import title

HOLDS, PARTLY, FAILS, UNTESTED = "holds", "partly", "does not hold", "not tested"
MARGIN = {"fpr95": 0.01, "auroc": 0.005}
"""Differences up to which two means count as on par: 1 point of FPR95, half a point of AUROC."""
FAILURE = 0.10
"""FPR95 by which a detector that fails lies above SSD: 10 points (34.7 in the paper)."""
COMPARABLE = 0.01
"""By how much a comparable result may be worse, in FPR95 and in AUROC: 1 point."""
LABELS = {"fpr95": "FPR95", "auroc": "AUROC"}
ABOVE = 1e-9  # the least gain: gains are rounded to nine digits
COMPARED = ("MSP", "ODIN", "EnergyLogits", "KNN", "SSD", "EBM", "EnergyCorrected")
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


def check_claims(records: Sequence[Result], protocol: Protocol) -> list[Claim]:
    """The paper's claims about the protocol's ID set; none for another than CIFAR-10 and CIFAR-100.

    Means are over a level's sets in the paper, others are left out, then over seeds, then over backbones. "On par" allows 1
    point of FPR95 and half a point of AUROC to the worse. "Best" is the lowest FPR95 of the paper's rows, with an AUROC on par
    with the highest.

    (a) CIFAR-10: the EBM alone is competitive with KNN and best on near and mid OOD. Its average FPR95 and AUROC are on par with
        KNN's; on near and on mid OOD it is best.
    (b) Both: the correction improves on SSD on near and mid OOD and keeps its level on far OOD. On every backbone and from every
        seed FPR95 is lower and AUROC higher than SSD's on near and on mid OOD, and AUROC on far OOD is on par with SSD's.
    (c) On average the correction is on par with KNN (CIFAR-10), or best (CIFAR-100).
    (d) CIFAR-100: the EBM alone fails on far OOD, the correction does not. The EBM's FPR95 lies at least 10 points above SSD's
        there; the correction's FPR95 and AUROC are on par with SSD's.
    (e) Both: the correction improves on the EBM. Its average FPR95 is lower and its AUROC higher on every backbone and from
        every seed, each compared with the EBM's mean over seeds there. (The paper's CIFAR-10 figures bear it out in AUROC alone.)
    (f) CIFAR-100: the correction is worse than KNN on near OOD, in FPR95 and in AUROC, and comparable with it on mid OOD: at
        most 1 point worse in either (0.9 in AUROC in the paper).

    A claim holds if all of its checks pass, does not hold if none does, and holds partly otherwise; it is not tested where the
    run lacks a detector or a set that it is about, or a backbone on which all of its detectors were run. A check over backbones
    and seeds passes if it does on each.
    """
    tests = {"cifar10": (_a, _b, _c_on_par, _e), "cifar100": (_b, _c_best, _d, _e, _f)}.get(protocol.key, ())
    return [test(_Evidence(records, protocol)) for test in tests]


class _Evidence:
    """Means and single fits to compare."""

    def __init__(self, records: Sequence[Result], protocol: Protocol) -> None:
        self.columns = paper_columns(protocol)
        self.means: Summary = summarise(records, self.columns)
        self.fits = by_fit(records)

    def lacks(self, detectors: Sequence[str], columns: Iterable[str]) -> tuple[str, ...]:
        absent = tuple(name for name in detectors if name not in self.fits)
        fits = [fit for name in detectors for fit in self.fits.get(name, {}).values()]
        sets = dict.fromkeys(ood for column in columns for ood in self.columns[column])
        absent += tuple(title(ood) for ood in sets if any(ood not in fit for fit in fits))
        used = [{backbone for backbone, _ in self.fits.get(name, {})} for name in detectors]
        return absent if absent or set.intersection(*used) else (f"a backbone that {' and '.join(detectors)} share",)

    def claim(
        self,
        name: str,
        statement: str,
        detectors: Sequence[str],
        columns: Sequence[str],
        checks: Callable[[], list[Check]],
    ) -> Claim:
        """A claim about these detectors and columns, tested where the run has them."""
        lacks = self.lacks(detectors, columns)
        return Claim(name, statement, () if lacks else tuple(checks()), lacks)

    def mean(self, detector: str, column: str, metric: str) -> float:
        return float(getattr(self.means[detector][column], metric).mean)

    def on_par(self, detector: str, other: str, column: str, metrics: Sequence[str] = METRICS) -> list[Check]:
        """Not worse than another's mean by more than the margin."""
        words = f"on par with {other}'s"
        return [self.means_of(detector, other, column, m, words, least=-MARGIN[m]) for m in metrics]

    def means_of(
        self, detector: str, other: str, column: str, metric: str, words: str, least: float = -1, most: float = 1
    ) -> Check:
        """The gain of one mean over another, from ``least`` to ``most``."""
        found, against = self.mean(detector, column, metric), self.mean(other, column, metric)
        passed = int(least <= _gain(metric, found, against) <= most)
        return Check(f"{column}: {LABELS[metric]} of {detector} {words}", found, against, passed)

    def best(self, detector: str, column: str) -> list[Check]:
        """Lowest FPR95 of all, and AUROC on par with the highest."""
        others = [name for name in COMPARED if name != detector]
        lowest = min(others, key=lambda name: self.mean(name, column, "fpr95"))
        found, against = self.mean(detector, column, "fpr95"), self.mean(lowest, column, "fpr95")
        fpr95 = Check(
            f"{column}: FPR95 of {detector} the lowest (next: {lowest})", found, against, int(found <= against)
        )
        highest = max(others, key=lambda name: self.mean(name, column, "auroc"))
        return [fpr95, *self.on_par(detector, highest, column, ["auroc"])]

    def everywhere(
        self, detector: str, other: str, column: str, metric: str, words: str, least: float = ABOVE
    ) -> Check:
        """A gain over another detector of at least so much on every backbone and from every seed."""
        sets = self.columns[column]
        found_there: dict[str, list[float]] = {}
        for (backbone, _), fit in self.fits[other].items():
            found_there.setdefault(backbone, []).append(value(fit, sets, metric))
        others = {backbone: statistics.fmean(values) for backbone, values in found_there.items()}
        pairs = [
            (value(fit, sets, metric), others[backbone])
            for (backbone, _), fit in self.fits[detector].items()
            if backbone in others
        ]
        passed = sum(_gain(metric, *pair) >= least for pair in pairs)
        found, against = (statistics.fmean(side) for side in zip(*pairs, strict=True))
        what = f"{column}: {LABELS[metric]} of {detector} {words} {other}'s on every backbone and seed"
        return Check(what, found, against, passed, len(pairs))


def _gain(metric: str, found: float, against: float) -> float:
    """By how much ``found`` is better; rounded where floating point would decide a comparison with a margin."""
    return round(against - found if metric == "fpr95" else found - against, 9)


def _a(evidence: _Evidence) -> Claim:
    statement = "The EBM alone is competitive with KNN, and best on near and mid OOD"

    def checks() -> list[Check]:
        near, mid = evidence.best("EBM", "near"), evidence.best("EBM", "mid")
        return [*evidence.on_par("EBM", "KNN", AVERAGE), *near, *mid]

    return evidence.claim("a", statement, COMPARED, ["near", "mid", AVERAGE], checks)


def _b(evidence: _Evidence) -> Claim:
    statement = "The correction improves on SSD on near and mid OOD and keeps its level on far OOD"
    pair = ("EnergyCorrected", "SSD")

    def checks() -> list[Check]:
        both = [(level, metric) for level in ("near", "mid") for metric in METRICS]
        better = [evidence.everywhere(*pair, *one, "better than") for one in both]
        return [*better, evidence.everywhere(*pair, "far", "auroc", "on par with", -MARGIN["auroc"])]

    return evidence.claim("b", statement, pair, ["near", "mid", "far"], checks)


def _c_on_par(evidence: _Evidence) -> Claim:
    statement, pair = "On average the correction is on par with KNN", ("EnergyCorrected", "KNN")
    return evidence.claim("c", statement, pair, [AVERAGE], lambda: evidence.on_par(*pair, AVERAGE))


def _c_best(evidence: _Evidence) -> Claim:
    statement = "On average the correction is best"
    return evidence.claim("c", statement, COMPARED, [AVERAGE], lambda: evidence.best("EnergyCorrected", AVERAGE))


def _d(evidence: _Evidence) -> Claim:
    statement = "The EBM alone fails on far OOD, the correction does not"

    def checks() -> list[Check]:
        words = f"at least {100 * FAILURE:.0f} points above SSD's"
        fails = evidence.means_of("EBM", "SSD", "far", "fpr95", words, most=-FAILURE)
        return [fails, *evidence.on_par("EnergyCorrected", "SSD", "far")]

    return evidence.claim("d", statement, ["EBM", "SSD", "EnergyCorrected"], ["far"], checks)


def _e(evidence: _Evidence) -> Claim:
    statement, pair = "The correction improves on the EBM", ("EnergyCorrected", "EBM")

    def checks() -> list[Check]:
        return [evidence.everywhere(*pair, AVERAGE, metric, "better than") for metric in METRICS]

    return evidence.claim("e", statement, pair, [AVERAGE], checks)


def _f(evidence: _Evidence) -> Claim:
    statement = "The correction is worse than KNN on near OOD, and comparable with it on mid OOD"
    pair, words = ("EnergyCorrected", "KNN"), f"at most {100 * COMPARABLE:.0f} point worse than KNN's"

    def checks() -> list[Check]:
        near = [evidence.means_of(*pair, "near", metric, "worse than KNN's", most=-ABOVE) for metric in METRICS]
        return [*near, *(evidence.means_of(*pair, "mid", metric, words, least=-COMPARABLE) for metric in METRICS)]

    return evidence.claim("f", statement, pair, ["near", "mid"], checks)
