"""One self-contained HTML page of a benchmark: results, figures, tables and where the numbers come from.

The page asks for nothing from outside, and a policy in its head keeps it from doing so. It reads without scripts; with them
its tables can be sorted. Figures are SVG whose colours are the page's, so that light and dark suit them alike. Everything that
it shows goes through templates that escape it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from outfield.benchmark import BenchmarkRun, Claim, present
from outfield.files import PathLike, write_bytes
from outfield.images import title as set_title
from outfield.report.figures.chart import Paper, detectors, unique
from outfield.report.page.charts import Drawings, colours, draw, figure_sections
from outfield.report.page.grids import origin, provenance_section, tables_section
from outfield.report.page.headline import facts, results_section, verdicts
from outfield.report.page.template import asset, count, render
from outfield.report.table import Table
from outfield.version import __version__


def write_page(run: BenchmarkRun, tables: Sequence[Table], path: PathLike, **more: Any) -> None:
    """Write the page of a run to ``path``, atomically; for the other arguments see :func:`page`.

    Raises:
        StorageError: The file cannot be written.
        MissingExtraError: Matplotlib or Jinja is not installed.
    """
    write_bytes(path, page(run, tables, **more).encode())


def page(
    run: BenchmarkRun,
    tables: Sequence[Table] = (),
    *,
    intro: str = "",
    paper: Paper | None = None,
    notes: Sequence[str] = (),
    claims: Sequence[Claim] = (),
    drawn: Mapping[str, Sequence[Drawings]] | None = None,
) -> str:
    """The page as text.

    Args:
        run: The benchmark; parts that it has no data for are left out.
        tables: What to show below the figures.
        intro: Plain text to begin with; an empty line begins a paragraph.
        paper: Published (FPR95, AUROC) in percent by detector, then by OOD set, level or "average".
        notes: Lines to go below the first table.
        claims: The paper's, judged; their verdicts stand at the top.
        drawn: Figures that are drawn already, by section, instead of those that the run has data for.
    """
    of_id = set_title(run.protocol.id)
    found = [
        results_section(run, paper or {}, notes),
        *figure_sections(run, draw(run, paper) if drawn is None else drawn),
        tables_section(tables, of_id),
        provenance_section(run.provenance),
    ]
    judged = (f"table-{number}" for number, table in enumerate(tables, 1) if table.header[:1] == ["claim"])
    return render(
        "page.html",
        version=__version__,
        styles=colours() + asset("page.css"),
        script=asset("page.js"),
        heading=f"{of_id}: out-of-distribution detection",
        lead=_lead(run),
        intro=[text for text in re.split(r"\n\s*\n", intro.strip()) if text],
        facts=facts(run, paper or {}),
        verdicts=verdicts(claims),
        verdicts_at=next(judged, None),
        sections=[section for section in found if section is not None],
        origin=origin(run.provenance),
    )


def _lead(run: BenchmarkRun) -> str:
    """How much was run; nothing for a run without records."""
    if not run.records:
        return ""
    found = unique([*(record.backbone for record in run.records), *run.accuracies])
    counts = [
        count(len(detectors(run)), "detector"),
        count(len(found), "backbone"),
        count(len(present(run.records, run.protocol)), "OOD set"),
    ]
    seeds = {record.seed for record in run.records if record.seed is not None}
    if seeds:
        counts.append(f"{count(len(seeds), 'seed')} of each learned detector")
    return f"{', '.join(counts)}."
