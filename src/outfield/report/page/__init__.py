"""One self-contained HTML page of a benchmark: results, figures, tables and where the numbers come from.

The page asks for nothing from outside, and a policy in its head keeps it from doing so. It reads without scripts; with them
its tables can be sorted. Figures are SVG whose colours are the page's, so that light and dark suit them alike. Everything that
it shows goes through templates that escape it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from outfield.benchmark import (
    AVERAGE,
    FAILS,
    HOLDS,
    PARTLY,
    UNTESTED,
    BenchmarkRun,
    Claim,
    Columns,
    PrintedTable,
    Summary,
    level_columns,
    present,
    published,
    summarise,
)
from outfield.benchmark import published_beside as beside
from outfield.files import PathLike, write_bytes
from outfield.images import title as set_title
from outfield.percent import counted, in_percent, percent
from outfield.report.benchmark_tables import notes_on_sets, origin
from outfield.report.figures.chart import detectors
from outfield.report.page.grids import ASCENDING, DESCENDING, provenance_section, tables_section
from outfield.report.page.template import Section, asset, colours, draw, figure_sections, render
from outfield.report.table import Table
from outfield.version import __version__


def write_page(run: BenchmarkRun, tables: Sequence[Table], path: PathLike, **more: Any) -> None:
    """Write the page of a run to ``path``, atomically; for the other arguments see :func:`page`."""
    write_bytes(path, page(run, tables, **more).encode())


def page(
    run: BenchmarkRun,
    tables: Sequence[Table] = (),
    *,
    intro: str = "",
    paper: PrintedTable | None = None,
    notes: Sequence[str] = (),
    claims: Sequence[Claim] = (),
    drawn: Mapping[str, Sequence[tuple[str, str]]] | None = None,
) -> str:
    """The page as text, without parts that there is no data for; ``drawn`` are titles and HTML of charts, by kind."""
    of_id = set_title(run.protocol.id)
    found = [
        results_section(run, paper or {}, notes), *figure_sections(run, draw(run, paper) if drawn is None else drawn),
        tables_section(tables, of_id), provenance_section(run.provenance),
    ]  # fmt: skip
    judged = (f"table-{number}" for number, table in enumerate(tables, 1) if table.header[:1] == ["claim"])
    return render(
        "page.html", version=__version__, styles=colours() + asset("page.css"), script=asset("page.js"),
        heading=f"{of_id}: out-of-distribution detection", lead=_lead(run),
        intro=[text for text in re.split(r"\n\s*\n", intro.strip()) if text], facts=facts(run, paper or {}),
        verdicts=[(claim, VERDICTS[claim.verdict]) for claim in claims], verdicts_at=next(judged, None),
        sections=[*filter(None, found)], origin=origin(run.provenance),
    )  # fmt: skip


def _lead(run: BenchmarkRun) -> str:
    """How much was run."""
    found, seeds = {record.backbone for record in run.records}, {record.seed for record in run.records} - {None}
    sizes = {"detector": detectors(run), "backbone": found, "OOD set": present(run.records, run.protocol)}
    counts = [counted(len(those), noun) for noun, those in sizes.items()]
    counts += [f"{counted(len(seeds), 'seed')} of each learned detector"] * bool(seeds)
    return f"{', '.join(counts)}."


METHOD = "EnergyCorrected"  # the paper's method; its row is marked
METRICS = {"fpr95": ("FPR95 ↓", min, ASCENDING), "auroc": ("AUROC ↑", max, DESCENDING)}
VERDICTS = {HOLDS: "good", PARTLY: "mixed", FAILS: "bad", UNTESTED: "open"}  # how each looks


def facts(run: BenchmarkRun, paper: PrintedTable) -> list[tuple[str, str, str]]:
    """The answer at a glance, as words, a figure and a detail: accuracy, the best two averages, the method's own."""
    found: list[tuple[str, str, str]] = []
    if values := run.accuracies.values():
        least, most = in_percent(min(values)), percent(max(values))
        who = next(iter(run.accuracies)) if len(values) == 1 else counted(len(values), "backbone")
        found.append(("Accuracy on ID test data", most if most.startswith(least) else f"{least}–{most}", who))
    sets = present(run.records, run.protocol)
    means = summarise(run.records, {AVERAGE: sets})
    averages = {name: cells[AVERAGE] for name, cells in means.items() if AVERAGE in cells}
    for metric, words in (("fpr95", "Lowest average FPR95"), ("auroc", "Highest average AUROC")):
        best = METRICS[metric][1](averages, key=lambda name: getattr(averages[name], metric).mean)
        found.append((words, percent(getattr(averages[best], metric).mean), best))
    if METHOD in averages:
        printed = published(paper, {AVERAGE: sets}, run.protocol).get(METHOD, {}).get(AVERAGE)
        detail = "FPR95 / AUROC in percent"
        if printed is not None and printed.fpr95 is not None:
            detail += f"; the paper: {printed.fpr95:.1f} / {printed.auroc:.1f}"
        fpr95, auroc = (in_percent(getattr(averages[METHOD], metric).mean) for metric in METRICS)
        found.append((f"{METHOD}, average", f"{fpr95} / {auroc}", detail))
    return found


def results_section(run: BenchmarkRun, paper: PrintedTable, notes: Sequence[str]) -> Section:
    """The first table."""
    columns = level_columns(run.records, run.protocol)
    cells = summarise(run.records, columns)
    printed = {name: row for name, row in published(paper, columns, run.protocol).items() if name in cells}
    titles = {column: ", ".join(map(set_title, sets)) for column, sets in columns.items()}
    groups = [(f"{level}-OOD", level, sets) for level, sets in titles.items() if level != AVERAGE]
    listed = "; ".join(f"{level}: {sets}" for level, _, sets in groups)
    table = {
        "of_id": set_title(run.protocol.id), "over": _over(cells), "method": METHOD,
        "printed": beside(run.protocol).words if any(printed.values()) else "",
        "groups": [*groups, ("Average", "", titles[AVERAGE])],
        "columns": [(metric, words, first) for metric, (words, _, first) in METRICS.items()] * len(columns),
        "rows": [(name, _row(name, cells, columns, printed)) for name in cells],
        "notes": [f"{listed}.", *notes_on_sets(run, any(printed.values())), *notes],
    }  # fmt: skip
    return Section("results", "Results at a glance", "results.html", table)


def _over(cells: Summary) -> str:
    """What the figures after ± are the spread over; nothing where there is none."""
    spreads = [cell.fpr95 for mine in cells.values() for cell in mine.values()]
    if any(spread.over_backbones is not None for spread in spreads):
        return "backbones"
    return "seeds" if any(spread.over_seeds is not None for spread in spreads) else ""


def _row(name: str, cells: Summary, columns: Columns, printed: PrintedTable) -> list[dict[str, Any]]:
    """Cells of the first table: a mean, what it varies by, the paper's figure below, and how good it is, from 0 to 1."""
    shown: list[dict[str, Any]] = []
    for column, (metric, (_, best, _)) in itertools.product(columns, METRICS.items()):
        if column not in cells[name]:
            shown.append({"metric": metric, "value": None, "text": "–", "best": False, "spread": "", "printed": ""})
            continue
        means = [getattr(mine[column], metric).mean for mine in cells.values() if column in mine]
        spread, figure = getattr(cells[name][column], metric), getattr(printed.get(name, {}).get(column), metric, None)
        varies = spread.over_seeds if spread.over_backbones is None else spread.over_backbones
        good = spread.mean - min(means) if best is max else max(means) - spread.mean
        shown.append({
            "metric": metric, "value": spread.mean, "text": in_percent(spread.mean),
            "spread": "" if varies is None else f"±{in_percent(varies)}", "printed": "" if figure is None else f"{figure:.1f}",
            "best": len(means) > 1 and in_percent(spread.mean) == in_percent(best(means)),
            "heat": good / (max(means) - min(means) or 1.0),
        })  # fmt: skip
    return shown
