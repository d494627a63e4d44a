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
from outfield.report.canvas import FAINT, FAR, ID, INK, MUTED, NEAR, RULE, inline_svg
from outfield.report.figures import charts
from outfield.report.figures.chart import DETECTOR_LOOKS, LEVEL_COLOURS, LEVEL_INKS, SPARE_COLOURS, Chart, Mark, single
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
        loader=jinja2.FunctionLoader(lambda name: asset(f"templates/{name}")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
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


def count(number: int, noun: str) -> str:
    """A number and what it counts.

    >>> count(1, "set"), count(2, "set")
    ('1 set', '2 sets')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _printed(value: Any) -> Any:
    """Text as it is printed: nothing that no reader sees, and a number on one line with its sign of percent."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    lines = "\n".join(map(visible, value.split("\n")))
    return re.sub(r"(?<=\d) %", "\u00a0%", lines)


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
HEADINGS = {"sets": "FPR95 on each OOD set", "roc": "ROC curves", "histograms": "Scores", "features": "Features"}
HEADINGS |= {"training": "Training of the energies", "fractions": "Fewer training rows"}
DARK_LINES = (
    *("#828894", "#e0860f", "#ca3517", "#2c68dc", "#f0abd5", "#835689", "#6fe07d", "#af95ff"),
    *("#3fb5c0", "#e08a52", "#a9bb63", "#ea7fae", "#8b97b3", "#d6b53c", "#8fd468", "#7fb4e6"),
)
DARK = {
    INK: "#e4e8f0",
    MUTED: "#9ba5b8",
    RULE: "#4a5364",
    FAINT: "#2a303d",
    ID: "#4d86f2",
    NEAR: "#e8952c",
    LEVEL_COLOURS["mid"]: "#cdb2f5",
    FAR: "#cf4459",
    **dict(zip((*(colour for colour, _ in DETECTOR_LOOKS.values()), *SPARE_COLOURS), DARK_LINES, strict=True)),
}
"""What each colour of the figures becomes on a dark page."""
THEME = {
    "page": ("#f8f9fb", "#11141b"),
    "card": ("#ffffff", "#171b24"),
    "ink": (INK, DARK[INK]),
    "soft": ("#596275", "#9ba5b8"),
    "line": ("#dfe3ea", "#2b3140"),
    "hair": ("#eef0f4", "#222835"),
    "accent": ("#1f5fd0", "#7aa8ff"),
    "tint": ("47 111 222", "91 149 245"),
    "near-ink": (LEVEL_INKS["near"], "#f0ab55"),
    "mid-ink": (LEVEL_INKS["mid"], "#cdb2f5"),
    "far-ink": (LEVEL_INKS["far"], "#f07f8f"),
    "good": ("#1a6b3c", "#6fd39b"),
    "mixed": ("#8a5200", "#f0b860"),
    "bad": ("#b02f40", "#f28b98"),
    "open": ("#596275", "#9ba5b8"),
}
"""The page's own colours, light and dark."""


@dataclass(frozen=True)
class Drawings:
    """A chart as the page shows it; ``kind`` says how its panels flow.

    The legend has of each entry a path, how it is painted, and its words; a panel its title and note, its level, and the SVG.
    """

    title: str
    legend: Sequence[tuple[str, str, str]]
    panels: Sequence[tuple[str, str, str, str]]
    kind: str = ""
    columns: int = 3


def figure_sections(run: BenchmarkRun, drawn: Mapping[str, Sequence[Drawings]]) -> list[Section]:
    """A section for each kind of figure that there is; all charts of it but the first are folded away."""
    several = several_fits(run)
    printed = any(label == THE_PAPER for chart in drawn.get("sets", ()) for _, _, label in chart.legend)
    return [
        Section(name, heading, "figures.html", (name, drawn[name], several, printed))
        for name, heading in HEADINGS.items()
        if drawn.get(name)
    ]


def draw(run: BenchmarkRun, paper: PrintedTable | None) -> dict[str, list[Drawings]]:
    """Every chart that the run has data for, by kind."""
    return {
        name: [_drawings(chart, f"{name}-{number}") for number, chart in enumerate(found)]
        for name, found in charts(run, paper).items()
    }


def _drawings(chart: Chart, prefix: str) -> Drawings:
    colours = {colour: f"var({variable(colour)})" for colour in DARK}
    drawn = [inline_svg(single(chart, one), one.alt, f"{prefix}-{i}", colours) for i, one in enumerate(chart.panels)]
    panels = [(one.title, one.note, one.level, svg) for one, svg in zip(chart.panels, drawn, strict=True)]
    kind = "down" if chart.down else "small" if chart.width < 3 else "fixed" if chart.columns < 4 else ""
    return Drawings(chart.title, [(*_painted(mark), mark.label) for mark in chart.marks], panels, kind, chart.columns)


def _painted(mark: Mark) -> tuple[str, str]:
    """The path of a mark in a legend, and how it is painted."""
    colour = f"var({variable(mark.colour)})"
    if mark.kind == "area":
        return SHAPES["area"], f"fill:{colour};opacity:.65"
    if mark.kind == "ring":
        return SHAPES["o"], f"fill:none;stroke:{colour}"
    if mark.kind == "dot":
        shape = SHAPES.get(mark.form)
        return (shape, f"fill:{colour}") if shape else ("M11 0v12", f"stroke:{colour};stroke-width:1.5")
    dashes = f";stroke-dasharray:{DASHES[mark.form]}" if mark.form in DASHES else ""
    return "M0 6h22", f"fill:none;stroke:{colour};stroke-width:{1 if mark.kind == 'thin' else 2}{dashes}"


def variable(colour: str) -> str:
    """Name of the CSS variable that stands for a colour of the figures."""
    return f"--c{colour[1:]}"


def colours() -> str:
    """Every colour as a CSS variable: light, dark where the reader or the system wants that, light again on paper."""
    pairs = {f"--{name}": pair for name, pair in THEME.items()} | {variable(c): (c, dark) for c, dark in DARK.items()}
    light, dark = (";".join(f"{name}:{pair[which]}" for name, pair in pairs.items()) for which in (0, 1))
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}\n"
    )
