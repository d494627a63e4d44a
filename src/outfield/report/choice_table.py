"""What ``choose`` found, as a table, as CSV, and as a plot of stand-ins against real sets."""

from __future__ import annotations

import statistics
from typing import Any

from outfield.detectors import Choice, Trial
from outfield.percent import in_percent
from outfield.report.table import Table, csv_text


def trials_table(choice: Choice) -> Table:
    """The chosen sum, those with other numbers of members, then every candidate alone: FPR95 on stand-ins and on real sets."""
    real, unseen = bool(choice.chosen.real), choice.chosen.left_out is not None
    header = ["members", "near-like", "far-like", "90–97 %", *["left out"] * unseen, *["real sets"] * real]

    def cells(trial: Trial) -> list[str]:
        found = [trial.near, trial.far, trial.loss, *[trial.left_out] * unseen, *([real_mean(trial)] if real else [])]
        return [in_words(trial), *("–" if value is None else in_percent(value) for value in found)]

    others = [trial for trial in choice.trials if trial is not choice.chosen and len(trial.members) > 1]
    notes = ["90–97 %: the mean share of stand-ins that is accepted where 90, 93, 95 and 97 % of the ID rows are."]
    if unseen:
        notes.append("Left out: the same of kinds of stand-ins that took no part in the fit; it is chosen by this.")
    notes += [f"{name} was left out: {why}" for name, why in choice.skipped.items()]
    rows = [cells(trial) for trial in (choice.chosen, *others, *choice.singles)]
    return Table("FPR95 on stand-ins (%), the chosen one first", header, rows, notes=tuple(notes))


def in_words(trial: Trial) -> str:
    """The members, the heaviest first, each with its weight where there are several."""
    if len(trial.weights) == 1:
        return trial.members[0]
    heaviest_first = sorted(trial.weights.items(), key=lambda item: -item[1])
    return " + ".join(f"{weight:.2f} {name}" for name, weight in heaviest_first)


def real_mean(trial: Trial) -> float:
    """Mean FPR95 over the real sets."""
    return statistics.mean(trial.real.values())


def trials_csv(choice: Choice) -> str:
    """The chosen one, the sums of each number of members and every candidate alone, fractions, as CSV."""
    sets = [*choice.chosen.fpr95, *(f"real {name}" for name in choice.chosen.real)]
    rows = [
        [in_words(one), one.near, one.far, one.mean, one.loss, one.left_out, *one.fpr95.values(), *one.real.values()]
        for one in (choice.chosen, *choice.trials, *choice.singles)
    ]
    return csv_text(["members", "near", "far", "mean", "loss", "left out", *sets], rows)


def choice_figure(choice: Choice) -> Any:
    """Mean FPR95 on the stand-ins against that on real sets: each candidate as a dot, sums by their number of members."""
    from outfield.report.canvas import FAR, ID, INK, MUTED, SIZE
    from outfield.report.figures.chart import Chart, Mark, Panel, assemble

    def points(trials: Any) -> tuple[list[float], list[float]]:
        return [100 * trial.mean for trial in trials], [100 * real_mean(trial) for trial in trials]

    def draw(axes: Any) -> None:
        sums = [trial for trial in choice.trials if len(trial.members) > 1]
        axes.plot(*points(choice.singles), "o", color=FAR, markersize=5, markeredgewidth=0, alpha=0.9)
        axes.plot(*points(sums), "o-", color=ID, markersize=4, linewidth=1)
        for trial, x, y in zip(sums, *points(sums), strict=True):
            small = {"textcoords": "offset points", "fontsize": SIZE - 2, "color": MUTED}
            axes.annotate(str(len(trial.members)), (x, y), (4, 4), **small)
        axes.plot(*points([choice.chosen]), "o", markersize=9, markerfacecolor="none", markeredgecolor=INK, zorder=3)
        axes.set(xlabel="mean FPR95 on stand-ins (%)", ylabel="mean FPR95 on real OOD sets (%)")

    marks = (Mark("one detector", FAR, "dot", "o"), Mark("sums, by number of members", ID), Mark("chosen", INK, "ring"))
    panel = Panel("", "", draw, "real sets were looked at after the choice")
    return assemble(Chart("Stand-ins against real sets", [panel], marks, 1, 4.0, width=5.6))
