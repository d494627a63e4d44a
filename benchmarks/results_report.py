"""Make the HTML report of published results again, from their records and from the figures of the report that is there.

    python benchmarks/results_report.py docs/results/cifar10

The records of a full run are in the repository, its scores are not, so figures that are drawn from scores are taken over as they
are, while words, tables, verdicts and whatever can be drawn from records are made anew.
"""

from __future__ import annotations

import argparse
import html
import re
from pathlib import Path

from outfield.benchmark import check_claims, published_beside
from outfield.report import read_run
from outfield.report.benchmark_tables import all_tables
from outfield.report.page import write_page
from outfield.report.page.template import SHAPES, Drawings, draw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    for folder in parser.parse_args().folders:
        remake(folder)
        print(folder / "report.html")


def remake(folder: Path) -> None:
    """Write the report of a folder again."""
    run, path = read_run(folder), folder / "report.html"
    theirs = published_beside(run.protocol, {record.detector for record in run.records})
    drawn = figures_of(path.read_text()) | {name: charts for name, charts in draw(run, theirs.rows).items() if charts}
    write_page(
        run,
        list(all_tables(run).values()),
        path,
        paper=theirs.rows,
        notes=theirs.notes,
        claims=check_claims(run.records, run.protocol),
        drawn=drawn,
    )


def figures_of(page: str) -> dict[str, list[Drawings]]:
    """The charts of a page, by section."""
    found = {}
    for name, section in re.findall(r'<section id="(\w+)">(.*?)</section>', page, re.DOTALL):
        titles = re.findall(r"<(?:h3|summary)>(.*?)</(?:h3|summary)>", section, re.DOTALL)
        charts = section.split('<div class="chart">')[1:]
        names = titles if len(titles) >= len(charts) else [""] * len(charts)
        if charts:
            found[name] = [_chart(title, text) for title, text in zip(names, charts, strict=False)]
    return found


def _chart(title: str, text: str) -> Drawings:
    entries = re.findall(r"<li><svg[^>]*>(.*?)</svg>(.*?)</li>", text, re.DOTALL)
    panels = re.findall(r'<figure class="panel ?(\w*)">(.*?)</figure>', text, re.DOTALL)
    where = re.search(r'<div class="panels ?(\w*)" style="--columns:(\d+)', text)
    assert where is not None, "a chart without panels"
    legend = [_entry(shape, html.unescape(label)) for shape, label in entries]
    return Drawings(html.unescape(title), legend, [_panel(*panel) for panel in panels], where[1], int(where[2]))


def _entry(shape: str, label: str) -> tuple[str, str, str]:
    path, style = re.search(r' d="([^"]+)"', shape), re.search(r'style="([^"]+)"', shape)
    assert style is not None, f"{label} has no style"
    return SHAPES["area"] if path is None else path[1], style[1], label


def _panel(level: str, text: str) -> tuple[str, str, str, str]:
    title, note = (
        re.search(r"<b>(.*?)</b>", text, re.DOTALL),
        re.search(r"<span>(.*?)</span></figcaption>", text, re.DOTALL),
    )
    svg = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert title is not None, "a panel without a title"
    assert svg is not None, "a panel without a drawing"
    return html.unescape(title[1]), "" if note is None else html.unescape(note[1]), level, svg[0]


if __name__ == "__main__":
    main()
