"""The toys' numbers, as a table and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence

from outfield.report.table import Table
from outfield.studies.toy import ToyRun


def mean_std(values: Sequence[float], digits: int = 3) -> str:
    """mean ± standard deviation over seeds; without ± for a single value."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def toy_table(runs: Sequence[ToyRun]) -> Table:
    """Held-out NLL and the modes' masses of each model, over the seeds of one toy."""
    data = runs[0].data
    share = 1 / len(data.centres)
    rows = [
        ["true density", mean_std([run.true_nll for run in runs]), *([f"{share:.3f}", "0.000"] if share < 1 else [])]
    ]
    for index, model in enumerate(runs[0].models):
        models = [run.models[index] for run in runs]
        masses = [mass for m in models for mass in m.masses.tolist()]
        worst = max(abs(mass - share) for mass in masses)
        spread = [f"{min(masses):.3f} to {max(masses):.3f}", f"{worst:.3f}"] if share < 1 else []
        rows.append([model.name, mean_std([m.nll for m in models]), *spread])
    header = ["model", "held-out NLL ↓"]
    if share < 1:
        header += ["mass of a mode (all seeds)", f"largest |mass − 1/{len(data.centres)}|"]
    seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
    return Table(f"{data.name}: {len(data.centres)} mode{'s' if share < 1 else ''}, {seeds}", header, rows)


def toy_json(runs: Sequence[ToyRun]) -> str:
    """Every toy run's numbers as JSON."""
    rows = [
        {
            "toy": run.data.name,
            "seed": run.seed,
            "true_nll": run.true_nll,
            "models": {m.name: {"nll": m.nll, "masses": m.masses.tolist()} for m in run.models},
        }
        for run in runs
    ]
    return json.dumps(rows, indent=2) + "\n"
