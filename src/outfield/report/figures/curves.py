"""Curves: ROC per level with OOD as what is to be detected, losses and energies of training, and fewer training rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outfield.benchmark import BenchmarkRun, fraction_cells
from outfield.energy import History
from outfield.images import title as set_title
from outfield.report.canvas import ID, INK, MUTED, RULE, MaxNLocator, faint_grid
from outfield.report.figures.chart import ROUND_STEPS, Chart, Mark, Panel, detectors, looks


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
    return Chart(title, panels, marks, max(2, len(panels) // 2), 3.0)


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
    levels = {level: by_name for level, by_name in found.items() if by_name}
    return {
        level: {name: np.mean(those, axis=0) for name, those in by_name.items()} for level, by_name in levels.items()
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
        axes.set(xlim=(0.1, 100) if log else (0, 100), ylim=(0, 100.5))
        ticks = [0.1, 1, 5, 10, 100] if log else [0, 5, 25, 50, 75, 100]
        if log:
            axes.set_xscale("log")
            axes.set_xticks([], minor=True)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks([0, 25, 50, 75, 100])
        faint_grid(axes, "y")
        axes.set(xlabel="ID rejected (%)", ylabel="OOD detected (%)")

    alt = f"ROC curves of every detector on {level}-OOD data ({sets}){', logarithmic' if log else ''}. "
    alt += f"OOD samples detected where 95 % of ID samples are kept: {words}."
    return Panel(f"{level}-OOD{', few ID rejected' if log else ''}", alt, draw, sets, level)


def training_chart(run: BenchmarkRun) -> Chart:
    """Loss and energies of each trained detector by epoch: a thin line per fit, a thick one for their mean."""
    style, panels, fits = looks(run), [], []
    for name in dict.fromkeys(key.detector for key in run.histories):
        mine = [history for key, history in run.histories.items() if key.detector == name and len(history)]
        if mine:
            fits.append(mine)
            panels += _panels(name, mine, style[name][0])
    marks = [Mark("energy of real features", ID), Mark("energy of chain ends", INK, "line", "--")]
    if any(len(mine) > 1 for mine in fits):
        marks.append(Mark("one fit", MUTED, "thin"))
    if any(len(mine) > 1 and len({len(h) for h in mine}) == 1 for mine in fits):
        marks.append(Mark("mean", MUTED))
    return Chart("Training of the energies", panels, marks, 3, 2.2)


def _panels(name: str, histories: Sequence[History], colour: str) -> list[Panel]:
    """Loss, energies, and how far chain ends lie above real features."""
    losses, reals = [h.loss for h in histories], [h.real_energy for h in histories]
    negatives = [h.negative_energy for h in histories]
    gaps = [np.subtract(h.negative_energy, h.real_energy).tolist() for h in histories]
    fits = f"{len(histories)} fit{'s' if len(histories) > 1 else ''}"
    loss, real, negative, gap = (np.mean([one[-1] for one in those]) for those in (losses, reals, negatives, gaps))

    def panel(what: str, alt: str, label: str, *lines: tuple[Sequence[Sequence[float]], str, str]) -> Panel:
        def draw(axes: Any) -> None:
            if what == "difference":
                axes.axhline(0, color=RULE, linewidth=0.9)
            for series, ink, dashes in lines:
                _epochs(axes, series, ink, dashes)
            axes.set_ylabel(label)

        return Panel(f"{name}: {what}", alt, draw)

    of_loss = f"Loss of {name} by epoch, {fits}; {loss:.3g} on average after the last."
    ends = f"{real:.3g} on real features and {negative:.3g} on chain ends"
    of_energies = f"Mean residual energy of {name} by epoch, {fits}; after the last {ends}."
    of_gap = f"How far {name} holds chain ends above real features by epoch: {gap:.3g} on average after the last."
    return [
        panel("loss", of_loss, "loss", (losses, colour, "-")),
        panel("energies", of_energies, "mean energy", (negatives, INK, "--"), (reals, ID, "-")),
        panel("difference", of_gap, "chain ends − real", (gaps, colour, "-")),
    ]


def _epochs(axes: Any, series: Sequence[Sequence[float]], colour: str, dashes: str) -> None:
    marker = {"marker": "o", "markersize": 3.5} if max(map(len, series)) == 1 else {}
    for values in series if len(series) > 1 else []:
        axes.plot(range(1, len(values) + 1), values, color=colour, alpha=0.4, linewidth=0.8, linestyle=dashes, **marker)
    if len({len(values) for values in series}) == 1:
        mean = np.mean(series, axis=0)
        axes.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=1.8, linestyle=dashes, **marker)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS))
    faint_grid(axes, "y")


def fraction_chart(run: BenchmarkRun) -> Chart:
    """FPR95 and AUROC by the fraction of training rows: one panel each, a line for each detector; no dot where it failed."""
    cells, style = fraction_cells(run), looks(run)
    metrics = {"fpr95": "FPR95 ↓ (%)", "auroc": "AUROC ↑ (%)"} if cells else {}
    panels = [_fraction_panel(run, metric, words) for metric, words in metrics.items()]
    marks = [Mark(name, style[name][0], "line", style[name][1]) for name in cells]
    return Chart("Detectors on fewer training rows", panels, marks, 2, 3.2)


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
