"""Everything that can be made from a benchmark's results, written into one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outfield.benchmark import BenchmarkRun
from outfield.benchmark.beside import beside
from outfield.benchmark.claims import check_claims
from outfield.files.atomic import PathLike
from outfield.files.paths import as_path
from outfield.report.benchmark_files import write_tables
from outfield.report.benchmark_tables import all_tables
from outfield.report.comparison import comparison_table
from outfield.report.figures import Paper, write_figures
from outfield.report.fractions import fraction_table
from outfield.report.page import write_page


def write_report(
    run: BenchmarkRun, folder: PathLike, *, intro: str = "", notes: Sequence[str] = (), claims: bool = True
) -> list[Path]:
    """Write a run's tables, figures and page.

    Args:
        run: the results.
        folder: where; made if it is not there.
        intro: first words of the page.
        notes: lines to go below the page's first table.
        claims: judge the paper's claims; a run on few samples should not.

    Returns:
        The files, the page first.

    Raises:
        InputError: the run has no records.
        StorageError: the folder or a file in it cannot be written.
    """
    folder, printed = as_path(folder, "folder"), published(run)
    more = [table for table in (comparison_table(run), fraction_table(run)) if table is not None]
    written = [*write_tables(run, folder, claims=claims, more=more), *write_figures(run, folder / "figures", printed)]
    shown = [*all_tables(run, claims=claims).values(), *more]
    judged = check_claims(run.records, run.protocol) if claims else ()
    remarks = (*notes, *beside(run.protocol, {record.detector for record in run.records}).notes)
    write_page(run, shown, folder / "report.html", intro=intro, paper=printed, notes=remarks, claims=judged)
    return [folder / "report.html", *written]


def published(run: BenchmarkRun) -> Paper:
    """The paper's figures, or OpenOOD's, by detector, then by OOD set and level."""
    return beside(run.protocol).rows
