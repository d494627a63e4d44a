"""A benchmark's results as files, and the first table on the terminal."""

from __future__ import annotations

from pathlib import Path

from outfield import paper
from outfield.benchmark import BenchmarkRun
from outfield.benchmark_files import write_tables
from outfield.benchmark_tables import claims_table, tables
from outfield.console import err, out, plain, print_table
from outfield.figures import write_figures
from outfield.page import write_page


def write_results(run: BenchmarkRun, folder: Path, intro: str = "", notes: tuple[str, ...] = ()) -> None:
    """Write the run's tables, figures and page into ``folder``; print the tables.

    Args:
        run: the results.
        folder: where; it exists.
        intro: first words of the page.
        notes: lines to go below the page's first table.
    """
    made = tables(run)
    claims = claims_table(run)
    printed = _published(run)
    written = [*write_tables(run, folder), *write_figures(run, folder / "figures", printed)]
    shown = [*made.values(), *([] if claims is None else [claims])]
    write_page(
        run,
        shown,
        folder / "report.html",
        intro=intro,
        paper=printed,
        notes=(*notes, *paper.REMARKS.get(run.protocol.id, ())),
    )
    for name in ("levels", "ablation"):
        if name in made:
            print_table(made[name])
            for note in made[name].notes:
                out.print(plain(note))
            out.print()
    err.print(
        plain(f"{folder / 'report.html'}; beside it {', '.join(str(path.relative_to(folder)) for path in written)}")
    )


def _published(run: BenchmarkRun) -> dict[str, dict[str, tuple[float, float]]]:
    """The paper's figures by detector, then by OOD set and level."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for source in (paper.DETAILED, paper.ABLATION, paper.TABLE_1):
        for name, cells in source.get(run.protocol.id, {}).items():
            found.setdefault(name, {}).update(cells)
    return found
