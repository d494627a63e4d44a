"""Figures on the page: SVG in a grid that follows the width of the window, the legend above."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib

from outfield.benchmark import BenchmarkRun
from outfield.report import figures
from outfield.report.figures.chart import DRAWING, Chart, Mark, Paper, backbones, single
from outfield.report.page.markup import Html, element, inline_svg, join
from outfield.report.page.section import Section
from outfield.report.page.theme import DARK, variable

DASHES = {"--": "5 3", "-.": "6 2.5 1.5 2.5", ":": "1.5 2.5"}
SHAPES = {
    "o": "M11 2a4 4 0 1 1 0 8a4 4 0 1 1 0-8z",
    "s": "M7.3 2.3h7.4v7.4h-7.4z",
    "D": "M11 1l5 5-5 5-5-5z",
    "^": "M11 1.5l4.6 8.5h-9.2z",
    "v": "M11 10.5l4.6-8.5h-9.2z",
    "P": "M9.4 1.5h3.2v3h3v3h-3v3h-3.2v-3h-3v-3h3z",
    "X": "M7 3.8l1.8-1.8 2.2 2.2 2.2-2.2 1.8 1.8-2.2 2.2 2.2 2.2-1.8 1.8-2.2-2.2-2.2 2.2-1.8-1.8 2.2-2.2z",
}


def figure_sections(run: BenchmarkRun, paper: Paper | None) -> list[Section | None]:
    """All figures, one section for each kind; None where the run has no data for it."""
    return [_sets(run, paper), _roc(run), _histograms(run), _views(run), _training(run)]


def _sets(run: BenchmarkRun, paper: Paper | None) -> Section | None:
    chart = figures.set_chart(run, paper)
    words = "One dot for each fit, by backbone and seed; a stroke and the number at the right for their mean"
    if any(mark.kind == "ring" for mark in chart.marks):
        words += "; a ring for the paper's figure"
    if len(run.records) > len({(record.detector, record.ood) for record in run.records}):
        words += ". Where dots lie far apart, the backbone or the seed matters as much as the detector"
    return _figure_section("sets", "FPR95 on each OOD set", f"{words}.", [chart])


def _roc(run: BenchmarkRun) -> Section | None:
    words = (
        "Each curve is the mean over the sets of a level, over backbones and over seeds; the area below it is the mean AUROC. "
        "The second row shows the same curves where few ID samples are rejected, which is where detectors are used."
    )
    return _figure_section("roc", "ROC curves", words, [figures.roc_chart(run)])


def _histograms(run: BenchmarkRun) -> Section | None:
    words = (
        "Scores of the ID test set and of the OOD sets of each level, which weigh the same, from the first seed; each area is "
        "1. Scores beyond the axis are in the outermost bars. OOD samples to the left of the dashed line are accepted."
    )
    names = backbones(key.backbone for key in run.scores)
    return _figure_section("histograms", "Scores", words, [figures.histogram_chart(run, name) for name in names])


def _views(run: BenchmarkRun) -> Section | None:
    words = (
        "Features laid out in two dimensions so that neighbours stay neighbours; distances across the picture mean little. "
        "The first panel names the classes, where they are few; in the others one OOD set lies over the ID test set."
    )
    return _figure_section("features", "Features", words, [figures.view_chart(run, view) for view in run.views])


def _training(run: BenchmarkRun) -> Section | None:
    words = (
        "Means over each epoch. Training lowers the energy of real features and raises that of chain ends; where the two "
        "meet, the model's samples look like the data to it."
    )
    return _figure_section("training", "Training of the energies", words, [figures.training_chart(run)])


def _figure_section(name: str, heading: str, words: str, charts: Sequence[Chart]) -> Section | None:
    """Charts of one kind; all but the first are folded away."""
    charts = [chart for chart in charts if chart.panels]
    if not charts:
        return None
    several = len(charts) > 1
    shown = [element("p", words), element("h3", charts[0].title) if several else None, _chart(charts[0], name)]
    for index, chart in enumerate(charts[1:], 1):
        shown.append(element("details", element("summary", chart.title), _chart(chart, f"{name}-{index}")))
    return Section(name, heading, join(shown))


def _chart(chart: Chart, prefix: str) -> Html:
    panels = []
    colours = {colour: f"var({variable(colour)})" for colour in DARK}
    for index, panel in enumerate(chart.panels):
        with matplotlib.rc_context(DRAWING):
            figure = single(chart, panel)
        drawn = inline_svg(figure, panel.alt, f"{prefix}-{index}", colours, DRAWING)
        caption = element("figcaption", element("b", panel.title), element("span", panel.note) if panel.note else None)
        panels.append(element("figure", caption, drawn, class_=f"panel {panel.level}".strip()))
    rows = -(-len(panels) // chart.columns)
    kind = "down" if chart.down else "small" if chart.width < 3 else "fixed" if chart.columns < 4 else ""
    return element(
        "div",
        element("ul", *(element("li", _swatch(mark), mark.label) for mark in chart.marks), class_="legend"),
        element("div", *panels, class_=f"panels {kind}".strip(), style=f"--columns:{chart.columns};--rows:{rows}"),
        class_="chart",
    )


def _swatch(mark: Mark) -> Html:
    colour = f"var({variable(mark.colour)})"
    if mark.kind == "area":
        shape = element("rect", x="2", y="1", width="18", height="10", rx="2", style=f"fill:{colour};opacity:.65")
    elif mark.kind == "ring":
        shape = element("path", d=SHAPES["o"], style=f"fill:none;stroke:{colour}")
    elif mark.kind == "dot" and mark.form in SHAPES:
        shape = element("path", d=SHAPES[mark.form], style=f"fill:{colour}")
    elif mark.kind == "dot":
        shape = element("path", d="M11 0v12", style=f"stroke:{colour};stroke-width:1.5")
    else:
        dashes = f";stroke-dasharray:{DASHES[mark.form]}" if mark.form in DASHES else ""
        width = 1 if mark.kind == "thin" else 2
        shape = element("path", d="M0 6h22", style=f"fill:none;stroke:{colour};stroke-width:{width}{dashes}")
    return element("svg", shape, viewBox="0 0 22 12", aria_hidden="true")
