"""Figures on the page: SVG in a grid that follows the width of the window, the legend above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outfield.benchmark import BenchmarkRun
from outfield.report import figures
from outfield.report.figures.chart import Chart, Mark, Paper, backbones, single
from outfield.report.page.section import Section
from outfield.report.page.svg import inline_svg
from outfield.report.page.theme import DARK, variable

DASHES = {"--": "5 3", "-.": "6 2.5 1.5 2.5", ":": "1.5 2.5"}
SHAPES = {
    "area": "M4 1h14a2 2 0 0 1 2 2v6a2 2 0 0 1-2 2h-14a2 2 0 0 1-2-2v-6a2 2 0 0 1 2-2z",
    "o": "M11 2a4 4 0 1 1 0 8a4 4 0 1 1 0-8z",
    "s": "M7.3 2.3h7.4v7.4h-7.4z",
    "D": "M11 1l5 5-5 5-5-5z",
    "^": "M11 1.5l4.6 8.5h-9.2z",
    "v": "M11 10.5l4.6-8.5h-9.2z",
    "P": "M9.4 1.5h3.2v3h3v3h-3v3h-3.2v-3h-3v-3h3z",
    "X": "M7 3.8l1.8-1.8 2.2 2.2 2.2-2.2 1.8 1.8-2.2 2.2 2.2 2.2-1.8 1.8-2.2-2.2-2.2 2.2-1.8-1.8 2.2-2.2z",
}
HEADINGS = {
    "sets": "FPR95 on each OOD set",
    "roc": "ROC curves",
    "histograms": "Scores",
    "features": "Features",
    "training": "Training of the energies",
    "fractions": "Fewer training rows",
}
"""Sections of figures, in their order."""
WORDS = {
    "roc": (
        "Each curve is the mean over the sets of a level, over backbones and over seeds; the area below it is the mean AUROC. "
        "The second panel of a level shows the same curves where few ID samples are rejected, which is where detectors are used."
    ),
    "histograms": (
        "Scores of the ID test set and of the OOD sets of each level, which weigh the same, from the first seed; each area is 1. "
        "Scores beyond the axis are in the outermost bars. OOD samples to the left of the dashed line are accepted."
    ),
    "features": (
        "Features laid out in two dimensions so that neighbours stay neighbours; distances across the picture mean little. "
        "The first panel names the classes, where they are few; in the others one OOD set lies over the ID test set."
    ),
    "training": (
        "Means over each epoch. Training lowers the energy of real features and raises that of chain ends; where the two "
        "meet, the model's samples look like the data to it."
    ),
    "fractions": (
        "Every detector fitted on a random part of the training rows, the same share of each class; a smaller part lies within a "
        "larger one. Means over all OOD sets, over seeds and backbones; a line begins where a detector can be fitted."
    ),
}


@dataclass(frozen=True)
class Entry:
    """An entry of a legend: a path, how it is painted, and its words."""

    path: str
    style: str
    label: str


@dataclass(frozen=True)
class Drawing:
    """A panel: its title and note, the level that it is about, and the SVG."""

    title: str
    note: str
    level: str
    svg: str


@dataclass(frozen=True)
class Drawings:
    """A chart as the page shows it; ``kind`` says how its panels flow."""

    title: str
    legend: Sequence[Entry]
    panels: Sequence[Drawing]
    kind: str = ""
    columns: int = 3


def figure_sections(run: BenchmarkRun, drawn: Mapping[str, Sequence[Drawings]]) -> list[Section]:
    """A section for each kind of figure that there is; all charts of it but the first are folded away."""
    words = WORDS | {"sets": _words_on_sets(run, drawn.get("sets", ()))}
    return [
        Section(name, heading, "figures.html", (words[name], drawn[name]))
        for name, heading in HEADINGS.items()
        if drawn.get(name)
    ]


def draw(run: BenchmarkRun, paper: Paper | None) -> dict[str, list[Drawings]]:
    """Every chart that the run has data for, by kind."""
    scored = backbones(key.backbone for key in run.scores)
    charts = {
        "sets": [figures.set_chart(run, paper)],
        "roc": [figures.roc_chart(run)],
        "histograms": [figures.histogram_chart(run, name) for name in scored],
        "features": [figures.view_chart(run, view) for view in run.views],
        "training": [figures.training_chart(run)],
        "fractions": [figures.fraction_chart(run)],
    }
    return {
        name: [_drawings(chart, f"{name}-{number}") for number, chart in enumerate(found) if chart.panels]
        for name, found in charts.items()
    }


def _words_on_sets(run: BenchmarkRun, drawn: Sequence[Drawings]) -> str:
    several = len(run.records) > len({(record.detector, record.ood) for record in run.records})
    words = "One dot for each fit, by backbone and seed; a stroke" if several else "A dot"
    words += (
        " and the number at the right for their mean" if several else " and the number at the right for each detector"
    )
    if any(entry.label == figures.THE_PAPER for chart in drawn for entry in chart.legend):
        words += "; a ring for the paper's figure"
    if several:
        words += ". Where dots lie far apart, the backbone or the seed matters as much as the detector"
    return f"{words}."


def _drawings(chart: Chart, prefix: str) -> Drawings:
    colours = {colour: f"var({variable(colour)})" for colour in DARK}
    panels = [
        Drawing(
            panel.title,
            panel.note,
            panel.level,
            inline_svg(single(chart, panel), panel.alt, f"{prefix}-{number}", colours),
        )
        for number, panel in enumerate(chart.panels)
    ]
    kind = "down" if chart.down else "small" if chart.width < 3 else "fixed" if chart.columns < 4 else ""
    return Drawings(chart.title, [_entry(mark) for mark in chart.marks], panels, kind, chart.columns)


def _entry(mark: Mark) -> Entry:
    colour = f"var({variable(mark.colour)})"
    if mark.kind == "area":
        return Entry(
            "M4 1h14a2 2 0 0 1 2 2v6a2 2 0 0 1-2 2h-14a2 2 0 0 1-2-2v-6a2 2 0 0 1 2-2z",
            f"fill:{colour};opacity:.65",
            mark.label,
        )
    if mark.kind == "ring":
        return Entry(SHAPES["o"], f"fill:none;stroke:{colour}", mark.label)
    if mark.kind == "dot" and mark.form in SHAPES:
        return Entry(SHAPES[mark.form], f"fill:{colour}", mark.label)
    if mark.kind == "dot":
        return Entry("M11 0v12", f"stroke:{colour};stroke-width:1.5", mark.label)
    dashes = f";stroke-dasharray:{DASHES[mark.form]}" if mark.form in DASHES else ""
    width = 1 if mark.kind == "thin" else 2
    return Entry("M0 6h22", f"fill:none;stroke:{colour};stroke-width:{width}{dashes}", mark.label)
