"""A benchmark's results as files, and its first tables on the terminal."""

from __future__ import annotations

from pathlib import Path

from outfield.benchmark import BenchmarkRun
from outfield.cli.console import err, out, plain, print_table
from outfield.report.benchmark_tables import tables
from outfield.report.write import write_report


def write_results(
    run: BenchmarkRun, folder: Path, intro: str = "", notes: tuple[str, ...] = (), claims: bool = True
) -> None:
    """Write the run's tables, figures and page into ``folder``; print the tables."""
    page, *others = write_report(run, folder, intro=intro, notes=notes, claims=claims)
    for name, table in tables(run).items():
        if name in ("levels", "ablation"):
            print_table(table)
            for note in table.notes:
                out.print(plain(note))
            out.print()
    err.print(plain(f"{page}; beside it {', '.join(str(path.relative_to(folder)) for path in others)}"))
