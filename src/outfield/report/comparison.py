"""The best detector of a run against each of the others, with paired bootstrap intervals, as a table."""

from __future__ import annotations

from outfield.benchmark.comparison import Comparison, Difference, compare
from outfield.benchmark.paper import AVERAGE
from outfield.benchmark.protocol import LEVELS
from outfield.benchmark.records import BenchmarkRun
from outfield.benchmark.summary import present, summarise
from outfield.images.catalogue import title
from outfield.report.table import Table

RESAMPLES = 400
"""Enough for the one digit that is shown."""
METRICS = {"fpr95": "FPR95 ↓", "auroc": "AUROC ↑"}


def comparison_table(run: BenchmarkRun, resamples: int = RESAMPLES) -> Table | None:
    """Differences of the row with the lowest mean FPR95 from every other, by level and on average, in points.

    Args:
        run: The results; without scores there is nothing to resample.
        resamples: How many resamples stand behind an interval.

    Returns:
        None where fewer than two detectors have scores of the same rows.
    """
    best = best_row(run)
    others = [] if best is None else _others(run, best)
    if best is None or not others:
        return None
    found = compare(run, best, others, resamples=resamples)
    columns = [column for column in (*LEVELS, AVERAGE) if any(column in one.fpr95 for one in found)]
    rows: list[list[str]] = []
    clear: set[tuple[int, int, int]] = set()
    for one in found:
        for metric, words in METRICS.items():
            differences = [getattr(one, metric).get(column) for column in columns]
            clear |= {(len(rows), place, 0) for place, each in enumerate(differences, 2) if _is_clear(each)}
            rows.append([one.second if metric == "fpr95" else "", words, *map(_cell, differences)])
    header = ["detector", "", *(column if column == AVERAGE else f"{column} OOD" for column in columns)]
    name = f"{title(run.protocol.id)}, {best} against the others: {best} less the other, in points of percent"
    return Table(name, header, rows, 2, frozenset(clear), _notes(best, found, resamples))


def best_row(run: BenchmarkRun) -> str | None:
    """The detector with scores whose mean FPR95 over all sets is lowest; the first of those, None where there is none."""
    cells = summarise(run.records, {AVERAGE: present(run.records, run.protocol)})
    scored = {key.detector for key in run.scores}
    means = {name: mine[AVERAGE].fpr95.mean for name, mine in cells.items() if AVERAGE in mine and name in scored}
    return min(means, key=lambda name: means[name]) if means else None


def _others(run: BenchmarkRun, best: str) -> list[str]:
    """Detectors that were scored on the same rows of the ID set and of some OOD set, on some backbone."""
    sizes = {key: {name: len(values) for name, values in scores.items()} for key, scores in run.scores.items()}
    mine = {key.backbone: found for key, found in sizes.items() if key.detector == best}
    names = [key.detector for key, found in sizes.items() if key.detector != best and found == mine.get(key.backbone)]
    odd = {key.detector for key, found in sizes.items() if found != mine.get(key.backbone, found)}
    return [name for name in dict.fromkeys(names) if name not in odd]


def _is_clear(difference: Difference | None) -> bool:
    """Whether zero lies outside of the interval."""
    return difference is not None and not difference.widest[0] <= 0 <= difference.widest[1]


def _cell(difference: Difference | None) -> str:
    if difference is None:
        return ""
    low, high = difference.widest
    return f"{_points(difference.value)} [{_points(low)}, {_points(high)}]"


def _points(share: float) -> str:
    """A difference in points with its sign; what rounds to zero has none.

    >>> _points(-0.0312), _points(0.002), _points(-0.0001)
    ('−3.1', '+0.2', '0.0')
    """
    text = f"{100 * share:+.1f}"
    return "0.0" if text[1:] == "0.0" else text.replace("-", "−")


def _notes(best: str, found: list[Comparison], resamples: int) -> tuple[str, ...]:
    several = max(len(one.backbones) for one in found)
    over = f"samples and over the {several} backbones (few make it too narrow)" if several > 1 else "samples"
    return (
        f"In brackets the 95 % interval of a paired bootstrap ({resamples} resamples, the same rows for both detectors) over "
        f"{over}; in bold where zero lies outside of it.",
        f"{best} has the lowest mean FPR95 on these very sets: that choice is not in the intervals.",
    )
