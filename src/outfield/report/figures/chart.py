"""What figures are made of: charts of panels, their legends, and one look for each level and each detector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfield.benchmark import BenchmarkRun
from outfield.report.canvas import FAR, INK, MID, MUTED, NEAR, SIZE, Line2D, MaxNLocator, Patch, new_figure, subplots
from outfield.report.table import visible

LEVEL_COLOURS = {"near": NEAR, "mid": MID, "far": FAR}
LEVEL_INKS = {"near": "#9a5b06", "mid": MID, "far": "#b02f40"}
"""The same for words, which need more contrast than areas."""

# Told apart in normal sight and in each kind of colour blindness, by lightness as much as by hue.
DETECTOR_LOOKS: dict[str, tuple[str, str]] = {
    "MSP": ("#9397a4", ":"), "ODIN": ("#d08902", "--"), "EnergyLogits": ("#741b0f", "-."), "KNN": ("#3074f5", "-"),
    "SSD": ("#aa469b", "-"), "GaussianMixture": ("#450e3a", "--"), "EBM": ("#217542", "-"),
    "EnergyCorrected": ("#351282", "-"),
}  # fmt: skip
SPARE_COLOURS = ("#0e7c86", "#b3541e", "#66752b", "#c2417c", "#54607a", "#8a6d00", "#4c9a2a", "#0f4c81")
"""For detectors of other names, in the order in which they come."""
LINES = ("-", "--", "-.", ":")
LOWEST = 1.5  # inches that a panel needs at least where its title and note stand above it


@dataclass(frozen=True)
class Mark:
    """An entry of a legend: a filled area, a line, a dot or a ring."""

    label: str
    colour: str
    kind: str = "line"
    form: str = "-"  # style of a line, marker of a dot


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

    title: str
    panels: Sequence[Panel]
    marks: Sequence[Mark]
    columns: int
    height: float  # inches of one panel
    width: float = 3.4  # the same for nearly all, so that their letters are of one size on the page
    down: bool = False  # whether panels fill one column after the other


def assemble(chart: Chart) -> Any:
    """All panels of a chart in a grid, with its title and legend, as a figure."""
    columns = min(chart.columns, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    width, height = columns * chart.width, rows * max(chart.height, LOWEST)
    entries = max(1, int(width / 1.5))
    below = 0.25 * math.ceil(len(chart.marks) / entries) + 0.15
    figure = new_figure(width, height + below + 0.45, "constrained")
    heading = f" {short(chart.title, int(9 * width))}"
    figure.suptitle(heading, x=0.0, ha="left", fontsize=13, fontweight="bold", color=INK)
    axes = subplots(figure, rows, columns).ravel(order="F" if chart.down else "C")
    for panel, place in zip(chart.panels, axes, strict=False):
        panel.draw(place)
        title, note = short(panel.title, int(11 * chart.width)), short(panel.note, int(16 * chart.width))
        colour = LEVEL_INKS.get(panel.level, INK)
        place.set_title(title, fontsize=10, fontweight="bold", color=colour, pad=16 if note else 6)
        place.text(0.5, 1.02, note, transform=place.transAxes, ha="center", fontsize=8, color=MUTED)
    for place in axes[len(chart.panels) :]:
        place.set_axis_off()
    if chart.marks:
        look = {"fontsize": SIZE, "labelcolor": INK, "frameon": False, "ncols": entries}
        figure.legend(handles=[*map(_handle, chart.marks)], loc="outside lower center", **look)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, hspace=0.04, wspace=0.03)
    return figure


def single(chart: Chart, panel: Panel) -> Any:
    """One panel alone, without title and legend, as a figure."""
    figure = new_figure(chart.width, chart.height, "constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03)
    panel.draw(subplots(figure)[0, 0])
    return figure


def _handle(mark: Mark) -> Any:
    label = short(mark.label, 40)
    if mark.kind == "area":
        return Patch(facecolor=mark.colour, alpha=0.6, label=label)
    if mark.kind in ("ring", "dot"):
        form, size, fill = (
            ("o", 8, "none") if mark.kind == "ring" else (mark.form, 6 + 3 * (mark.form == "|"), mark.colour)
        )
        look = {"marker": form, "markersize": size, "markeredgecolor": mark.colour, "markerfacecolor": fill}
        return Line2D([], [], label=label, linestyle="none", **look)
    width = 0.8 if mark.kind == "thin" else 1.8
    return Line2D([], [], label=label, color=mark.colour, linestyle=mark.form, linewidth=width)


def line_marks(names: Iterable[str], style: Mapping[str, tuple[str, str]]) -> list[Mark]:
    """An entry for the line of each detector."""
    return [Mark(name, style[name][0], form=style[name][1]) for name in names]


def round_ticks(axis: Any, most: int = 5) -> None:
    """Few ticks at round numbers."""
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))


def legend_entry(mark: Mark) -> Any:
    """The sign of a legend's entry alone, as a small figure."""
    figure = new_figure(0.3, 0.17)
    close = {"borderpad": 0, "handletextpad": 0, "handlelength": 2.2, "labelspacing": 0}
    figure.legend([_handle(mark)], [""], loc="center", frameon=False, fontsize=SIZE, **close)
    return figure


def detectors(run: BenchmarkRun) -> list[str]:
    """Names of the detectors, in the order in which they were recorded."""
    named: list[Any] = [*run.records, *run.scores, *run.histories, *run.low_data]
    return list(dict.fromkeys(one.detector for one in named))


def looks(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and line style of each detector: its own, or the next spare one. The first 32 spare ones differ."""
    found = dict(DETECTOR_LOOKS)
    for number, name in enumerate(name for name in names if name not in DETECTOR_LOOKS):
        rounds, colour = divmod(number, len(SPARE_COLOURS))
        found[name] = SPARE_COLOURS[colour], LINES[(colour + rounds) % len(LINES)]
    return found


def short(name: str, most: int = 22) -> str:
    """A name that fits beside an axis: a long one keeps its beginning and its end, by which names differ.

    >>> short("EnergyCorrected, 20 epochs, seed 3", 20)
    'EnergyCorr…s, seed 3'
    """
    name, tail = visible(name), (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - tail]}…{name[len(name) - tail :]}"
