"""FPR95 on each OOD set, fit by fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfield.benchmark import BenchmarkRun
from outfield.benchmark.summary import summarise
from outfield.images.catalogue import title as set_title
from outfield.report.drawing import FAINT, INK, MUTED, SIZE, MaxNLocator
from outfield.report.figures.chart import Chart, Mark, Panel, Paper, backbones, detectors, looks, short

MARKERS = "osD^vPX"
"""One per backbone."""
THE_PAPER = "the paper"


def set_chart(run: BenchmarkRun, paper: Paper | None = None) -> Chart:
    """FPR95 of every detector on each OOD set: one dot per backbone and seed, a ring for the published figure."""
    names = [name for name in run.protocol.ood if any(record.ood == name for record in run.records)]
    paper = paper or {}
    values = [100 * record.fpr95 for record in run.records]
    printed = [cells[name][0] for cells in paper.values() for name in names if name in cells]
    values += [value for value in printed if value is not None]
    limit = min(100.0, 1.06 * max(values, default=1.0) + 1)
    panels = [_set_panel(run, name, paper, limit) for name in names]
    found = backbones(record.backbone for record in run.records)
    several = [Mark(name, MUTED, "dot", _marker(found, name)) for name in found] if len(found) > 1 else []
    marks = several or [Mark("one fit", MUTED, "dot", "o")]
    if _several_fits(run):
        marks.append(Mark("mean", INK, "dot", "|"))
    shown = {record.detector for record in run.records}
    if any(name in paper.get(detector, {}) for detector in shown for name in names):
        marks.append(Mark(THE_PAPER, INK, "ring"))
    marks = marks if len(marks) > 1 else []  # dots of one kind need no legend
    levels = [panel.level for panel in panels]
    counts = {levels.count(level) for level in levels}
    height = 0.55 + 0.235 * len({record.detector for record in run.records})
    even = len(counts) == 1  # then each level has a column of its own
    columns = len(set(levels)) if even else 3
    return Chart("sets", "FPR95 on each OOD set", panels, marks, columns, height, down=even)


def _several_fits(run: BenchmarkRun) -> bool:
    """Whether a detector was fitted more than once, so that there is a mean to show."""
    return len(run.records) > len({(record.detector, record.ood) for record in run.records})


def _marker(found: Sequence[str], name: str) -> str:
    return MARKERS[found.index(name) % len(MARKERS)]


def _set_panel(run: BenchmarkRun, ood: str, paper: Paper, limit: float) -> Panel:
    records = [record for record in run.records if record.ood == ood]
    found = backbones(record.backbone for record in run.records)
    style = looks(run)
    rows = {name: [r for r in records if r.detector == name] for name in detectors(run)}
    rows = {name: mine for name, mine in rows.items() if mine}
    means = {name: 100 * cells[ood].fpr95.mean for name, cells in summarise(records, {ood: (ood,)}).items()}
    samples = max(record.n_ood for record in records)

    def draw(axes: Any) -> None:
        for row, (name, mine) in enumerate(rows.items()):
            colour = style[name][0]
            axes.plot([0, means[name]], [row, row], color=colour, linewidth=1.0, alpha=0.3, zorder=1)
            for record in mine:
                # A little apart, so that equal values of two backbones are both seen.
                offset = 0.0 if len(found) == 1 else 0.34 * (found.index(record.backbone) / (len(found) - 1) - 0.5)
                dot = {"marker": _marker(found, record.backbone), "markersize": 4.6, "color": colour}
                axes.plot(
                    100 * record.fpr95, row + offset, **dot, alpha=0.85, markeredgewidth=0, zorder=3, clip_on=False
                )
            if _several_fits(run):
                axes.plot([means[name]] * 2, [row - 0.32, row + 0.32], color=INK, linewidth=1.2, zorder=4)
            printed = paper.get(name, {}).get(ood)
            if printed is not None and printed[0] is not None:
                ring = {
                    "color": INK,
                    "marker": "o",
                    "markersize": 8.5,
                    "markerfacecolor": "none",
                    "markeredgecolor": INK,
                }
                axes.plot(printed[0], row, **ring, markeredgewidth=0.9, zorder=2, clip_on=False)
            beside = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
            axes.annotate(
                f"{means[name]:.1f}",
                (1, row),
                (32, 0),
                ha="right",
                va="center_baseline",
                color=INK,
                fontsize=SIZE,
                **beside,
            )
        axes.set(xlim=(-0.05 * limit, limit), ylim=(len(rows) - 0.4, -0.6), xlabel="FPR95 ↓ (%)")
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        axes.set_yticks(range(len(rows)), [short(name) for name in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color=FAINT, linewidth=0.7)
        axes.set_axisbelow(True)

    level = run.protocol.level_of(ood)
    words = ", ".join(f"{name} {value:.1f}" for name, value in means.items())
    return Panel(
        title=f"{set_title(ood)} ({level})",
        note=f"{samples:,} samples",
        alt=f"FPR95 on {set_title(ood)}, {level}-OOD, in percent, mean of all fits: {words}.",
        draw=draw,
        level=level,
    )
