"""A benchmark's run as files: tables in Markdown and LaTeX, records as CSV and JSON, figures, the page; and back from JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from outfield.benchmark import BenchmarkRun, LowData, Protocol, Result, RiskCurves, check_claims, summarise
from outfield.benchmark import published_beside as beside
from outfield.errors import MALFORMED, FileFormatError, InputError, as_ours
from outfield.files import PathLike, as_path, check_readable, make_folder, write_bytes
from outfield.images import title
from outfield.report.benchmark_tables import (
    Block,
    all_tables,
    blocks,
    comparison_table,
    fraction_table,
    origin,
    risk_figures,
    risk_table,
    tables,
)
from outfield.report.table import Table, csv_text, markdown, tex

FORMAT = 1
RESULTS = "results.json"
WIDE = 6  # columns above which a table in LaTeX is shrunk
EVALUATED = ("detector", "ood", "fpr95", "auroc", "aupr_in", "aupr_out", "n_id", "n_ood")  # what `evaluate` tells


def write_report(
    run: BenchmarkRun, folder: PathLike, *, intro: str = "", notes: Sequence[str] = (), claims: bool = True
) -> list[Path]:
    """Write a run's tables, figures and page into a folder, which is made if need be, and give the files, the page first.

    The page begins with ``intro``, has ``notes`` below its first table, and judges the paper's claims if wanted: a run on few
    samples should not.

    Raises:
        InputError: the run has no records.
        StorageError: the folder or a file in it cannot be written.
    """
    from outfield.report.figures import write_figures
    from outfield.report.page import write_page

    folder, theirs = as_path(folder, "folder"), beside(run.protocol, {record.detector for record in run.records})
    answers = risk_table(run.risks(), f"{title(run.protocol.id)}, ")
    more = [*filter(None, (comparison_table(run), answers, fraction_table(run)))]
    written = write_tables(run, folder, claims=claims, more=more)
    written += write_figures(run, folder / "figures", theirs.rows)
    shown = [*all_tables(run, claims=claims).values(), *more]
    judged = check_claims(run.records, run.protocol) if claims else ()
    remarks = (*notes, *theirs.notes)
    write_page(run, shown, folder / "report.html", intro=intro, paper=theirs.rows, notes=remarks, claims=judged)
    return [folder / "report.html", *written]


def write_tables(run: BenchmarkRun, folder: PathLike, *, claims: bool = True, more: Sequence[Table] = ()) -> list[Path]:
    """Write ``tables.md`` (with more tables below), ``tables.tex``, ``results.csv`` and ``results.json``, each atomically."""
    if not run.records:
        raise InputError("the run has no records; there is nothing to put into tables")
    folder = as_path(folder, "folder")
    make_folder(folder)
    texts = {
        "tables.md": tables_markdown(run, claims=claims, more=more), "tables.tex": tables_latex(run),
        "results.csv": records_csv(run), RESULTS: run_json(run, claims=claims),
    }  # fmt: skip
    for name, text in texts.items():
        # Half a character, as names of files may have it, becomes \udcff, which is what JSON calls it.
        write_bytes(folder / name, text.encode(errors="backslashreplace"))
    return [folder / name for name in texts]


def tables_markdown(run: BenchmarkRun, *, claims: bool = True, more: Sequence[Table] = ()) -> str:
    """Every table and the claims, and where the numbers come from, as Markdown; a note stands below the first it is about."""
    parts = [f"# Out-of-distribution detection on {markdown(title(run.protocol.id))}"]
    for table in (*all_tables(run, claims=claims).values(), *more):
        notes = map(markdown, table.notes)
        parts += [f"**{markdown(table.title)}**", table.markdown(), *(note for note in notes if note not in parts)]
    parts.append(f"{origin(run.provenance)}. Everything else that it came from is in `{RESULTS}`.")
    return "\n\n".join(parts) + "\n"


def tables_latex(run: BenchmarkRun) -> str:
    """Every table as a LaTeX ``table``, for ``\\input`` in a document that uses booktabs and graphicx."""
    return "\n\n".join([r"% \usepackage{booktabs,graphicx}", *map(_float, tables(run).values())]) + "\n"


def _float(table: Table) -> str:
    """A table with its caption and notes; a wide one shrunk to the width of the text."""
    body = table.latex()
    if len(table.header) > WIDE:
        body = "\\resizebox{\\linewidth}{!}{%\n" + body + "}"
    notes = [rf"\par\smallskip {{\footnotesize {tex(note)}}}" for note in table.notes]
    caption = rf"\caption{{{tex(table.title)}}}"
    return "\n".join([r"\begin{table}[ht]", r"\centering\small", caption, body, *notes, r"\end{table}"])


def records_csv(run: BenchmarkRun) -> str:
    """All records, fractions, as CSV; no seed is an empty cell."""
    header = [field.name for field in fields(Result)]
    return csv_text(header, (asdict(record).values() for record in run.records), "\n")


def results_csv(results: Sequence[Result], risks: Mapping[str, RiskCurves] = {}) -> str:
    """What ``evaluate`` found, fractions, as CSV; risk and coverage, where they are known, in the rows of their detector."""
    rows = _evaluated(results, risks)
    return csv_text([*rows[0]] if rows else EVALUATED, (row.values() for row in rows))


def results_json(results: Sequence[Result], risks: Mapping[str, RiskCurves] = {}) -> str:
    """The same as JSON."""
    return json.dumps(_evaluated(results, risks), indent=2) + "\n"


def _evaluated(results: Sequence[Result], risks: Mapping[str, RiskCurves]) -> list[dict[str, Any]]:
    known = risk_figures(risks)
    return [{name: getattr(one, name) for name in EVALUATED} | known.get(one.detector, {}) for one in results]


def run_json(run: BenchmarkRun, *, claims: bool = True) -> str:
    """Records, aggregated tables with the paper's figures, claims and provenance; fractions."""
    judged = check_claims(run.records, run.protocol) if claims else []
    body: dict[str, Any] = {
        "format": FORMAT, "protocol": run.protocol.plain(), "accuracies": run.accuracies,
        "tables": {block.name: _block_json(run, block) for block in blocks(run)},
        "claims": [asdict(claim) | {"verdict": claim.verdict} for claim in judged],
        "paper": beside(run.protocol).reference, "provenance": run.provenance,
        "records": [asdict(record) for record in run.records],
    }  # fmt: skip
    more = {"risk": risk_figures(run.risks()), "low_data": [asdict(one) for one in run.low_data]}
    body |= {name: found for name, found in more.items() if found}
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _block_json(run: BenchmarkRun, block: Block) -> dict[str, Any]:
    cells = summarise(run.records, block.columns)

    def cell(detector: str, column: str) -> dict[str, Any]:
        mine, printed = cells[detector].get(column), block.printed.get(detector, {}).get(column)
        figures = () if printed is None else printed._asdict().items()
        paper = {name: None if figure is None else round(figure / 100, 4) for name, figure in figures}
        return {"this_run": None if mine is None else asdict(mine), "paper": paper or None}

    rows = {name: {column: cell(name, column) for column in block.columns} for name in block.detectors}
    return {"columns": {column: list(sets) for column, sets in block.columns.items()}, "detectors": rows}


def read_run(source: PathLike) -> BenchmarkRun:
    """What ``results.json``, or the folder it lies in, holds of a run: all but scores, histories and layouts.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it is not one that :func:`write_tables` wrote.
    """
    path = as_path(source, "source")
    path = path / RESULTS if os.path.isdir(path) else path
    check_readable(path)
    with as_ours(f"{path} does not hold the results of a benchmark", FileFormatError, *MALFORMED):
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            raise ValueError(f"it is of format {body['format']!r}; this version of Outfield reads {FORMAT}")
        records, low_data = (
            [Result(**one) for one in body["records"]],
            [LowData(**one) for one in body.get("low_data", ())],
        )
        found = {"accuracies": body["accuracies"], "provenance": body["provenance"]}
        return BenchmarkRun(Protocol(**body["protocol"]), records, **found, low_data=low_data)
