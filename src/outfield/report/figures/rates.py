"""How much OOD data each detector lets in: on each set, fit by fit; by level; and where there are fewer training rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfield.benchmark import AVERAGE, BenchmarkRun, fraction_cells, level_columns, present, summarise
from outfield.images import title as set_title
from outfield.report.canvas import ID, INK, MUTED, RULE, SIZE, MaxNLocator, faint_grid
from outfield.report.figures.chart import (
    LEVEL_COLOURS,
    ROUND_STEPS,
    Chart,
    Mark,
    Panel,
    Paper,
    detectors,
    looks,
    short,
    unique,
)

MARKERS = "osD^vPX"  # one per backbone
THE_PAPER = "the paper"
LEFT, RIGHT = -0.75, 1.25  # where axes with names in them begin and end, in lengths of the longest bar


def set_chart(run: BenchmarkRun, paper: Paper | None = None) -> Chart:
    """FPR95 of every detector on each OOD set: one dot per backbone and seed, a ring for the published figure."""
    names, paper = present(run.records, run.protocol), paper or {}
    shown = {record.detector for record in run.records}
    values = [100 * record.fpr95 for record in run.records]
    printed = [cells[name][0] for cells in paper.values() for name in names if name in cells]
    limit = min(100.0, 1.06 * max([*values, *(value for value in printed if value is not None)], default=1.0) + 1)
    panels = [_set_panel(run, name, paper, limit) for name in names]
    found = unique(record.backbone for record in run.records)
    several = [Mark(name, MUTED, "dot", _marker(found, name)) for name in found] if len(found) > 1 else []
    marks = several or [Mark("one fit", MUTED, "dot", "o")]
    if _several_fits(run):
        marks.append(Mark("mean", INK, "dot", "|"))
    if any(name in paper.get(detector, {}) for detector in shown for name in names):
        marks.append(Mark(THE_PAPER, INK, "ring"))
    marks = marks if len(marks) > 1 else []  # dots of one kind need no legend
    levels = [panel.level for panel in panels]
    even = len({levels.count(level) for level in levels}) == 1  # then each level has a column of its own
    columns, height = len(set(levels)) if even else 3, 0.55 + 0.235 * len(shown)
    return Chart("sets", "FPR95 on each OOD set", panels, marks, columns, height, down=even)


def _several_fits(run: BenchmarkRun) -> bool:
    """Whether a detector was fitted more than once, so that there is a mean to show."""
    return len(run.records) > len({(record.detector, record.ood) for record in run.records})


def _marker(found: Sequence[str], name: str) -> str:
    return MARKERS[found.index(name) % len(MARKERS)]


def _set_panel(run: BenchmarkRun, ood: str, paper: Paper, limit: float) -> Panel:
    records = [record for record in run.records if record.ood == ood]
    found = unique(record.backbone for record in run.records)
    style, level = looks(run), run.protocol.level_of(ood)
    rows = {name: [r for r in records if r.detector == name] for name in detectors(run)}
    rows = {name: mine for name, mine in rows.items() if mine}
    means = {name: 100 * cells[ood].fpr95.mean for name, cells in summarise(records, {ood: (ood,)}).items()}

    def draw(axes: Any) -> None:
        beside = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
        for row, (name, mine) in enumerate(rows.items()):
            colour = style[name][0]
            axes.plot([0, means[name]], [row, row], color=colour, linewidth=1.0, alpha=0.3, zorder=1)
            for record in mine:
                # A little apart, so that equal values of two backbones are both seen.
                offset = 0.0 if len(found) == 1 else 0.34 * (found.index(record.backbone) / (len(found) - 1) - 0.5)
                dot = {"marker": _marker(found, record.backbone), "markersize": 4.6, "color": colour, "alpha": 0.85}
                axes.plot(100 * record.fpr95, row + offset, **dot, markeredgewidth=0, zorder=3, clip_on=False)
            if _several_fits(run):
                axes.plot([means[name]] * 2, [row - 0.32, row + 0.32], color=INK, linewidth=1.2, zorder=4)
            printed = paper.get(name, {}).get(ood)
            if printed is not None and printed[0] is not None:
                ring = {"color": INK, "marker": "o", "markersize": 8.5, "markerfacecolor": "none"}
                axes.plot(printed[0], row, **ring, markeredgecolor=INK, markeredgewidth=0.9, zorder=2, clip_on=False)
            text = {"ha": "right", "va": "center_baseline", "color": INK, "fontsize": SIZE}
            axes.annotate(f"{means[name]:.1f}", (1, row), (32, 0), **text, **beside)
        axes.set(xlim=(-0.05 * limit, limit), ylim=(len(rows) - 0.4, -0.6), xlabel="FPR95 ↓ (%)")
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        axes.set_yticks(range(len(rows)), [short(name) for name in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        faint_grid(axes, "x")

    words = ", ".join(f"{name} {value:.1f}" for name, value in means.items())
    return Panel(
        title=f"{set_title(ood)} ({level})",
        note=f"{max(record.n_ood for record in records):,} samples",
        alt=f"FPR95 on {set_title(ood)}, {level}-OOD, in percent, mean of all fits: {words}.",
        draw=draw,
        level=level,
    )


def level_panel(run: BenchmarkRun, marked: str) -> Panel | None:
    """FPR95 of every detector: a bar for the mean over all OOD sets, the lowest on top, and a dot for each level's.

    Args:
        run: the benchmark.
        marked: the detector whose bar and name stand out.

    Returns:
        None where no detector was evaluated on every set.
    """
    columns = level_columns(run.records, run.protocol)
    levels = [column for column in columns if column != AVERAGE]
    cells = {name: row for name, row in summarise(run.records, columns).items() if len(row) == len(columns)}
    shares = {name: {column: 100 * cell.fpr95.mean for column, cell in row.items()} for name, row in cells.items()}
    if not shares or not levels:
        return None
    order = sorted(shares, key=lambda name: shares[name][AVERAGE])
    limit = 1.06 * max(max(row.values()) for row in shares.values()) + 1

    def draw(axes: Any) -> None:
        for row, name in enumerate(order):
            mean, (colour, weight) = shares[name][AVERAGE], (ID, "bold") if name == marked else (RULE, "normal")
            axes.barh(row, mean, 0.72, color=colour, alpha=0.55)
            for level in levels:
                dot = {"marker": "o", "markersize": 5.0, "markeredgecolor": "white", "markeredgewidth": 0.5}
                axes.plot(shares[name][level], row, color=LEVEL_COLOURS[level], **dot, zorder=3)
            text = {"ha": "right", "va": "center_baseline", "color": INK, "fontsize": SIZE, "fontweight": weight}
            axes.text(-0.03 * limit, row, short(name), **text)
            axes.text(RIGHT * limit, row, f"{mean:.0f} %", **text)
        # Names and numbers stand inside the axes, which are then as wide as those of the other panels.
        axes.set(xlim=(LEFT * limit, RIGHT * limit), ylim=(len(order) - 0.4, -0.6), yticks=[], xlabel="FPR95 ↓ (%)")
        ticks = MaxNLocator(4, steps=ROUND_STEPS).tick_values(0, limit)
        axes.set_xticks([tick for tick in ticks if 0 <= tick <= limit])
        axes.spines["left"].set_visible(False)
        faint_grid(axes, "x")

    words = ", ".join(f"{name} {shares[name][AVERAGE]:.1f}" for name in order)
    return Panel(
        title="OOD data wrongly accepted",
        note=f"bars: mean of {len(columns[AVERAGE])} sets; dots: {', '.join(levels)}",
        alt=f"Share of OOD samples that each detector accepts where it keeps 95 % of ID samples, in percent, mean over "
        f"all sets: {words}.",
        draw=draw,
    )


def fraction_chart(run: BenchmarkRun) -> Chart:
    """FPR95 and AUROC by the fraction of training rows: one panel each, a line for each detector; no dot where it failed."""
    cells, style = fraction_cells(run), looks(run)
    metrics = {"fpr95": "FPR95 ↓ (%)", "auroc": "AUROC ↑ (%)"} if cells else {}
    panels = [_fraction_panel(run, metric, words) for metric, words in metrics.items()]
    marks = [Mark(name, style[name][0], "line", style[name][1]) for name in cells]
    return Chart("fractions", "Detectors on fewer training rows", panels, marks, 2, 3.2)


def _fraction_panel(run: BenchmarkRun, metric: str, words: str) -> Panel:
    cells, style = fraction_cells(run), looks(run)
    shares = [100 * fraction for fraction in sorted({fraction for mine in cells.values() for fraction in mine})]
    lines = {
        name: [(100 * f, 100 * found) for f, cell in mine.items() if (found := getattr(cell, metric)) is not None]
        for name, mine in cells.items()
    }

    def draw(axes: Any) -> None:
        for name, points in lines.items():
            look = {"color": style[name][0], "linestyle": style[name][1], "marker": "o", "markersize": 3.2}
            if points:
                axes.plot(*zip(*points, strict=True), linewidth=1.6, **look)
        axes.set_xscale("log")
        axes.set_xticks(shares, [f"{share:g}" for share in shares])
        axes.set_xticks([], minor=True)
        axes.set(xlabel="training rows (%)", ylabel=words)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS))
        faint_grid(axes)

    ends = ", ".join(f"{name} {points[0][1]:.1f} to {points[-1][1]:.1f}" for name, points in lines.items() if points)
    alt = f"Mean {metric.upper()} in percent from the fewest training rows to all of them: {ends}."
    return Panel(words.partition(" (")[0], alt, draw)
