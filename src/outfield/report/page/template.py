"""The templates: every value is text and is escaped; only our own drawings, styles and script go in as they are.

Jinja comes with the extra ``outfield[report]``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from outfield.benchmark import BenchmarkRun, PrintedTable
from outfield.extras import library
from outfield.report.canvas import FAINT, FAR, ID, INK, MID, MUTED, NEAR, RULE, inline_svg
from outfield.report.figures import charts
from outfield.report.figures.chart import DETECTOR_LOOKS, SPARE_COLOURS, Chart, legend_entry, single
from outfield.report.figures.scores import THE_PAPER, several_fits
from outfield.report.table import visible

LONG = 36  # characters of a name that stays on one line


@dataclass(frozen=True)
class Section:
    """A part of the page, and the template that shows its content; ``below`` are links into it, as pairs of id and words."""

    id: str
    heading: str
    template: str
    content: Any
    below: Sequence[tuple[str, str]] = ()


@functools.cache
def environment() -> Any:
    """Jinja's environment: escapes everything, and refuses a name that a template misspells."""
    jinja2 = library("jinja2", extra="report")
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: asset(f"templates/{name}")), autoescape=True,
        undefined=jinja2.StrictUndefined, finalize=_printed, trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.filters["syllables"] = syllables
    made.tests["long"] = is_long
    return made


def render(template: str, **values: Any) -> str:
    """A template's text."""
    return str(environment().get_template(template).render(values))


def asset(name: str) -> str:
    """A file of this package as text."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def is_long(text: str) -> bool:
    """Whether a text may go over several lines though there is room for numbers beside it."""
    return len(text) > LONG or "\n" in text


def syllables(name: str) -> list[str]:
    """Where a name may go on in the next line of a narrow column.

    >>> syllables("EnergyCorrected"), syllables("near-OOD"), syllables("KNN")
    (['Energy', 'Corrected'], ['near-', 'OOD'], ['KNN'])
    """
    return re.split(r"(?<=[a-z])(?=[A-Z])|(?<=[-_/.,])(?=\w)", name)


def _printed(value: Any) -> Any:
    """Text as it is printed: nothing that no reader sees, and a number on one line with its sign of percent."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    lines = "\n".join(map(visible, value.split("\n")))
    return re.sub(r"(?<=\d) %", "\u00a0%", lines)


HEADINGS = {"sets": "FPR95 on each OOD set", "roc": "ROC curves", "histograms": "Scores", "features": "Features"}
HEADINGS |= {"risk": "Risk and coverage", "training": "Training of the energies", "fractions": "Fewer training rows"}
DARK_LINES = (
    *("#828894", "#e0860f", "#ca3517", "#2c68dc", "#f0abd5", "#835689", "#6fe07d", "#af95ff"),
    *("#3fb5c0", "#e08a52", "#a9bb63", "#ea7fae", "#8b97b3", "#d6b53c", "#8fd468", "#7fb4e6"),
)
DARK = {INK: "#e4e8f0", MUTED: "#9ba5b8", RULE: "#4a5364", FAINT: "#2a303d"}
DARK |= {ID: "#4d86f2", NEAR: "#e8952c", MID: "#cdb2f5", FAR: "#cf4459"}
DARK |= dict(zip((*(colour for colour, _ in DETECTOR_LOOKS.values()), *SPARE_COLOURS), DARK_LINES, strict=True))
"""What each colour of the figures becomes on a dark page."""
VARIABLES = {colour: f"var(--c{colour[1:]})" for colour in DARK}


def figure_sections(run: BenchmarkRun, drawn: Mapping[str, Sequence[tuple[str, str]]]) -> list[Section]:
    """A section for each kind of figure that there is; all charts of it but the first are folded away."""
    printed = any(f"{THE_PAPER}</li>" in chart for _, chart in drawn.get("sets", ()))
    there = {name: heading for name, heading in HEADINGS.items() if drawn.get(name)}
    content = {name: (name, drawn[name], several_fits(run), printed) for name in there}
    return [Section(name, heading, "figures.html", content[name]) for name, heading in there.items()]


def draw(run: BenchmarkRun, paper: PrintedTable | None) -> dict[str, list[tuple[str, str]]]:
    """Title and HTML of every chart that the run has data for, by kind."""
    return {
        name: [(chart.title, _drawn(chart, f"{name}-{number}")) for number, chart in enumerate(found)]
        for name, found in charts(run, paper).items()
    }


def _drawn(chart: Chart, prefix: str) -> str:
    def svg(figure: Any, label: str, name: str) -> str:
        return inline_svg(figure, label, f"{prefix}-{name}", VARIABLES)

    panels = [(one, svg(single(chart, one), one.alt, str(number))) for number, one in enumerate(chart.panels)]
    legend = [(svg(legend_entry(mark), "", f"mark{number}"), mark.label) for number, mark in enumerate(chart.marks)]
    flow = "down" if chart.down else "small" if chart.width < 3 else "fixed" if chart.columns < 4 else ""
    return render("chart.html", legend=legend, panels=panels, flow=flow, columns=chart.columns)


def colours() -> str:
    """Every colour of the figures as a CSS variable, light and dark."""
    pairs = (f"--c{light[1:]}: light-dark({light}, {dark})" for light, dark in DARK.items())
    return f":root {{ {'; '.join(pairs)} }}\n"
