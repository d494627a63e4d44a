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
from outfield.report.page.template import draw


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


def figures_of(page: str) -> dict[str, list[tuple[str, str]]]:
    """Title and HTML of the charts of a page, by section."""
    found = {}
    for name, section in re.findall(r'<section id="(\w+)">(.*?)</section>', page, re.DOTALL):
        titles = re.findall(r"<(?:h3|summary)>(.*?)</(?:h3|summary)>", section, re.DOTALL)
        charts = re.findall(r'<div class="chart">.*?</div>\s*</div>', section, re.DOTALL)
        names = map(html.unescape, titles if len(titles) >= len(charts) else [""] * len(charts))
        if charts:
            found[name] = list(zip(names, charts, strict=False))
    return found


if __name__ == "__main__":
    main()
