"""Mean FPR95 and AUROC against the fraction of training rows that detectors were fitted on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outfield.benchmark import BenchmarkRun
from outfield.benchmark.fractions import FractionCell, fraction_cells
from outfield.report.drawing import FAINT, MaxNLocator
from outfield.report.figures.chart import ROUND_STEPS, Chart, Mark, Panel, looks

METRICS = {"fpr95": "FPR95 ↓ (%)", "auroc": "AUROC ↑ (%)"}


def fraction_chart(run: BenchmarkRun) -> Chart:
    """One panel for each metric, a line for each detector; what could not be fitted has no dot."""
    cells, style = fraction_cells(run), looks(run)
    fractions = sorted({fraction for mine in cells.values() for fraction in mine})
    panels = [_panel(metric, words, cells, fractions, style) for metric, words in METRICS.items()] if cells else []
    marks = [Mark(name, style[name][0], "line", style[name][1]) for name in cells]
    return Chart("fractions", "Detectors on fewer training rows", panels, marks, 2, 3.2)


def _panel(
    metric: str,
    words: str,
    cells: Mapping[str, Mapping[float, FractionCell]],
    fractions: list[float],
    style: Mapping[str, tuple[str, str]],
) -> Panel:
    lines = {
        name: [
            (100 * fraction, 100 * found)
            for fraction, cell in mine.items()
            if (found := getattr(cell, metric)) is not None
        ]
        for name, mine in cells.items()
    }

    def draw(axes: Any) -> None:
        for name, points in lines.items():
            colour, dashes = style[name]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    color=colour,
                    linestyle=dashes,
                    linewidth=1.6,
                    marker="o",
                    markersize=3.2,
                )
        axes.set_xscale("log")
        axes.set_xticks([100 * fraction for fraction in fractions], [f"{100 * fraction:g}" for fraction in fractions])
        axes.set_xticks([], minor=True)
        axes.set(xlabel="training rows (%)", ylabel=words)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS))
        axes.grid(color=FAINT, linewidth=0.7)
        axes.set_axisbelow(True)

    ends = ", ".join(f"{name} {points[0][1]:.1f} to {points[-1][1]:.1f}" for name, points in lines.items() if points)
    alt = f"Mean {metric.upper()} in percent from the fewest training rows to all of them: {ends}."
    return Panel(words.partition(" (")[0], alt, draw)
