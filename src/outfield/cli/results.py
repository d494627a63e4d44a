"""A benchmark's results as files, and its first tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outfield.cli.messages import log
from outfield.cli.places import Input, Output, check_places
from outfield.cli.tables import print_table, say
from outfield.progress import bar

if TYPE_CHECKING:
    from outfield.benchmark import BenchmarkRun

RUN = "run.safetensors"
FILES = ("report.html", "tables.md", "tables.tex", "results.csv", "results.json")
"""What is written beside the run, and figures in a folder of their own."""


def check_folder(inputs: Sequence[Input], folder: Path) -> None:
    """Find out before long work whether a report can be made, and written into ``folder``.

    Raises:
        MissingExtraError: A library is not installed that a report needs.
        InputError: A file of the report would take the place of an input.
        StorageError: The folder cannot be made, or not written to.
    """
    from outfield.extras import check_installed

    check_installed("report", "matplotlib", "jinja2")
    check_places(inputs, [Output("--out", folder / name, makes_folder=True) for name in FILES])


def write_results(
    run: BenchmarkRun, folder: Path, intro: str = "", notes: tuple[str, ...] = (), claims: bool = True
) -> None:
    """Write the run's tables, figures and page into ``folder``; print the tables."""
    from outfield.report.benchmark_tables import tables
    from outfield.report.fractions import fraction_table
    from outfield.report.write import write_report

    with bar("drawing the report"):
        page, *others = write_report(run, folder, intro=intro, notes=notes, claims=claims)
    shown = [table for name, table in tables(run).items() if name in ("levels", "ablation")]
    fewer_rows = fraction_table(run)
    for table in shown if fewer_rows is None else [*shown, fewer_rows]:
        print_table(table)
        for note in table.notes:
            say(note)
        say()
    log.info("%s; beside it %s", page, ", ".join(str(path.relative_to(folder)) for path in others))
