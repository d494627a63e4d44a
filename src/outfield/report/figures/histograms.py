"""Scores of each detector as histograms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outfield.benchmark import BenchmarkRun, Key
from outfield.images.catalogue import title as set_title
from outfield.report.drawing import ID, INK, MaxNLocator
from outfield.report.figures.chart import LEVEL_COLOURS, ROUND_STEPS, Chart, Mark, Panel
from outfield.scores.vectors import rank


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
