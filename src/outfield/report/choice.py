"""What ``choose`` tried, as a table, as CSV, and as a plot of stand-ins against real sets."""

from __future__ import annotations

import csv
import io
import statistics
from typing import Any

from outfield.detectors.choosing import Choice
from outfield.detectors.trials import Trial
from outfield.percent import in_percent
from outfield.report.escaping import csv_cell
from outfield.report.table import Table

SHOWN = 10


def trials_table(choice: Choice, shown: int = SHOWN) -> Table:
    """The chosen one, the best sums, then every candidate alone: FPR95 on stand-ins and, where there are any, on real sets."""
    real = bool(choice.best.real)
    best = [trial for trial in choice.trials if len(trial.members) > 1][:shown]
    rows = [[in_words(choice), *_cells(choice.chosen, real)]]
    rows += [[" + ".join(trial.members), *_cells(trial, real)] for trial in (*best, *choice.singles)]
    header = ["members", "near-like", "far-like", "90–97 %", *(["real sets"] if real else [])]
    notes = (
        "90–97 %: what is chosen by, the mean share of stand-ins that is accepted where 90, 93, 95 and 97 % of the ID rows are.",
        *(f"{name} was left out: {why}" for name, why in choice.skipped.items()),
    )
    return Table("FPR95 on stand-ins (%), the chosen one first", header, rows, notes=notes)


def in_words(choice: Choice) -> str:
    """The chosen detector's members, the heaviest first, each with its weight where these differ."""
    heaviest_first = sorted(choice.weights.items(), key=lambda item: -item[1])
    if choice.detector.weights is None:
        return " + ".join(choice.weights)
    return " + ".join(f"{weight:.2f} {name}" for name, weight in heaviest_first)


def _cells(trial: Trial, real: bool) -> list[str]:
    cells = [in_percent(value) for value in (trial.near, trial.far, trial.loss)]
    return [*cells, *([in_percent(real_mean(trial))] if real else [])]


def real_mean(trial: Trial) -> float:
    """Mean FPR95 over the real sets."""
    return statistics.mean(trial.real.values())


def trials_csv(choice: Choice) -> str:
    """The chosen one and all trials, fractions, as CSV."""
    best = choice.best
    sets = [*best.fpr95, *(f"real {name}" for name in best.real)]
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(["members", "near", "far", "mean", "loss", *map(csv_cell, sets)])
    words = [in_words(choice), *(" + ".join(trial.members) for trial in choice.trials)]
    for members, trial in zip(words, (choice.chosen, *choice.trials), strict=True):
        values = [trial.near, trial.far, trial.mean, trial.loss, *trial.fpr95.values(), *trial.real.values()]
        writer.writerow([csv_cell(members), *values])
    return buffer.getvalue()


def choice_figure(choice: Choice) -> Any:
    """Each trial as a dot: mean FPR95 on the stand-ins against that on real sets; the chosen one is marked."""
    from outfield.report.drawing import FAR, ID, INK, MUTED, SIZE, new_figure, subplots

    figure = new_figure(5.6, 4.6)
    axes = subplots(figure, left=0.12, right=0.97, bottom=0.12, top=0.9)[0, 0]
    kinds = (
        ("sums", ID, 5.0, lambda t: len(t.members) > 1),
        ("one detector", FAR, 22.0, lambda t: len(t.members) == 1),
    )
    for label, colour, size, belongs in kinds:
        mine = [trial for trial in choice.trials if belongs(trial)]
        if mine:
            x, y = [100 * trial.mean for trial in mine], [100 * real_mean(trial) for trial in mine]
            axes.scatter(x, y, s=size, color=colour, linewidths=0, alpha=0.6 if size < 10 else 0.9, label=label)
    at = 100 * choice.chosen.mean, 100 * real_mean(choice.chosen)
    axes.scatter(*at, s=90, facecolors="none", edgecolors=INK, linewidths=1.4, label="chosen", zorder=3)
    axes.set_xlabel("mean FPR95 on stand-ins (%)")
    axes.set_ylabel("mean FPR95 on real OOD sets (%)")
    axes.set_title("Real sets were looked at after the choice", fontsize=SIZE, color=MUTED, loc="left")
    axes.legend(frameon=False, fontsize=SIZE, loc="lower right", labelcolor=INK)
    return figure
