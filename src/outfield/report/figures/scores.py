"""Scores of each detector: as histograms, and as ROC curves with OOD as what is to be detected."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outfield.benchmark import BenchmarkRun, Key
from outfield.images import title as set_title
from outfield.report.canvas import ID, INK, RULE, MaxNLocator, faint_grid
from outfield.report.figures.chart import LEVEL_COLOURS, ROUND_STEPS, Chart, Mark, Panel, detectors, looks
from outfield.scores import rank


def histogram_chart(run: BenchmarkRun, backbone: str) -> Chart:
    """How each detector's scores spread on ID data and on each level of OOD data, on one backbone, from its first seed."""
    firsts: dict[str, Key] = {}
    for key in run.scores:
        if key.backbone == backbone and run.protocol.id in run.scores[key]:
            firsts.setdefault(key.detector, key)
    panels = [_histogram_panel(run, key) for key in firsts.values()]
    scored = {name for key in firsts.values() for name in run.scores[key]}
    levels = [level for level, names in run.protocol.levels.items() if scored & {*names}]
    marks = [Mark(f"{set_title(run.protocol.id)} (ID)", ID, "area")]
    marks += [Mark(f"{level}-OOD", LEVEL_COLOURS[level], "area") for level in levels]
    marks.append(Mark("threshold that keeps 95 % of ID", INK, "line", "--"))
    return Chart("histograms", f"Scores of each detector on {backbone}", panels, marks, 4, 2.1)


def _histogram_panel(run: BenchmarkRun, key: Key) -> Panel:
    scores = _by_level(run, key)
    threshold = keeping(scores["id"][0])
    accepted = {
        level: np.mean([np.mean(values <= threshold) for values in found])
        for level, found in scores.items()
        if level != "id"
    }
    words = ", ".join(f"{level} {100 * share:.0f} %" for level, share in accepted.items())
    seed = "" if key.seed is None else f", seed {key.seed}"
    return Panel(
        title=key.detector,
        note=f"accepted: {words}" if words else "",
        alt=f"Histogram of the scores of {key.detector} on {key.backbone}{seed}. At the threshold that keeps 95 % of ID "
        f"samples it accepts, of OOD samples, {words or 'none, as there are none'}.",
        draw=lambda axes: _draw_histograms(axes, scores, threshold),
    )


def keeping(scores: np.ndarray, share: float = 0.95) -> float:
    """The lowest score such that at least ``share`` of the scores lie at or below it."""
    return float(np.sort(scores)[max(1, rank(share, len(scores))) - 1])


def _by_level(run: BenchmarkRun, key: Key) -> dict[str, list[np.ndarray]]:
    """Scores of each set, by level; the ID test set is a level of its own."""
    scores = run.scores[key]
    found = {level: [scores[name] for name in names if name in scores] for level, names in run.protocol.levels.items()}
    return {"id": [scores[run.protocol.id]]} | {level: sets for level, sets in found.items() if sets}


def _draw_histograms(axes: Any, scores: Mapping[str, Sequence[np.ndarray]], threshold: float) -> None:
    """Each level's sets weigh the same, however many samples they have, as they do in tables."""
    pooled = np.concatenate([values for sets in scores.values() for values in sets]).astype(np.float64)
    low, high = float(pooled.min()), float(np.quantile(pooled, 0.995))
    # Probabilities crowd at 0; their logarithms can be told apart.
    log = low >= 0 and np.median(scores["id"][0]) - low < 0.05 * (pooled.max() - low)
    floor = max(float(np.quantile(pooled[pooled > 0], 0.01)), 1e-7 * high) if log and high > 0 else 1.0
    shape = (lambda x: np.log10(np.maximum(x, floor))) if log else (lambda x: x)
    low, high = (float(shape(np.float64(x))) for x in (np.quantile(pooled, 0.001), max(high, threshold)))
    margin = 0.02 * (high - low) or 1.0
    bins = np.linspace(low - margin, high + margin, 46)
    for level, sets in scores.items():
        colour = LEVEL_COLOURS.get(level, ID)
        shown = [np.clip(shape(values.astype(np.float64)), bins[0], bins[-1]) for values in sets]
        heights = np.mean([np.histogram(values, bins, density=True)[0] for values in shown], axis=0)
        axes.stairs(heights, bins, fill=True, color=colour, alpha=0.28 if level == "id" else 0.12, linewidth=0)
        axes.stairs(heights, bins, color=colour, linewidth=1.3)
    axes.axvline(shape(np.float64(threshold)), color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.set(xlim=(bins[0], bins[-1]), yticks=[], xlabel=f"score{', log scale' if log else ''} → more OOD")
    axes.set_ylim(bottom=0)
    axes.spines["left"].set_visible(False)
    if log:
        ticks = _log_ticks(10 ** bins[0], 10 ** bins[-1])
        axes.set_xticks(np.log10(ticks), [_power(tick) for tick in ticks])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS))


def _log_ticks(low: float, high: float) -> list[float]:
    """Two to five round numbers between ``low`` and ``high``: powers of ten, or also their multiples by 2 and 5."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**power for power in powers if low <= 10.0**power <= high]
    if len(tens) > 2:
        return tens[:: math.ceil(len(tens) / 5)]
    finer = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [tick for tick in finer if low <= tick <= high]


def _power(tick: float) -> str:
    """A tick's label: a plain number where that is short, else a power of ten."""
    if 0.01 <= tick < 100_000:
        return f"{tick:,.10g}"
    digit, power = f"{tick:.0e}".split("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if digit == "1" else f"{digit}·10{raised}"


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
    panels = [_roc_panel(run, level, found, grid, log) for log in (False, True) for level, found in curves.items()]
    shown = [name for name in detectors(run) if any(name in found for found in curves.values())]
    marks = [Mark(name, style[name][0], "line", style[name][1]) for name in shown]
    marks.append(Mark("95 % of ID kept", INK, "line", "--"))
    title = "ROC curves per level: whole, and where few ID samples are rejected"
    return Chart("roc", title, panels, marks, max(2, len(panels) // 2), 3.0)


def _level_curves(run: BenchmarkRun, grid: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """By level and detector, the mean curve over the level's sets, backbones and seeds, whose area is the mean AUROC."""
    found: dict[str, dict[str, list[np.ndarray]]] = {level: {} for level in run.protocol.levels}
    for key, scores in run.scores.items():
        if run.protocol.id not in scores:
            continue
        for name in run.protocol.ood:
            if name in scores:
                curve = roc_curve(scores[run.protocol.id], scores[name], grid)
                found[run.protocol.level_of(name)].setdefault(key.detector, []).append(curve)
    return {
        level: {name: np.mean(curves, axis=0) for name, curves in per_detector.items()}
        for level, per_detector in found.items()
        if per_detector
    }


def _roc_panel(run: BenchmarkRun, level: str, curves: Mapping[str, np.ndarray], grid: np.ndarray, log: bool) -> Panel:
    at = {name: 100 * float(np.interp(0.05, grid, curve)) for name, curve in curves.items()}
    words = ", ".join(f"{name} {value:.0f} %" for name, value in at.items())
    scored = {name for scores in run.scores.values() for name in scores}
    sets = ", ".join(set_title(name) for name in run.protocol.levels[level] if name in scored)
    style = looks(run)

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
    faint_grid(axes, "y")
    axes.set(xlabel="ID rejected (%)", ylabel="OOD detected (%)")
