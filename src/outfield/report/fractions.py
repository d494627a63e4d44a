"""What becomes of detectors that are fitted on fewer training rows, as a table."""

from __future__ import annotations

from outfield.benchmark.fractions import FractionCell, fraction_cells
from outfield.benchmark.records import BenchmarkRun
from outfield.images.catalogue import title
from outfield.percent import in_percent
from outfield.report.table import Table


def fraction_table(run: BenchmarkRun) -> Table | None:
    """FPR95 and AUROC of every detector by the fraction of training rows that it was fitted on; None where there are none.

    The best of each column are in bold. A dash stands for a detector that could not be fitted on so few rows, and a note says
    why.
    """
    cells = fraction_cells(run)
    if not cells:
        return None
    fractions = sorted({fraction for mine in cells.values() for fraction in mine})
    rows = [[name, *(_text(mine.get(fraction)) for fraction in fractions)] for name, mine in cells.items()]
    best = {
        (row, column, part)
        for column in range(1, len(fractions) + 1)
        for part in (0, 1)
        for row in _best([one[column] for one in rows], part)
    }
    name = f"{title(run.protocol.id)}, fewer training rows: FPR95 ↓ / AUROC ↑ in percent, by the share of the rows of each class"
    header = ["detector", *(f"{100 * fraction:g} %" for fraction in fractions)]
    return Table(name, header, rows, 1, frozenset(best), _notes(cells))


def _text(cell: FractionCell | None) -> str:
    if cell is None:
        return ""
    return "–" if cell.fpr95 is None or cell.auroc is None else f"{in_percent(cell.fpr95)} / {in_percent(cell.auroc)}"


def _best(cells: list[str], part: int) -> list[int]:
    """Rows of the lowest FPR95 (part 0) or highest AUROC (part 1), as printed; none where there is nothing to choose from."""
    values = {row: float(cell.split(" / ")[part]) for row, cell in enumerate(cells) if " / " in cell}
    best = (max if part else min)(values.values(), default=0.0)
    return [row for row, value in values.items() if value == best] if len(values) > 1 else []


def _notes(cells: dict[str, dict[float, FractionCell]]) -> tuple[str, ...]:
    """Which detectors could not be fitted on how little, and why."""
    notes = [
        "Means over all OOD sets, seeds and backbones. The rows of a smaller share are among those of a larger one."
    ]
    for name, mine in cells.items():
        failed = {fraction: cell for fraction, cell in mine.items() if cell.reasons}
        if failed:
            shares = ", ".join(f"{100 * fraction:g} %" for fraction in failed)
            notes.append(f"{name} cannot be fitted on {shares}: {next(iter(failed.values())).reasons[0]}.")
    return tuple(notes)
