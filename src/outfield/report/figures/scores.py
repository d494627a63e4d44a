"""Scores of each detector: as histograms, as FPR95 on each set, and as ROC curves with OOD as what is to be detected."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outfield.benchmark import AVERAGE, BenchmarkRun, Key, PrintedTable, RiskCurves, level_columns, present, summarise
from outfield.images import title as set_title
from outfield.report.canvas import ID, INK, MUTED, RULE, SIZE, MaxNLocator, faint_grid
from outfield.report.figures.chart import (
    LEVEL_COLOURS,
    Chart,
    Mark,
    Panel,
    detectors,
    line_marks,
    looks,
    round_ticks,
    short,
)
from outfield.scores import Threshold, rank


def histogram_chart(run: BenchmarkRun, backbone: str) -> Chart:
    """How each detector's scores spread on ID data and on each level of OOD data, on one backbone, from its first seed."""
    firsts: dict[str, Key] = {}
    for key in run.scores:
        if key.backbone == backbone:
            firsts.setdefault(key.detector, key)
    panels = [_histogram_panel(run, key) for key in firsts.values()]
    scored = {name for key in firsts.values() for name in run.scores[key]}
    marks = [Mark(f"{set_title(run.protocol.id)} (ID)", ID, "area")]
    for level, names in run.protocol.levels.items():
        marks += [Mark(f"{level}-OOD", LEVEL_COLOURS[level], "area")] * bool(scored & {*names})
    marks.append(Mark("threshold that keeps 95 % of ID", INK, form="--"))
    return Chart(f"Scores of each detector on {backbone}", panels, marks, 4, 2.1)


def _histogram_panel(run: BenchmarkRun, key: Key) -> Panel:
    levels = _by_level(run, key)
    scores = {"id": [run.scores[key][run.protocol.id]]} | levels
    threshold = keeping(scores["id"][0])
    accepted = {level: np.mean([np.mean(one <= threshold) for one in found]) for level, found in levels.items()}
    words = ", ".join(f"{level} {100 * share:.0f} %" for level, share in accepted.items())
    seed = "" if key.seed is None else f", seed {key.seed}"
    alt = f"Histogram of the scores of {key.detector} on {key.backbone}{seed}. At the threshold that keeps 95 % of ID "
    alt += f"samples it accepts, of OOD samples, {words}."
    return Panel(key.detector, alt, lambda axes: _draw_histograms(axes, scores, threshold), f"accepted: {words}")


def evaluation_chart(
    title: str, test: np.ndarray, ood: Mapping[str, np.ndarray], rule: Threshold, risks: Mapping[str, RiskCurves]
) -> Chart:
    """Scores of the ID set and of each OOD set, a panel for each, with the threshold of a guard; then risk and coverage."""

    def panel(name: str, scores: np.ndarray) -> Panel:
        caught = f"{100 * np.mean(scores > rule.value):.0f} % caught"
        shown = {"id": [test], "far": [scores]}
        return Panel(name, f"{name}: {caught}", lambda axes: _draw_histograms(axes, shown, rule.value), caught)

    threshold = Mark(f"threshold, to keep {100 * rule.keep:.4g} %", INK, form="--")
    marks = [Mark("ID", ID, "area"), Mark("OOD", LEVEL_COLOURS["far"], "area"), threshold]
    answers = risk_chart(risks, dict.fromkeys(risks, (INK, "-")))
    panels = [*(panel(*one) for one in ood.items()), *answers.panels]
    return Chart(title, panels, [*marks, *answers.marks], 3, 2.4, width=4.6)


def keeping(scores: np.ndarray) -> float:
    """The lowest score such that at least 95 % of the scores lie at or below it."""
    return float(np.sort(scores)[rank(0.95, len(scores)) - 1])


def _by_level(run: BenchmarkRun, key: Key) -> dict[str, list[np.ndarray]]:
    """Scores of each OOD set, by level."""
    scores, levels = run.scores[key], run.protocol.levels.items()
    return {level: sets for level, names in levels if (sets := [scores[name] for name in names if name in scores])}


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
        round_ticks(axes.xaxis)


def _log_ticks(low: float, high: float) -> list[float]:
    """Two to five round numbers between ``low`` and ``high``: powers of ten, or also their multiples by 2 and 5."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**power for power in powers if low <= 10.0**power <= high]
    if len(tens) > 2:
        return tens[:: math.ceil(len(tens) / 5)]
    return [tick for power in powers for digit in (1, 2, 5) if low <= (tick := digit * 10.0**power) <= high]


def _power(tick: float) -> str:
    """A tick's label: a plain number where that is short, else a power of ten."""
    if 0.01 <= tick < 100_000:
        return f"{tick:,.10g}"
    digit, power = f"{tick:.0e}".split("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if digit == "1" else f"{digit}·10{raised}"


MARKERS = "osD^vPX"  # one per backbone
THE_PAPER = "the paper"
LEFT, RIGHT = -0.75, 1.25  # where axes with names in them begin and end, in lengths of the longest bar


def set_chart(run: BenchmarkRun, paper: PrintedTable | None = None) -> Chart:
    """FPR95 of every detector on each OOD set: one dot per backbone and seed, a ring for the published figure."""
    names, paper = present(run.records, run.protocol), paper or {}
    shown = {record.detector for record in run.records}
    printed = [cells[name][0] or 0 for cells in paper.values() for name in names if name in cells]
    limit = min(100.0, 1.06 * max([*(100 * record.fpr95 for record in run.records), *printed], default=1.0) + 1)
    panels = [_set_panel(run, name, paper, limit) for name in names]
    markers = _markers(run)
    marks = [Mark(name if len(markers) > 1 else "one fit", MUTED, "dot", marker) for name, marker in markers.items()]
    marks += [Mark("mean", INK, "dot", "|")] * several_fits(run)
    marks += [Mark(THE_PAPER, INK, "ring")] * any(name in paper.get(one, {}) for one in shown for name in names)
    marks = marks if len(marks) > 1 else []  # dots of one kind need no legend
    levels = [panel.level for panel in panels]
    even = len({levels.count(level) for level in levels}) == 1  # then each level has a column of its own
    columns, height = len(set(levels)) if even else 3, 0.55 + 0.235 * len(shown)
    return Chart("FPR95 on each OOD set", panels, marks, columns, height, down=even)


def several_fits(run: BenchmarkRun) -> bool:
    """Whether a detector was fitted more than once, so that there is a mean to show."""
    return len(run.records) > len({(record.detector, record.ood) for record in run.records})


def _markers(run: BenchmarkRun) -> dict[str, str]:
    return dict(zip(dict.fromkeys(record.backbone for record in run.records), itertools.cycle(MARKERS), strict=False))


def _set_panel(run: BenchmarkRun, ood: str, paper: PrintedTable, limit: float) -> Panel:
    records = [record for record in run.records if record.ood == ood]
    markers, style, level = _markers(run), looks(detectors(run)), run.protocol.level_of(ood)
    rows = {name: mine for name in detectors(run) if (mine := [r for r in records if r.detector == name])}
    means = {name: 100 * cells[ood].fpr95.mean for name, cells in summarise(records, {ood: (ood,)}).items()}

    def draw(axes: Any) -> None:
        beside = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
        for row, (name, mine) in enumerate(rows.items()):
            colour = style[name][0]
            axes.plot([0, means[name]], [row, row], color=colour, linewidth=1.0, alpha=0.3, zorder=1)
            for record in mine:
                # A little apart, so that equal values of two backbones are both seen.
                place = [*markers].index(record.backbone) / (len(markers) - 1) if len(markers) > 1 else 0.5
                dot = {"marker": markers[record.backbone], "markersize": 4.6, "color": colour, "alpha": 0.85}
                axes.plot(
                    100 * record.fpr95, row + 0.34 * (place - 0.5), **dot, markeredgewidth=0, zorder=3, clip_on=False
                )
            if several_fits(run):
                axes.plot([means[name]] * 2, [row - 0.32, row + 0.32], color=INK, linewidth=1.2, zorder=4)
            printed, _ = paper.get(name, {}).get(ood, (None, None))
            if printed is not None:
                ring = {"color": INK, "marker": "o", "markersize": 8.5, "markerfacecolor": "none"}
                axes.plot(printed, row, **ring, markeredgecolor=INK, markeredgewidth=0.9, zorder=2, clip_on=False)
            text = {"ha": "right", "va": "center_baseline", "color": INK, "fontsize": SIZE}
            axes.annotate(f"{means[name]:.1f}", (1, row), (32, 0), **text, **beside)
        axes.set(xlim=(-0.05 * limit, limit), ylim=(len(rows) - 0.4, -0.6), xlabel="FPR95 ↓ (%)")
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        axes.set_yticks(range(len(rows)), [short(name) for name in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        faint_grid(axes, "x")

    words = ", ".join(f"{name} {value:.1f}" for name, value in means.items())
    alt = f"FPR95 on {set_title(ood)}, {level}-OOD, in percent, mean of all fits: {words}."
    note = f"{max(record.n_ood for record in records):,} samples"
    return Panel(f"{set_title(ood)} ({level})", alt, draw, note, level)


def level_panel(run: BenchmarkRun, marked: str) -> Panel:
    """FPR95 of every detector that was evaluated on every set, a bar for the mean and a dot for each level."""
    columns = level_columns(run.records, run.protocol)
    levels = [column for column in columns if column != AVERAGE]
    cells = {name: row for name, row in summarise(run.records, columns).items() if len(row) == len(columns)}
    shares = {name: {column: 100 * cell.fpr95.mean for column, cell in row.items()} for name, row in cells.items()}
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
        round_ticks(axes.xaxis, 4)
        axes.set_xticks([tick for tick in axes.xaxis.get_major_locator().tick_values(0, limit) if 0 <= tick <= limit])
        axes.spines["left"].set_visible(False)
        faint_grid(axes, "x")

    words = ", ".join(f"{name} {shares[name][AVERAGE]:.1f}" for name in order)
    alt = "Share of OOD samples that each detector accepts where it keeps 95 % of ID samples, in percent"
    note = f"bars: mean of {len(columns[AVERAGE])} sets; dots: {', '.join(levels)}"
    return Panel("OOD data wrongly accepted", f"{alt}, mean over all sets: {words}.", draw, note)


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
    panels = [_roc_panel(run, level, found, grid, log) for log in (False, True) for level, found in curves.items()]
    shown = [name for name in detectors(run) if any(name in found for found in curves.values())]
    marks = [*line_marks(shown, looks(detectors(run))), Mark("95 % of ID kept", INK, form="--")]
    title = "ROC curves per level: whole, and where few ID samples are rejected"
    return Chart(title, panels, marks, max(2, len(panels) // 2), 3.0)


def _level_curves(run: BenchmarkRun, grid: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """By level and detector, the mean curve over the level's sets, backbones and seeds, whose area is the mean AUROC."""
    found: dict[str, dict[str, list[np.ndarray]]] = {level: {} for level in run.protocol.levels}
    for key, scores in run.scores.items():
        for level, sets in _by_level(run, key).items():
            curves = (roc_curve(scores[run.protocol.id], oods, grid) for oods in sets)
            found[level].setdefault(key.detector, []).extend(curves)
    return {level: {name: np.mean(one, axis=0) for name, one in mine.items()} for level, mine in found.items() if mine}


def _roc_panel(run: BenchmarkRun, level: str, curves: Mapping[str, np.ndarray], grid: np.ndarray, log: bool) -> Panel:
    at = {name: 100 * float(np.interp(0.05, grid, curve)) for name, curve in curves.items()}
    words = ", ".join(f"{name} {value:.0f} %" for name, value in at.items())
    scored = {name for scores in run.scores.values() for name in scores}
    sets = ", ".join(set_title(name) for name in run.protocol.levels[level] if name in scored)
    style = looks(detectors(run))

    def draw(axes: Any) -> None:
        axes.axvline(5, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        if not log:
            axes.plot([0, 100], [0, 100], color=RULE, linewidth=0.9)
        for name, curve in curves.items():
            colour, dashes = style[name]
            axes.plot(100 * grid, 100 * curve, color=colour, linestyle=dashes, linewidth=1.5)
        ticks = [0.1, 1, 5, 10, 100] if log else [0, 5, 25, 50, 75, 100]
        if log:
            axes.set_xscale("log")
            axes.set_xticks([], minor=True)
        axes.set(xlim=(ticks[0], 100), ylim=(0, 100.5), yticks=[0, 25, 50, 75, 100])
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        faint_grid(axes, "y")
        axes.set(xlabel="ID rejected (%)", ylabel="OOD detected (%)")

    alt = f"ROC curves of every detector on {level}-OOD data ({sets}){', logarithmic' if log else ''}. "
    alt += f"OOD samples detected where 95 % of ID samples are kept: {words}."
    return Panel(f"{level}-OOD{', few ID rejected' if log else ''}", alt, draw, sets, level)


MOST_EDGES = 400  # of a curve that is drawn


def risk_chart(risks: Mapping[str, RiskCurves], style: Mapping[str, tuple[str, str]]) -> Chart:
    """Share of wrong answers among those accepted, by the share accepted: ID data alone, and mixed with OOD data."""
    curves = [{one: both[place] for one, both in risks.items() if both[place] is not None} for place in (0, 1)]
    titles = ("ID inputs alone", "half of the inputs OOD")
    panels = [_risk_panel(title, found, style) for title, found in zip(titles, curves, strict=True) if found]
    title = "Risk and coverage: answers accepted in the order of each score"
    return Chart(title, panels, line_marks(risks, style), 2, 2.8, width=4.6)


def _risk_panel(title: str, curves: Mapping[str, Any], style: Mapping[str, tuple[str, str]]) -> Panel:
    def draw(axes: Any) -> None:
        for name, curve in curves.items():
            # Row by row nearly every answer is an edge; the first few of them say nothing yet.
            found = np.searchsorted(curve.coverage, np.linspace(0.01, 1, MOST_EDGES))
            edges, (colour, dashes) = np.unique(found.clip(max=len(curve.coverage) - 1)), style[name]
            x, y = 100 * curve.coverage[edges], 100 * curve.risk[edges]
            axes.plot(x, y, color=colour, linestyle=dashes, linewidth=1.5)
        axes.set(xlim=(0, 100), xlabel="accepted (%)", ylabel="wrong among accepted (%)")
        axes.set_ylim(bottom=0)
        round_ticks(axes.yaxis)
        faint_grid(axes)

    words = ", ".join(f"{name} {100 * curve.aurc():.1f}" for name, curve in curves.items())
    alt = f"Share of wrong answers among accepted ones by the share accepted, {title}. Area under the curve in percent: {words}."
    return Panel(title, alt, draw)
