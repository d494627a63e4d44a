"""Loss and energies while detectors train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from outfield.benchmark import BenchmarkRun
from outfield.energy import History
from outfield.report.canvas import ID, INK, MUTED, RULE, MaxNLocator, faint_grid
from outfield.report.figures.chart import ROUND_STEPS, Chart, Mark, Panel, looks


def training_chart(run: BenchmarkRun) -> Chart:
    """Loss and energies of each trained detector by epoch: a thin line per fit, a thick one for their mean."""
    style, panels, fits = looks(run), [], []
    for name in dict.fromkeys(key.detector for key in run.histories):
        mine = [history for key, history in run.histories.items() if key.detector == name and len(history)]
        if mine:
            fits.append(mine)
            panels += _panels(name, mine, style[name][0])
    marks = [Mark("energy of real features", ID), Mark("energy of chain ends", INK, "line", "--")]
    if any(len(mine) > 1 for mine in fits):
        marks.append(Mark("one fit", MUTED, "thin"))
    if any(len(mine) > 1 and len({len(h) for h in mine}) == 1 for mine in fits):
        marks.append(Mark("mean", MUTED))
    return Chart("training", "Training of the energies", panels, marks, 3, 2.2)


def _panels(name: str, histories: Sequence[History], colour: str) -> list[Panel]:
    """Loss, energies, and how far chain ends lie above real features."""
    losses, reals = [h.loss for h in histories], [h.real_energy for h in histories]
    negatives = [h.negative_energy for h in histories]
    gaps = [np.subtract(h.negative_energy, h.real_energy).tolist() for h in histories]
    fits = f"{len(histories)} fit{'s' if len(histories) > 1 else ''}"
    loss, real, negative, gap = (np.mean([one[-1] for one in those]) for those in (losses, reals, negatives, gaps))

    def panel(what: str, alt: str, label: str, *lines: tuple[Sequence[Sequence[float]], str, str]) -> Panel:
        def draw(axes: Any) -> None:
            if what == "difference":
                axes.axhline(0, color=RULE, linewidth=0.9)
            for series, ink, dashes in lines:
                _epochs(axes, series, ink, dashes)
            axes.set_ylabel(label)

        return Panel(f"{name}: {what}", alt, draw)

    return [
        panel(
            "loss",
            f"Loss of {name} by epoch, {fits}; {loss:.3g} on average after the last.",
            "loss",
            (losses, colour, "-"),
        ),
        panel(
            "energies",
            f"Mean residual energy of {name} by epoch, {fits}; after the last {real:.3g} on real features and "
            f"{negative:.3g} on chain ends.",
            "mean energy",
            (negatives, INK, "--"),
            (reals, ID, "-"),
        ),
        panel(
            "difference",
            f"How far {name} holds chain ends above real features by epoch: {gap:.3g} on average after the last.",
            "chain ends − real",
            (gaps, colour, "-"),
        ),
    ]


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
    faint_grid(axes, "y")
