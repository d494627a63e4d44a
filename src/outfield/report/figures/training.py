"""Loss and energies while detectors train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from outfield.benchmark import BenchmarkRun
from outfield.energy.loop import History
from outfield.report.drawing import FAINT, ID, INK, MUTED, RULE, MaxNLocator
from outfield.report.figures.chart import ROUND_STEPS, Chart, Mark, Panel, looks


def training_chart(run: BenchmarkRun) -> Chart:
    """Loss and energies of each trained detector by epoch: a thin line per fit, a thick one for their mean."""
    style = looks(run)
    panels = []
    for name in dict.fromkeys(key.detector for key in run.histories):
        mine = [history for key, history in run.histories.items() if key.detector == name and len(history)]
        if mine:
            panels += [_loss_panel(name, mine, style[name][0]), _energy_panel(name, mine)]
            panels.append(_gap_panel(name, mine, style[name][0]))
    fits = [[h for key, h in run.histories.items() if key.detector == name and len(h)] for name in style]
    marks = [Mark("energy of real features", ID), Mark("energy of chain ends", INK, "line", "--")]
    if any(len(mine) > 1 for mine in fits):
        marks.append(Mark("one fit", MUTED, "thin"))
    if any(len(mine) > 1 and len({len(h) for h in mine}) == 1 for mine in fits):
        marks.append(Mark("mean", MUTED))
    return Chart("training", "Training of the energies", panels, marks, 3, 2.2)


def _fits(count: int) -> str:
    return f"{count} fit{'s' if count > 1 else ''}"


def _loss_panel(name: str, histories: Sequence[History], colour: str) -> Panel:
    last = np.mean([history.loss[-1] for history in histories])

    def draw(axes: Any) -> None:
        _epochs(axes, [history.loss for history in histories], colour, "-")
        axes.set_ylabel("loss")

    alt = f"Loss of {name} by epoch, {_fits(len(histories))}; {last:.3g} on average after the last."
    return Panel(f"{name}: loss", alt, draw)


def _energy_panel(name: str, histories: Sequence[History]) -> Panel:
    real, negative = (
        np.mean([values[-1] for values in found])
        for found in ([h.real_energy for h in histories], [h.negative_energy for h in histories])
    )

    def draw(axes: Any) -> None:
        _epochs(axes, [history.negative_energy for history in histories], INK, "--")
        _epochs(axes, [history.real_energy for history in histories], ID, "-")
        axes.set_ylabel("mean energy")

    alt = (
        f"Mean residual energy of {name} by epoch, {_fits(len(histories))}; after the last {real:.3g} on real features and "
        f"{negative:.3g} on chain ends."
    )
    return Panel(f"{name}: energies", alt, draw)


def _gap_panel(name: str, histories: Sequence[History], colour: str) -> Panel:
    gaps = [np.subtract(history.negative_energy, history.real_energy).tolist() for history in histories]
    last = np.mean([gap[-1] for gap in gaps])

    def draw(axes: Any) -> None:
        axes.axhline(0, color=RULE, linewidth=0.9)
        _epochs(axes, gaps, colour, "-")
        axes.set_ylabel("chain ends − real")

    alt = f"How far {name} holds chain ends above real features by epoch: {last:.3g} on average after the last."
    return Panel(f"{name}: difference", alt, draw)


def _epochs(axes: Any, series: Sequence[Sequence[float]], colour: str, dashes: str) -> None:
    marker = {"marker": "o", "markersize": 3.5} if max(map(len, series)) == 1 else {}
    for values in series if len(series) > 1 else []:
        axes.plot(range(1, len(values) + 1), values, color=colour, alpha=0.4, linewidth=0.8, linestyle=dashes, **marker)
    if len({len(values) for values in series}) == 1:
        mean = np.mean(series, axis=0)
        axes.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=1.8, linestyle=dashes, **marker)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS))
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
