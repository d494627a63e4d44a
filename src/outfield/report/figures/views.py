"""Features in two dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from outfield.benchmark import BenchmarkRun, View
from outfield.images.catalogue import title as set_title
from outfield.report.drawing import ID, INK, Path, PathPatch
from outfield.report.figures.chart import LEVEL_COLOURS, Chart, Mark, Panel, short

MOST_POINTS = {"id": 1000, "ood": 500}
"""Points of a set that are drawn; more hide each other."""


def view_chart(run: BenchmarkRun, view: View) -> Chart:
    """The features in two dimensions: ID data with its classes, and each OOD set on top of it."""
    sets = np.array(view.sets, dtype=object)
    known = sets == run.protocol.id
    panels = [view_panel(run, view, known, None, f"{set_title(run.protocol.id)} (ID)", "")] if known.any() else []
    for name in run.protocol.ood:
        if (sets == name).any():
            level = run.protocol.level_of(name)
            panels.append(view_panel(run, view, known, sets == name, f"{set_title(name)} ({level})", level))
    marks = [Mark(f"{set_title(run.protocol.id)} (ID)", ID, "dot", "o")] if known.any() else []
    marks += [Mark(f"{level}-OOD", LEVEL_COLOURS[level], "dot", "o") for level in _levels(panels)]
    return Chart("features", f"Features on {view.backbone} in two dimensions", panels, marks, 4, 2.5, width=2.5)


def _levels(panels: Sequence[Panel]) -> list[str]:
    return [level for level in LEVEL_COLOURS if any(panel.level == level for panel in panels)]


def view_panel(
    run: BenchmarkRun, view: View, known: np.ndarray, shown: np.ndarray | None, title: str, level: str
) -> Panel:
    """ID points, ``known`` (n,), with their classes' names, or behind the points that are ``shown`` (n,)."""

    def draw(axes: Any) -> None:
        _dots(axes, _thinned(view.points[known], MOST_POINTS["id"]), ID, 0.3 if level else 0.5)
        if shown is not None:
            _dots(axes, _thinned(view.points[shown], MOST_POINTS["ood"]), LEVEL_COLOURS[level], 0.9)
        else:
            _name_classes(axes, view.points[known], view.labels[known], run.classes)
        low, high = view.points.min(0), view.points.max(0)
        pad = np.where(high > low, 0.04 * (high - low), 1.0)
        axes.set(xlim=(low[0] - pad[0], high[0] + pad[0]), ylim=(low[1] - pad[1], high[1] + pad[1]))
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_visible(True)

    what = f"Features of {int(known.sum() if shown is None else shown.sum()):,} samples of {title}"
    if shown is not None:
        what += f" in front of {known.sum():,} ID samples"
    elif _classes(view.labels[known]):
        what += " with each class named at its middle"
    return Panel(title, f"{what}, on {view.backbone}.", draw, level=level)


def _thinned(points: np.ndarray, most: int) -> np.ndarray:
    return points[:: max(1, math.ceil(len(points) / most))]


def _dots(axes: Any, points: np.ndarray, colour: str, alpha: float) -> None:
    """Points as one path of strokes without length and with round ends: a tenth of the bytes of as many markers."""
    if not len(points):
        return
    ends = np.repeat(points.astype(np.float64), 2, axis=0)
    ends[1::2, 0] += 1e-3 * float(np.ptp(points[:, 0]) or 1.0)  # shorter ones are not drawn into a PNG
    outline = Path(ends, np.tile([Path.MOVETO, Path.LINETO], len(points)))
    outline.should_simplify = False  # or strokes without length would be left out
    axes.add_patch(
        PathPatch(outline, fill=False, edgecolor=colour, linewidth=2.2, capstyle="round", alpha=alpha, snap=False)
    )


def _classes(labels: np.ndarray, most: int = 20) -> list[int]:
    """The classes to be named: all, or none where they are too many to be read."""
    classes = [int(label) for label in np.unique(labels) if label >= 0]
    return classes if len(classes) <= most else []


def _name_classes(axes: Any, points: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> None:
    for label in _classes(labels):
        x, y = np.median(points[labels == label], axis=0)
        across = (x - points[:, 0].min()) / (np.ptp(points[:, 0]) or 1.0)
        side = "left" if across < 0.2 else "right" if across > 0.8 else "center"  # a long name stays inside the frame
        name = short(class_name(names, label), 18)
        text = name if side == "center" else f" {name} "
        axes.text(x, y, text, color=INK, fontsize=9, fontweight="bold", ha=side, va="center", clip_on=True)


def class_name(names: Sequence[str], label: int) -> str:
    """What the data calls a class; "class 3" where it has no name.

    >>> class_name(("ant", "bee"), 1), class_name((), 3)
    ('bee', 'class 3')
    """
    return names[label] if label < len(names) else f"class {label}"
