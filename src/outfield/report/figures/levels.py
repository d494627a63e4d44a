"""How much OOD data each detector lets in, on average and level by level, in one panel."""

from __future__ import annotations

from typing import Any

from outfield.benchmark import BenchmarkRun
from outfield.benchmark.summary import summarise
from outfield.report.drawing import FAINT, ID, INK, RULE, SIZE, MaxNLocator
from outfield.report.figures.chart import LEVEL_COLOURS, ROUND_STEPS, Panel, short

AVERAGE = "average"
LEFT, RIGHT = -0.75, 1.25
"""Where the axes begin and end, in lengths of the longest bar: room for names and for numbers."""


def level_panel(run: BenchmarkRun, marked: str) -> Panel | None:
    """FPR95 of every detector: a bar for the mean over all OOD sets, the lowest on top, and a dot for each level's.

    Args:
        run: the benchmark.
        marked: the detector whose bar and name stand out.

    Returns:
        None where no detector was evaluated on every set.
    """
    found = {record.ood for record in run.records}
    levels = {level: tuple(name for name in names if name in found) for level, names in run.protocol.levels.items()}
    levels = {level: names for level, names in levels.items() if names}
    columns = {AVERAGE: tuple(name for names in levels.values() for name in names), **levels}
    cells = {name: row for name, row in summarise(run.records, columns).items() if len(row) == len(columns)}
    shares = {name: {column: 100 * cell.fpr95.mean for column, cell in row.items()} for name, row in cells.items()}
    if not shares:
        return None
    order = sorted(shares, key=lambda name: shares[name][AVERAGE])
    limit = 1.06 * max(max(row.values()) for row in shares.values()) + 1

    def draw(axes: Any) -> None:
        for row, name in enumerate(order):
            mean, colour, weight = shares[name][AVERAGE], RULE, "normal"
            if name == marked:
                colour, weight = ID, "bold"
            axes.barh(row, mean, 0.72, color=colour, alpha=0.55)
            for level in levels:
                dot = {"marker": "o", "markersize": 5.0, "markeredgecolor": "white", "markeredgewidth": 0.5}
                axes.plot(shares[name][level], row, color=LEVEL_COLOURS[level], **dot, zorder=3)
            text = {"ha": "right", "va": "center_baseline", "color": INK, "fontsize": SIZE, "fontweight": weight}
            axes.text(-0.03 * limit, row, short(name), **text)
            axes.text(RIGHT * limit, row, f"{mean:.0f} %", **text)
        # Names and numbers stand inside the axes, which are then as wide as those of the other panels.
        axes.set(xlim=(LEFT * limit, RIGHT * limit), ylim=(len(order) - 0.4, -0.6), yticks=[])
        axes.set_xticks(
            [tick for tick in MaxNLocator(4, steps=ROUND_STEPS).tick_values(0, limit) if 0 <= tick <= limit]
        )
        axes.set_xlabel("FPR95 ↓ (%)")
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color=FAINT, linewidth=0.7)
        axes.set_axisbelow(True)

    words = ", ".join(f"{name} {shares[name][AVERAGE]:.1f}" for name in order)
    return Panel(
        title="OOD data wrongly accepted",
        note=f"bars: mean of {len(columns[AVERAGE])} sets; dots: {', '.join(levels)}",
        alt=f"Share of OOD samples that each detector accepts where it keeps 95 % of ID samples, in percent, mean over "
        f"all sets: {words}.",
        draw=draw,
    )
