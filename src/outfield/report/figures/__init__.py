"""Figures of a benchmark: what is drawn, panel by panel.

A chart is a list of panels, each of which draws on axes that it is given. So one piece of code serves the PNGs of
:func:`write_figures`, where panels stand in a grid, and the page, where they flow with the width of the window. Nothing here
computes anything but what is drawn. Colours are the same in every chart: one per level, one per detector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outfield.benchmark import BenchmarkRun, Layout, PrintedTable, RiskCurves, fraction_cells
from outfield.energy import History
from outfield.errors import InputError
from outfield.files import PathLike, as_path, make_folder
from outfield.images import title as set_title
from outfield.percent import counted
from outfield.report.canvas import ID, INK, MUTED, RULE, MaxNLocator, PathPatch, faint_grid, frame, save_figure
from outfield.report.canvas import Path as Outline
from outfield.report.figures.chart import (
    LEVEL_COLOURS,
    Chart,
    Mark,
    Panel,
    assemble,
    detectors,
    line_marks,
    looks,
    round_ticks,
    short,
)
from outfield.report.figures.scores import (
    evaluation_chart,
    histogram_chart,
    level_panel,
    risk_chart,
    roc_chart,
    set_chart,
)

DPI = 200


def charts(run: BenchmarkRun, paper: PrintedTable | None = None) -> dict[str, list[Chart]]:
    """The charts that the run has data for, by kind: histograms and features for each backbone, one of each other kind."""
    found = {
        "sets": [set_chart(run, paper)], "roc": [roc_chart(run)], "risk": [risk_chart(run.risks(), looks(detectors(run)))],
        "histograms": [histogram_chart(run, name) for name in dict.fromkeys(key.backbone for key in run.scores)],
        "features": [layout_chart(run, layout) for layout in run.layouts], "training": [training_chart(run)],
        "fractions": [fraction_chart(run)],
    }  # fmt: skip
    return {kind: [chart for chart in those if chart.panels] for kind, those in found.items()}


def write_figures(run: BenchmarkRun, folder: PathLike, paper: PrintedTable | None = None) -> list[Path]:
    """Write each chart that the run has data for as a PNG into ``folder``, and remove the others, of earlier runs."""
    folder = as_path(folder, "folder")
    make_folder(folder)
    found = {folder / f"{kind}.png": those for kind, those in charts(run, paper).items()}
    for path, those in found.items():
        if those:
            save_figure(assemble(those[0]), path, dpi=DPI)
        else:
            path.unlink(missing_ok=True)  # it would be taken for one of this run
    return [path for path, those in found.items() if those]


def write_overview(run: BenchmarkRun, path: PathLike) -> None:
    """Write the chart of a whole run to a PNG, atomically."""
    save_figure(assemble(overview_chart(run)), path, dpi=DPI)


def write_risks(risks: Mapping[str, RiskCurves], path: PathLike) -> None:
    """Write the curves of risk and coverage to a PNG, atomically."""
    save_figure(assemble(risk_chart(risks, looks(risks))), path, dpi=DPI)


def write_evaluation(path: PathLike, *shown: Any) -> None:
    """Write what :func:`evaluation_chart` draws to a PNG, atomically."""
    save_figure(assemble(evaluation_chart(*shown)), path, dpi=DPI)


COLUMNS = 4
SHOWN = ("MSP", "KNN", "SSD", "Auto")


def layout_chart(run: BenchmarkRun, layout: Layout) -> Chart:
    """The features in two dimensions: ID data with its classes, and each OOD set on top of it."""
    of_id = f"{set_title(run.protocol.id)} (ID)"
    panels, marks = [layout_panel(run, layout, (), of_id, "")], [Mark(of_id, ID, "dot", "o")]
    for level, names in run.protocol.levels.items():
        shown = [name for name in names if name in layout.sets]
        panels += [layout_panel(run, layout, [name], f"{set_title(name)} ({level})", level) for name in shown]
        marks += [Mark(f"{level}-OOD", LEVEL_COLOURS[level], "dot", "o")] * bool(shown)
    return Chart(f"Features on {layout.backbone} in two dimensions", panels, marks, 4, 2.5, width=2.5)


def layout_panel(run: BenchmarkRun, layout: Layout, ood: Sequence[str], title: str, level: str) -> Panel:
    """ID points with their classes' names, or behind those of OOD sets."""
    sets, points = np.array(layout.sets, dtype=object), layout.points
    known, shown = sets == run.protocol.id, np.isin(sets, list(ood))

    def draw(axes: Any) -> None:
        _dots(axes, points[known], 1000, ID, 0.3 if level else 0.5)
        if ood:
            _dots(axes, points[shown], 500, LEVEL_COLOURS[level], 0.9)
        else:
            _name_classes(axes, points[known], layout.labels[known], run.classes)
        low, high = points.min(0), points.max(0)
        pad = np.where(high > low, 0.04 * (high - low), 1.0)
        axes.set(xlim=(low[0] - pad[0], high[0] + pad[0]), ylim=(low[1] - pad[1], high[1] + pad[1]))
        frame(axes)

    more = " with each class named at its middle" if _classes(layout.labels[known]) else ""
    more = f" in front of {known.sum():,} ID samples" if ood else more
    count = int((shown if ood else known).sum())
    return Panel(title, f"Features of {count:,} samples of {title}{more}, on {layout.backbone}.", draw, level=level)


def _dots(axes: Any, points: np.ndarray, most: int, colour: str, alpha: float) -> None:
    """Points as one path of strokes without length and with round ends: a tenth of the bytes of as many markers.

    About ``most`` of them are drawn; more hide each other.
    """
    points = points[:: math.ceil(len(points) / most)]
    ends = np.repeat(points.astype(np.float64), 2, axis=0)
    ends[1::2, 0] += 1e-3 * float(np.ptp(points[:, 0]) or 1.0)  # shorter ones are not drawn into a PNG
    outline = Outline(ends, np.tile([Outline.MOVETO, Outline.LINETO], len(points)))
    outline.should_simplify = False  # or strokes without length would be left out
    look = {"edgecolor": colour, "linewidth": 2.2, "capstyle": "round", "alpha": alpha}
    axes.add_patch(PathPatch(outline, fill=False, snap=False, **look))


def _classes(labels: np.ndarray) -> list[int]:
    """The classes to be named: all, or none where they are too many to be read."""
    classes = [int(label) for label in np.unique(labels) if label >= 0]
    return classes if len(classes) <= 20 else []


def _name_classes(axes: Any, points: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> None:
    for label in _classes(labels):
        x, y = np.median(points[labels == label], axis=0)
        across = (x - points[:, 0].min()) / (np.ptp(points[:, 0]) or 1.0)
        side = "left" if across < 0.2 else "right" if across > 0.8 else "center"  # a long name stays inside the frame
        name = short(names[label] if label < len(names) else f"class {label}", 18)
        text = name if side == "center" else f" {name} "
        axes.text(x, y, text, color=INK, fontsize=9, fontweight="bold", ha=side, va="center", clip_on=True)


def overview_chart(run: BenchmarkRun) -> Chart:
    """The first backbone's features with the OOD sets, above scores of three detectors and what every detector accepts."""
    if not run.layouts:
        raise InputError("the run has no features laid out in two dimensions; benchmark it with layout=True")
    layout, of_id = run.layouts[0], set_title(run.protocol.id)
    panels = [layout_panel(run, layout, (), f"{of_id} (ID)", "")]
    for level, names in run.protocol.levels.items():
        if there := [name for name in names if name in layout.sets]:
            panels.append(layout_panel(run, layout, there, f"{level}: {', '.join(map(set_title, there))}", level))
    scores = histogram_chart(run, layout.backbone)
    by_name = {panel.title: panel for panel in scores.panels}
    histograms = [by_name[name] for name in SHOWN if name in by_name][1 - COLUMNS :]
    marks = scores.marks if histograms else layout_chart(run, layout).marks
    title = f"Features of {of_id} in a {layout.backbone}, and how detectors score them"
    return Chart(title, [*panels, *histograms, level_panel(run, SHOWN[-1])], marks, COLUMNS, 2.5, width=3.4)


def training_chart(run: BenchmarkRun) -> Chart:
    """Loss and energies of each trained detector by epoch: a thin line per fit, a thick one for their mean."""
    style, fits = looks(detectors(run)), dict[str, list[History]]()
    for key, history in run.histories.items():
        fits.setdefault(key.detector, []).append(history)
    panels = [panel for name, mine in fits.items() for panel in _panels(name, mine, style[name][0])]
    marks = [Mark("energy of real features", ID), Mark("energy of chain ends", INK, form="--")]
    if any(len(mine) > 1 for mine in fits.values()):
        marks += [Mark("one fit", MUTED, "thin"), Mark("mean", MUTED)]
    return Chart("Training of the energies", panels, marks, 3, 2.2)


def _panels(name: str, histories: Sequence[History], colour: str) -> list[Panel]:
    """Loss, energies, and how far chain ends lie above real features."""
    loss, real, negative = (
        [np.array(getattr(h, of)) for h in histories] for of in ("loss", "real_energy", "negative_energy")
    )
    gap, fits = [high - low for high, low in zip(negative, real, strict=True)], counted(len(histories), "fit")

    def panel(what: str, alt: str, label: str, *lines: tuple[Sequence[np.ndarray], str, str]) -> Panel:
        def draw(axes: Any) -> None:
            if what == "difference":
                axes.axhline(0, color=RULE, linewidth=0.9)
            for line in lines:
                _epochs(axes, *line)
            axes.set_ylabel(label)

        return Panel(f"{name}: {what}", alt, draw)

    last = [f"{np.mean([one[-1] for one in values]):.3g}" for values in (loss, real, negative, gap)]
    of_loss = f"Loss of {name} by epoch, {fits}; {last[0]} on average after the last."
    ends = f"{last[1]} on real features and {last[2]} on chain ends"
    of_energies = f"Mean residual energy of {name} by epoch, {fits}; after the last {ends}."
    of_gap = f"How far {name} holds chain ends above real features by epoch: {last[3]} on average after the last."
    return [
        panel("loss", of_loss, "loss", (loss, colour, "-")),
        panel("energies", of_energies, "mean energy", (negative, INK, "--"), (real, ID, "-")),
        panel("difference", of_gap, "chain ends − real", (gap, colour, "-")),
    ]


def _epochs(axes: Any, series: Sequence[np.ndarray], colour: str, dashes: str) -> None:
    """Values of each fit by epoch, and their mean where all have as many."""
    look = dict[str, Any](color=colour, linestyle=dashes)
    if max(map(len, series)) == 1:
        look |= {"marker": "o", "markersize": 3.5}
    for values in series if len(series) > 1 else []:
        axes.plot(range(1, len(values) + 1), values, alpha=0.4, linewidth=0.8, **look)
    if len({len(values) for values in series}) == 1:
        mean = np.mean(series, axis=0)
        axes.plot(range(1, len(mean) + 1), mean, linewidth=1.8, **look)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    round_ticks(axes.yaxis)
    faint_grid(axes, "y")


def fraction_chart(run: BenchmarkRun) -> Chart:
    """FPR95 and AUROC by the fraction of training rows: one panel each, a line for each detector; no dot where it failed."""
    cells, style = fraction_cells(run), looks(detectors(run))
    shares = [100 * fraction for fraction in sorted({fraction for mine in cells.values() for fraction in mine})]

    def panel(title: str) -> Panel:
        metric = title.split()[0]
        lines = {
            name: [(100 * f, 100 * getattr(cell, metric.lower())) for f, cell in mine.items() if not cell.reason]
            for name, mine in cells.items()
        }

        def draw(axes: Any) -> None:
            for name, points in lines.items():
                look = {"color": style[name][0], "linestyle": style[name][1], "marker": "o", "markersize": 3.2}
                axes.plot(*zip(*points, strict=True), linewidth=1.6, **look)
            axes.set_xscale("log")
            axes.set_xticks(shares, [f"{share:g}" for share in shares])
            axes.set_xticks([], minor=True)
            axes.set(xlabel="training rows (%)", ylabel=f"{title} (%)")
            round_ticks(axes.yaxis)
            faint_grid(axes)

        ends = ", ".join(f"{name} {points[0][1]:.1f} to {points[-1][1]:.1f}" for name, points in lines.items())
        return Panel(title, f"Mean {metric} in percent from the fewest training rows to all of them: {ends}.", draw)

    panels = [panel(title) for title in ("FPR95 ↓", "AUROC ↑") if cells]
    return Chart("Detectors on fewer training rows", panels, line_marks(cells, style), 2, 3.2)
