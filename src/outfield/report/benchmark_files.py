"""A benchmark's run as files: tables in Markdown and LaTeX, records as CSV and JSON; and back from the JSON."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from outfield.benchmark.beside import beside
from outfield.benchmark.claims import check_claims
from outfield.benchmark.paper import Printed
from outfield.benchmark.protocol import Protocol
from outfield.benchmark.provenance import commit_in_words
from outfield.benchmark.records import BenchmarkRun, LowData, Record
from outfield.benchmark.summary import Cell, summarise
from outfield.errors import FileFormatError, InputError
from outfield.files import atomic
from outfield.files.paths import as_path
from outfield.images.catalogue import title
from outfield.report.benchmark_tables import all_tables, blocks, tables
from outfield.report.escaping import csv_cell, markdown, tex
from outfield.report.table import Table
from outfield.version import __version__

FORMAT = 1
RESULTS = "results.json"
WIDE = 6
"""Columns above which a table in LaTeX is shrunk."""


def write_tables(
    run: BenchmarkRun, folder: atomic.PathLike, *, claims: bool = True, more: Sequence[Table] = ()
) -> list[Path]:
    """Write ``tables.md``, ``tables.tex``, ``results.csv`` and ``results.json`` into ``folder``, each atomically.

    Args:
        run: with at least one record.
        folder: made if it is not there.
        claims: judge the paper's claims.
        more: tables that go below the others in ``tables.md``.

    Returns:
        The files.

    Raises:
        InputError: the run has no records.
        StorageError: the folder or a file in it cannot be written.
    """
    if not run.records:
        raise InputError("the run has no records; there is nothing to put into tables")
    folder = as_path(folder, "folder")
    atomic.make_folder(folder)
    texts = {
        "tables.md": tables_markdown(run, claims=claims, more=more),
        "tables.tex": tables_latex(run),
        "results.csv": records_csv(run),
        RESULTS: run_json(run, claims=claims),
    }
    for name, text in texts.items():
        # Half a character, as names of files may have it, becomes \udcff, which is what JSON calls it.
        atomic.write_bytes(folder / name, text.encode(errors="backslashreplace"))
    return [folder / name for name in texts]


def tables_markdown(run: BenchmarkRun, *, claims: bool = True, more: Sequence[Table] = ()) -> str:
    """Every table and the claims, and where the numbers come from, as Markdown; a note stands below the first it is about."""
    parts = [f"# Out-of-distribution detection on {markdown(title(run.protocol.id))}"]
    for table in (*all_tables(run, claims=claims).values(), *more):
        notes = map(markdown, table.notes)
        parts += [f"**{markdown(table.title)}**", table.markdown(), *(note for note in notes if note not in parts)]
    return "\n\n".join([*parts, _origin(run)]) + "\n"


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


def _origin(run: BenchmarkRun) -> str:
    """One line: version, commit, machine, time."""
    about = run.provenance
    versions, machine = about.get("versions", {}), about.get("machine", {})
    words = [f"Outfield {versions.get('outfield', __version__)}"]
    words += [commit_in_words(about)] if about.get("commit") else []
    words += [f"{name} {versions[name]}" for name in ("torch", "torchvision", "timm") if versions.get(name)]
    words += [str(machine.get("gpu") or f"{machine.get('cpus')} CPU cores")] if machine else []
    words += [str(about["started"])] if about.get("started") else []
    return ", ".join(words) + f". Everything else that it came from is in `{RESULTS}`."


def records_csv(run: BenchmarkRun) -> str:
    """All records, fractions, as CSV; no seed is an empty cell."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [field.name for field in fields(Record)], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in asdict(record).items()} for record in run.records)
    return buffer.getvalue()


def run_json(run: BenchmarkRun, *, claims: bool = True) -> str:
    """Records, aggregated tables with the paper's figures, claims and provenance; fractions."""
    judged = check_claims(run.records, run.protocol) if claims else []
    body: dict[str, Any] = {
        "format": FORMAT,
        "protocol": run.protocol.plain(),
        "accuracies": run.accuracies,
        "tables": {block.name: _block_json(run, block.name) for block in blocks(run)},
        "claims": [asdict(claim) | {"verdict": claim.verdict} for claim in judged],
        "paper": beside(run.protocol).reference,
        "provenance": run.provenance,
        "records": [asdict(record) for record in run.records],
    }
    if run.low_data:
        body["low_data"] = [asdict(one) for one in run.low_data]
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _block_json(run: BenchmarkRun, name: str) -> dict[str, Any]:
    block = next(block for block in blocks(run) if block.name == name)
    cells = summarise(run.records, block.columns)
    return {
        "columns": {column: list(sets) for column, sets in block.columns.items()},
        "detectors": {
            detector: {
                column: _cell_json(cells[detector].get(column), block.printed.get(detector, {}).get(column))
                for column in block.columns
            }
            for detector in block.detectors
        },
    }


def _cell_json(cell: Cell | None, printed: Printed | None) -> dict[str, Any]:
    figures = {} if printed is None else printed._asdict()
    paper = {name: None if figure is None else round(figure / 100, 4) for name, figure in figures.items()} or None
    return {"this_run": None if cell is None else asdict(cell), "paper": paper}


def read_run(source: atomic.PathLike) -> BenchmarkRun:
    """What ``results.json`` holds of a run: protocol, records, accuracies, provenance and low data.

    Scores, histories and views are not in it.

    Args:
        source: the file, or the folder that :func:`write_tables` wrote it to.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it is not one that :func:`write_tables` wrote.
    """
    path = as_path(source, "source")
    path = path / RESULTS if os.path.isdir(path) else path
    atomic.check_readable(path)
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            raise FileFormatError(f"{path} is of format {body['format']!r}; this version of Outfield reads {FORMAT}")
        sides: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in body["protocol"].items()
        }
        records = [Record(**record) for record in body["records"]]
        protocol = Protocol(**sides)
        found = {"accuracies": body["accuracies"], "provenance": body["provenance"]}
        return BenchmarkRun(protocol, records, **found, low_data=[LowData(**one) for one in body.get("low_data", ())])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path} does not hold the results of a benchmark ({error!r})") from error
