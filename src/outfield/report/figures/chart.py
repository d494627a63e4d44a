"""What figures are made of: charts of panels, their legends, and one look for each level and each detector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from outfield.benchmark import BenchmarkRun
from outfield.report.drawing import FAR, INK, MUTED, NEAR, STYLE

Paper = Mapping[str, Mapping[str, tuple[float, float]]]
"""(FPR95, AUROC) in percent, by detector, then by OOD set, level or "average"."""

MID = "#5e2a84"
LEVEL_COLOURS = {"near": NEAR, "mid": MID, "far": FAR}
LEVEL_INKS = {"near": "#9a5b06", "mid": MID, "far": "#b02f40"}
"""The same for words, which need more contrast than areas."""
FAINT, RULE = "#dfe3ea", "#c4cad6"
DRAWING: dict[str, Any] = {
    **STYLE,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "font.size": 9.5,
    "path.simplify": False,
    "text.parse_math": False,
}
"""Settings of Matplotlib."""

# Told apart in normal sight and in each kind of colour blindness, by lightness as much as by hue.
DETECTOR_LOOKS: dict[str, tuple[str, str]] = {
    "MSP": ("#9397a4", ":"),
    "ODIN": ("#d08902", "--"),
    "EnergyLogits": ("#741b0f", "-."),
    "KNN": ("#3074f5", "-"),
    "SSD": ("#aa469b", "-"),
    "GaussianMixture": ("#450e3a", "--"),
    "EBM": ("#217542", "-"),
    "EnergyCorrected": ("#351282", "-"),
}
SPARE_LOOKS = (("#0e7c86", "-"), ("#b3541e", "--"), ("#66752b", "-."), ("#c2417c", ":"), ("#54607a", "--"))
"""For detectors of other names, in the order in which they come."""
ROUND_STEPS = [1, 2, 5, 10]


@dataclass(frozen=True)
class Mark:
    """An entry of a legend: a filled area, a line, a dot or a ring."""

    label: str
    colour: str
    kind: str = "line"
    form: str = "-"
    """Style of a line, marker of a dot."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes: what it is called, what it shows in words for those who cannot see it, how it is drawn."""

    title: str
    alt: str
    draw: Callable[[Any], None]
    note: str = ""
    level: str = ""


@dataclass(frozen=True)
class Chart:
    """Panels that belong together, under one legend; a chart without panels is not shown."""

    name: str
    title: str
    panels: Sequence[Panel]
    marks: Sequence[Mark]
    columns: int
    height: float
    """Inches of one panel."""
    width: float = 3.4
    """The same for nearly all, so that their letters are of one size on the page."""
    down: bool = False
    """Whether panels fill one column after the other."""


def assemble(chart: Chart) -> Figure:
    """All panels of a chart in a grid, with its title and legend."""
    columns = min(chart.columns, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    width, height = columns * chart.width, rows * chart.height
    entries = max(1, int(width / 1.5))
    below = 0.25 * math.ceil(len(chart.marks) / entries) + 0.15
    figure = Figure(figsize=(width, height + below + 0.45), layout="constrained")
    figure.suptitle(f" {short(chart.title, int(9 * width))}", x=0.0, ha="left", fontsize=13, fontweight="bold")
    axes = figure.subplots(rows, columns, squeeze=False).ravel(order="F" if chart.down else "C")
    for panel, place in zip(chart.panels, axes, strict=False):
        panel.draw(place)
        colour = LEVEL_INKS.get(panel.level, INK)
        place.set_title(
            short(panel.title, int(11 * chart.width)), fontsize=10, color=colour, pad=16 if panel.note else 6
        )
        if panel.note:
            note = short(panel.note, int(16 * chart.width))
            place.text(0.5, 1.02, note, transform=place.transAxes, ha="center", fontsize=8, color=MUTED)
    for place in axes[len(chart.panels) :]:
        place.set_axis_off()
    if chart.marks:
        figure.legend(handles=[_handle(mark) for mark in chart.marks], loc="outside lower center", ncols=entries)
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.08, h_pad=0.08, hspace=0.04, wspace=0.03)
    return figure


def single(chart: Chart, panel: Panel) -> Figure:
    """One panel alone, without title and legend."""
    figure = Figure(figsize=(chart.width, chart.height), layout="constrained")
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.03, h_pad=0.03)
    panel.draw(figure.subplots())
    return figure


def _handle(mark: Mark) -> Any:
    if mark.kind == "area":
        return Patch(facecolor=mark.colour, alpha=0.6, label=short(mark.label, 40))
    if mark.kind == "ring":
        hollow: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": mark.colour, "markersize": 8}
        return Line2D([], [], linestyle="none", marker="o", label=short(mark.label, 40), **hollow)
    if mark.kind == "dot":
        size = 9 if mark.form == "|" else 6
        return Line2D(
            [], [], linestyle="none", marker=mark.form, color=mark.colour, markersize=size, label=short(mark.label, 40)
        )
    width = 0.8 if mark.kind == "thin" else 1.8
    return Line2D([], [], color=mark.colour, linestyle=mark.form, linewidth=width, label=short(mark.label, 40))


def backbones(names: Iterable[str]) -> list[str]:
    """Each name once, in order."""
    return list(dict.fromkeys(names))


def detectors(run: BenchmarkRun) -> list[str]:
    """Names of the detectors, in the order in which they were recorded."""
    names = [record.detector for record in run.records]
    return list(dict.fromkeys([*names, *(key.detector for key in (*run.scores, *run.histories))]))


def looks(run: BenchmarkRun) -> dict[str, tuple[str, str]]:
    """Colour and line style of each detector: its own, or the next spare one."""
    others = [name for name in detectors(run) if name not in DETECTOR_LOOKS]
    spare = {name: SPARE_LOOKS[i % len(SPARE_LOOKS)] for i, name in enumerate(others)}
    return DETECTOR_LOOKS | spare


def short(name: str, most: int = 22) -> str:
    """A name that fits beside an axis."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
