"""What ``evaluate`` found, as tables, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, fields

from outfield.benchmark.evaluation import Result
from outfield.percent import in_percent
from outfield.report.escaping import csv_cell
from outfield.report.table import Table


def results_table(results: Sequence[Result]) -> Table:
    """One row per detector, FPR95 / AUROC for each OOD set and their mean, in percent."""
    sets = list(dict.fromkeys(result.ood for result in results))
    rows = []
    for name in dict.fromkeys(result.detector for result in results):
        mine = {result.ood: result for result in results if result.detector == name}
        cells = [f"{in_percent(mine[s].fpr95)} / {in_percent(mine[s].auroc)}" for s in sets]
        mean = f"{in_percent(statistics.mean(r.fpr95 for r in mine.values()))} / " + in_percent(
            statistics.mean(r.auroc for r in mine.values())
        )
        rows.append([name, *cells, *([mean] if len(sets) > 1 else [])])
    return Table("FPR95 ↓ / AUROC ↑ (%)", ["detector", *sets, *(["mean"] if len(sets) > 1 else [])], rows)


def full_table(results: Sequence[Result]) -> Table:
    """One row per detector and OOD set with every metric, in percent."""
    rows = [
        [
            r.detector,
            r.ood,
            in_percent(r.fpr95),
            in_percent(r.auroc),
            in_percent(r.aupr_in),
            in_percent(r.aupr_out),
            f"{r.n_ood:,}",
        ]
        for r in results
    ]
    header = ["detector", "OOD set", "FPR95 ↓", "AUROC ↑", "AUPR in ↑", "AUPR out ↑", "OOD samples"]
    return Table("in percent", header, rows, left=2)


def results_json(results: Sequence[Result]) -> str:
    """All results, fractions, as JSON."""
    return json.dumps([asdict(result) for result in results], indent=2) + "\n"


def results_csv(results: Sequence[Result]) -> str:
    """All results, fractions, as CSV."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [field.name for field in fields(Result)])
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in asdict(result).items()} for result in results)
    return buffer.getvalue()
