"""One self-contained HTML page of a benchmark: results, figures, tables and where the numbers come from.

The page asks for nothing from outside, and a policy in its head keeps it from doing so. It reads without scripts; with them
its tables can be sorted. Figures are SVG whose colours are the page's, so that light and dark suit them alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from outfield.benchmark import BenchmarkRun
from outfield.benchmark.summary import present
from outfield.files.atomic import PathLike, write_bytes
from outfield.images.catalogue import title as set_title
from outfield.report.figures import Paper
from outfield.report.figures.chart import backbones, detectors
from outfield.report.page.charts import figure_sections
from outfield.report.page.markup import Html, element
from outfield.report.page.provenance import provenance_section
from outfield.report.page.results import facts, results_section
from outfield.report.page.section import Section, count
from outfield.report.page.tables import tables_section
from outfield.report.page.theme import colours
from outfield.report.table import Table
from outfield.version import __version__

__all__ = ["page", "write_page"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def write_page(
    run: BenchmarkRun,
    tables: Sequence[Table],
    path: PathLike,
    *,
    intro: str = "",
    paper: Paper | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write the page of a run to ``path``, atomically.

    Args:
        run: the benchmark; parts that it has no data for are left out.
        tables: what to show below the figures.
        path: an ``.html`` file.
        intro: plain text to begin with; an empty line begins a paragraph.
        paper: published (FPR95, AUROC) in percent by detector, then by OOD set, level or "average".
        notes: lines to go below the first table.

    Raises:
        StorageError: the file cannot be written.
    """
    write_bytes(path, page(run, tables, intro=intro, paper=paper, notes=notes).encode())


def page(
    run: BenchmarkRun,
    tables: Sequence[Table] = (),
    *,
    intro: str = "",
    paper: Paper | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The page as text; see :func:`write_page`."""
    heading = f"{set_title(run.protocol.id)}: out-of-distribution detection"
    found = [
        results_section(run, paper or {}, notes),
        *figure_sections(run, paper),
        tables_section(tables, set_title(run.protocol.id)),
        provenance_section(run.provenance),
    ]
    sections = [section for section in found if section is not None]
    body = element(
        "div",
        _contents(sections),
        element("main", _head(run, heading, intro, paper or {}), *map(_section, sections), _foot(run), id="main"),
        class_="frame",
    )
    skip = element("a", "Skip to the results", class_="skip", href="#main")
    script = element("script", Html(_asset("page.js")))
    return f'<!DOCTYPE html>\n<html lang="en">{_html_head(heading)}{element("body", skip, body, script)}</html>\n'


def _html_head(heading: str) -> Html:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"outfield {__version__}"),
        element("title", heading),
        element("style", Html(colours() + _asset("page.css"))),
    )


def _asset(name: str) -> str:
    return files("outfield.report.page").joinpath(name).read_text(encoding="utf-8")


def _contents(sections: Sequence[Section]) -> Html:
    def item(section: Section) -> Html:
        below = [element("li", element("a", words, href=f"#{anchor}")) for anchor, words in section.below]
        link = element("a", section.heading, href=f"#{section.id}")
        return element("li", link, element("ul", *below) if below else None)

    return element(
        "nav",
        element("p", element("a", "Outfield", href="#main"), class_="brand"),
        element("ul", *map(item, sections)),
        element("button", "Dark", id="theme", type="button", title="Light or dark", hidden=True),
        class_="contents",
        aria_label="Contents",
    )


def _section(section: Section) -> Html:
    return element("section", element("h2", section.heading), section.body, id=section.id)


def _head(run: BenchmarkRun, heading: str, intro: str, paper: Paper) -> Html:
    sets = present(run.records, run.protocol)
    counts = [
        count(len(detectors(run)), "detector"),
        count(len(_backbones(run)), "backbone"),
        count(len(sets), "OOD set"),
    ]
    seeds = {record.seed for record in run.records if record.seed is not None}
    if seeds:
        counts.append(f"{count(len(seeds), 'seed')} of each learned detector")
    paragraphs = [element("p", text) for text in re.split(r"\n\s*\n", intro.strip()) if text]
    return element(
        "header",
        element("p", "Benchmark", class_="eyebrow"),
        element("h1", heading),
        element("p", f"{', '.join(counts)}.", class_="lead") if run.records else None,
        *paragraphs,
        facts(run, paper),
    )


def _backbones(run: BenchmarkRun) -> list[str]:
    return backbones([*(record.backbone for record in run.records), *run.accuracies])


def _foot(run: BenchmarkRun) -> Html:
    about = run.provenance
    words = [f"Made with Outfield {about.get('versions', {}).get('outfield', __version__)}"]
    if about.get("commit"):
        words.append(f"commit {str(about['commit'])[:12]}{' with changes' if about.get('dirty') else ''}")
    if about.get("started"):
        words.append(str(about["started"]).replace("T", " ").replace("+00:00", " UTC"))
    return element("footer", ", ".join(words) + ".")
