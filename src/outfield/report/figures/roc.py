"""ROC curves, with OOD as what is to be detected: the share of OOD detected by the share of ID rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from outfield.benchmark import BenchmarkRun
from outfield.images.catalogue import title as set_title
from outfield.report.drawing import FAINT, INK, RULE
from outfield.report.figures.chart import Chart, Mark, Panel, detectors, looks


def roc_curve(scores_id: np.ndarray, scores_ood: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Share of OOD samples detected where a share ``grid`` (G,) of ID samples is rejected; ties are crossed in a straight line.

    >>> roc_curve(np.array([0.0, 1.0]), np.array([1.0, 2.0]), np.array([0.0, 0.25, 1.0]))
    array([0.5 , 0.75, 1.  ])
    """
    ids, oods = np.sort(scores_id), np.sort(scores_ood)
    cuts = np.unique(np.concatenate([ids, oods]))[::-1]
    rejected = np.concatenate([[0.0], 1 - np.searchsorted(ids, cuts, side="left") / len(ids)])
    detected = np.concatenate([[0.0], 1 - np.searchsorted(oods, cuts, side="left") / len(oods)])
    last = np.append(np.diff(rejected) > 0, True)  # the upper end where the curve goes straight up
    return np.asarray(np.interp(grid, rejected[last], detected[last]))


def roc_chart(run: BenchmarkRun) -> Chart:
    """ROC curves of all detectors, per level, whole and from 0.1 % of ID samples rejected on."""
    grid = np.unique(np.concatenate([np.linspace(0, 1, 101), np.geomspace(1e-3, 1, 121)]))
    curves = _level_curves(run, grid)
    style = looks(run)
    panels = [
        _roc_panel(run, level, found, grid, style, log)
        for log in (False, True)
        for level, found in curves.items()
        if found
    ]
    shown = [name for name in detectors(run) if any(name in found for found in curves.values())]
    marks = [Mark(name, *_line(style[name])) for name in shown]
    marks.append(Mark("95 % of ID kept", INK, "line", "--"))
    title = "ROC curves per level: whole, and where few ID samples are rejected"
    return Chart("roc", title, panels, marks, max(2, len(panels) // 2), 3.0)


def _line(look: tuple[str, str]) -> tuple[str, str, str]:
    return look[0], "line", look[1]


def _level_curves(run: BenchmarkRun, grid: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """By level and detector, the mean curve over the level's sets, backbones and seeds, whose area is the mean AUROC."""
    found: dict[str, dict[str, list[np.ndarray]]] = {level: {} for level in run.protocol.levels}
    for key, scores in run.scores.items():
        if run.protocol.id not in scores:
            continue
        for level, names in run.protocol.levels.items():
            for name in names:
                if name in scores:
                    curve = roc_curve(scores[run.protocol.id], scores[name], grid)
                    found[level].setdefault(key.detector, []).append(curve)
    return {
        level: {name: np.mean(curves, axis=0) for name, curves in per_detector.items()}
        for level, per_detector in found.items()
    }


def _roc_panel(
    run: BenchmarkRun,
    level: str,
    curves: Mapping[str, np.ndarray],
    grid: np.ndarray,
    style: Mapping[str, tuple[str, str]],
    log: bool,
) -> Panel:
    at = {name: 100 * float(np.interp(0.05, grid, curve)) for name, curve in curves.items()}
    words = ", ".join(f"{name} {value:.0f} %" for name, value in at.items())
    scored = {name for scores in run.scores.values() for name in scores}
    sets = ", ".join(set_title(name) for name in run.protocol.levels[level] if name in scored)

    def draw(axes: Any) -> None:
        axes.axvline(5, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        if not log:
            axes.plot([0, 100], [0, 100], color=RULE, linewidth=0.9)
        for name, curve in curves.items():
            colour, dashes = style[name]
            axes.plot(100 * grid, 100 * curve, color=colour, linestyle=dashes, linewidth=1.5)
        _percent_axes(axes, log)

    return Panel(
        title=f"{level}-OOD" + (", few ID rejected" if log else ""),
        note=sets,
        alt=f"ROC curves of every detector on {level}-OOD data ({sets}){', logarithmic' if log else ''}. OOD samples "
        f"detected where 95 % of ID samples are kept: {words}.",
        draw=draw,
        level=level,
    )


def _percent_axes(axes: Any, log: bool) -> None:
    axes.set(xlim=(0.1, 100) if log else (0, 100), ylim=(0, 100.5))
    if log:
        axes.set_xscale("log")
        axes.set_xticks([0.1, 1, 5, 10, 100], ["0.1", "1", "5", "10", "100"])
        axes.set_xticks([], minor=True)
    else:
        axes.set_xticks([0, 5, 25, 50, 75, 100])
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_xlabel("ID rejected (%)")
    axes.set_ylabel("OOD detected (%)")
