"""What ``choose`` tried, as a table, as CSV, and as a plot of stand-ins against real sets."""

from __future__ import annotations

import csv
import io
import statistics
from typing import Any

from outfield.detectors.choosing import Choice, Trial
from outfield.percent import in_percent
from outfield.report.escaping import csv_cell
from outfield.report.table import Table

SHOWN = 10


def trials_table(choice: Choice, shown: int = SHOWN) -> Table:
    """The best sums, then every candidate alone, with FPR95 on stand-ins and, where there are any, on real sets."""
    real = bool(choice.best.real)
    best = [trial for trial in choice.trials if len(trial.members) > 1][:shown]
    rows = [_row(trial, real) for trial in (*best, *choice.singles)]
    header = ["members", "near-like", "far-like", "mean", *(["real sets"] if real else [])]
    notes = tuple(f"{name} was left out: {why}" for name, why in choice.skipped.items())
    return Table("FPR95 on stand-ins (%), the chosen one first", header, rows, notes=notes)


def _row(trial: Trial, real: bool) -> list[str]:
    cells = [in_percent(value) for value in (trial.near, trial.far, trial.mean)]
    return [" + ".join(trial.members), *cells, *([in_percent(real_mean(trial))] if real else [])]


def real_mean(trial: Trial) -> float:
    """Mean FPR95 over the real sets."""
    return statistics.mean(trial.real.values())


def trials_csv(choice: Choice) -> str:
    """All trials, fractions, as CSV."""
    best = choice.best
    sets = [*best.fpr95, *(f"real {name}" for name in best.real)]
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(["members", "near", "far", "mean", *map(csv_cell, sets)])
    for trial in choice.trials:
        values = [trial.near, trial.far, trial.mean, *trial.fpr95.values(), *trial.real.values()]
        writer.writerow([csv_cell(" + ".join(trial.members)), *values])
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
    best = choice.best
    at = 100 * best.mean, 100 * real_mean(best)
    axes.scatter(*at, s=90, facecolors="none", edgecolors=INK, linewidths=1.4, label="chosen", zorder=3)
    axes.set_xlabel("mean FPR95 on stand-ins (%)")
    axes.set_ylabel("mean FPR95 on real OOD sets (%)")
    axes.set_title("Real sets were looked at after the choice", fontsize=SIZE, color=MUTED, loc="left")
    axes.legend(frameon=False, fontsize=SIZE, loc="lower right", labelcolor=INK)
    return figure
