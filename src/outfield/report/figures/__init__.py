"""Figures of a benchmark: what is drawn, panel by panel.

A chart is a list of panels, each of which draws on axes that it is given. So one piece of code serves the PNGs of
:func:`write_figures`, where panels stand in a grid, and the page, where they flow with the width of the window. Nothing here
computes anything but what is drawn. Colours are the same in every chart: one per level, one per detector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outfield.benchmark import BenchmarkRun, Layout, PrintedTable
from outfield.errors import InputError
from outfield.files import PathLike, as_path, make_folder
from outfield.images import title as set_title
from outfield.report.canvas import ID, INK, PathPatch, frame, save_figure
from outfield.report.canvas import Path as Outline
from outfield.report.figures.chart import LEVEL_COLOURS, Chart, Mark, Panel, assemble, short, unique
from outfield.report.figures.curves import fraction_chart, roc_chart, training_chart
from outfield.report.figures.scores import evaluation_chart, histogram_chart, level_panel, set_chart

DPI = 200


def charts(run: BenchmarkRun, paper: PrintedTable | None = None) -> dict[str, list[Chart]]:
    """The charts that the run has data for, by kind: histograms and features for each backbone, one of each other kind."""
    found = {
        "sets": [set_chart(run, paper)],
        "roc": [roc_chart(run)],
        "histograms": [histogram_chart(run, name) for name in unique(key.backbone for key in run.scores)],
        "features": [layout_chart(run, layout) for layout in run.layouts],
        "training": [training_chart(run)],
        "fractions": [fraction_chart(run)],
    }
    return {kind: [chart for chart in those if chart.panels] for kind, those in found.items()}


def write_figures(run: BenchmarkRun, folder: PathLike, paper: PrintedTable | None = None) -> list[Path]:
    """Write each chart that the run has data for as a PNG into ``folder``, atomically; made if need be.

    Histograms and features are of the first backbone. A file of an earlier run that this one has no data for is removed.
    """
    folder = as_path(folder, "folder")
    make_folder(folder)
    written = []
    for kind, found in charts(run, paper).items():
        path = folder / f"{kind}.png"
        if found:
            save_figure(assemble(found[0]), path, dpi=DPI)
            written.append(path)
        else:
            path.unlink(missing_ok=True)  # it would be taken for one of this run
    return written


def write_overview(run: BenchmarkRun, path: PathLike) -> None:
    """Write the chart of a whole run to a PNG, atomically."""
    save_figure(assemble(overview_chart(run)), path, dpi=DPI)


def write_evaluation(path: PathLike, *shown: Any) -> None:
    """Write what :func:`evaluation_chart` draws to a PNG, atomically."""
    save_figure(assemble(evaluation_chart(*shown)), path, dpi=DPI)


MOST_POINTS = {"id": 1000, "ood": 500}  # points of a set that are drawn; more hide each other
COLUMNS = 4
SHOWN = ("MSP", "KNN", "SSD", "Auto")


def layout_chart(run: BenchmarkRun, layout: Layout) -> Chart:
    """The features in two dimensions: ID data with its classes, and each OOD set on top of it."""
    known, of_id = run.protocol.id in layout.sets, f"{set_title(run.protocol.id)} (ID)"
    panels = [layout_panel(run, layout, (), of_id, "")] if known else []
    for name in run.protocol.ood:
        if name in layout.sets:
            level = run.protocol.level_of(name)
            panels.append(layout_panel(run, layout, [name], f"{set_title(name)} ({level})", level))
    marks = [Mark(of_id, ID, "dot", "o")] if known else []
    there = {panel.level for panel in panels}
    marks += [Mark(f"{level}-OOD", LEVEL_COLOURS[level], "dot", "o") for level in LEVEL_COLOURS if level in there]
    return Chart(f"Features on {layout.backbone} in two dimensions", panels, marks, 4, 2.5, width=2.5)


def layout_panel(run: BenchmarkRun, layout: Layout, ood: Sequence[str], title: str, level: str) -> Panel:
    """ID points with their classes' names, or behind those of OOD sets."""
    sets, points = np.array(layout.sets, dtype=object), layout.points
    known, shown = sets == run.protocol.id, np.isin(sets, list(ood))

    def draw(axes: Any) -> None:
        _dots(axes, _thinned(points[known], MOST_POINTS["id"]), ID, 0.3 if level else 0.5)
        if ood:
            _dots(axes, _thinned(points[shown], MOST_POINTS["ood"]), LEVEL_COLOURS[level], 0.9)
        else:
            _name_classes(axes, points[known], layout.labels[known], run.classes)
        low, high = points.min(0), points.max(0)
        pad = np.where(high > low, 0.04 * (high - low), 1.0)
        axes.set(xlim=(low[0] - pad[0], high[0] + pad[0]), ylim=(low[1] - pad[1], high[1] + pad[1]))
        frame(axes)

    what = f"Features of {int(shown.sum() if ood else known.sum()):,} samples of {title}"
    if ood:
        what += f" in front of {known.sum():,} ID samples"
    elif _classes(layout.labels[known]):
        what += " with each class named at its middle"
    return Panel(title, f"{what}, on {layout.backbone}.", draw, level=level)


def _thinned(points: np.ndarray, most: int) -> np.ndarray:
    return points[:: max(1, math.ceil(len(points) / most))]


def _dots(axes: Any, points: np.ndarray, colour: str, alpha: float) -> None:
    """Points as one path of strokes without length and with round ends: a tenth of the bytes of as many markers."""
    if not len(points):
        return
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
    """The first backbone's features with the OOD sets of each level, above scores of three detectors.

    Beside the scores stands how much OOD data every detector of the run accepts, with the default one marked.
    """
    if not run.layouts:
        raise InputError("the run has no features laid out in two dimensions; benchmark it with layout=True")
    layout, of_id = run.layouts[0], set_title(run.protocol.id)
    panels = [layout_panel(run, layout, (), f"{of_id} (ID)", "")]
    for level, names in run.protocol.levels.items():
        there = [name for name in names if name in layout.sets]
        if there:
            panels.append(layout_panel(run, layout, there, f"{level}: {', '.join(map(set_title, there))}", level))
    scores = histogram_chart(run, layout.backbone)
    by_name = {panel.title: panel for panel in scores.panels}
    histograms = [by_name[name] for name in SHOWN if name in by_name][1 - COLUMNS :]
    accepted = level_panel(run, SHOWN[-1])
    marks = scores.marks if histograms else layout_chart(run, layout).marks
    title = f"Features of {of_id} in a {layout.backbone}, and how detectors score them"
    below = [*histograms, *([accepted] if accepted else [])]
    return Chart(title, [*panels, *below], marks, COLUMNS, 2.5, width=3.4)
