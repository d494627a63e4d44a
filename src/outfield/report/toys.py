"""The toys' numbers, as a table and as JSON; their figures: energies as maps, masses as bars."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from outfield.files import PathLike
from outfield.percent import counted
from outfield.report import canvas
from outfield.report.figures.chart import Chart, Panel, assemble
from outfield.report.table import Table
from outfield.studies import ToyModel, ToyRun

ENERGY = canvas.Colormap.from_list("energy", ["#0b1d51", "#2f6fde", "#8fc1f2", "#e9f1fb", "#ffffff"])
DEPTH = 10.0  # energies are drawn up to this far above their minimum


def mean_std(values: Sequence[float], digits: int = 3) -> str:
    """mean ± standard deviation over seeds; without ± for a single value."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def toy_table(runs: Sequence[ToyRun]) -> Table:
    """Held-out NLL and the modes' masses of each model, over the seeds of one toy."""
    data = runs[0].data
    share, shown = 1 / len(data.centres), 4 if len(data.centres) > 1 else 2  # the mass of a single mode is 1
    header = ["model", "held-out NLL ↓", "mass of a mode (all seeds)", f"largest |mass − 1/{len(data.centres)}|"]
    rows = [["true density", mean_std([run.true_nll for run in runs]), f"{share:.3f}", "0.000"]]
    for models in zip(*(run.models for run in runs), strict=True):
        masses = [mass for model in models for mass in model.masses.tolist()]
        spread = [f"{min(masses):.3f} to {max(masses):.3f}", f"{max(abs(mass - share) for mass in masses):.3f}"]
        rows.append([models[0].name, mean_std([model.nll for model in models]), *spread])
    title = f"{data.name}: {counted(len(data.centres), 'mode')}, {counted(len(runs), 'seed')}"
    return Table(title, header[:shown], [row[:shown] for row in rows])


def toy_json(runs: Sequence[ToyRun]) -> str:
    """Every toy run's numbers as JSON."""
    rows = []
    for run in runs:
        models = {m.name: {"nll": m.nll, "masses": m.masses.tolist()} for m in run.models}
        rows.append({"toy": run.data.name, "seed": run.seed, "true_nll": run.true_nll, "models": models})
    return json.dumps(rows, indent=2) + "\n"


def toy_figure(run: ToyRun, path: PathLike) -> None:
    """Data, energies, the residual and, where there are several modes, the mass that each model gives to each, as a PNG."""
    several = len(run.data.centres) > 1
    prior = "mixture of Gaussians" if several else "Gaussian"
    panels = [
        Panel("data", "", lambda axes: _points(axes, run), f"NLL under the truth {run.true_nll:.2f}"),
        _energy(run, run.mixture, prior), _residual(run), _energy(run, run.corrected, f"{prior} + residual"),
        _energy(run, run.ebm, "EBM alone"),
        *[Panel("mass of each mode", "", lambda axes: _masses(axes, run))] * several,
    ]  # fmt: skip
    title = "A small network corrects a Gaussian's energy"
    if several:
        title = "Short chains that do not mix bias an EBM; correcting a mixture keeps every mode"
    figure = assemble(Chart(title, panels, (), 3 if several else 5, 3.0))
    bar = figure.colorbar(figure.axes[1].images[0], ax=figure.axes, shrink=0.8, fraction=0.02)
    canvas.prepare(bar.ax)
    bar.outline.set(visible=True, edgecolor=canvas.RULE, linewidth=0.8)
    bar.set_label("energy above its minimum", color=canvas.INK, fontsize=canvas.SIZE)
    canvas.save_figure(figure, path)


def _map(axes: Any, run: ToyRun, values: Tensor, **options: Any) -> None:
    h = run.data.half_width
    axes.imshow(values.T.numpy(), origin="lower", extent=(-h, h, -h, h), interpolation="bilinear", **options)
    _frame(axes, run)


def _frame(axes: Any, run: ToyRun) -> None:
    """A square; of a single mode the middle alone."""
    h = run.data.half_width if len(run.data.centres) > 1 else 2
    axes.set(xlim=(-h, h), ylim=(-h, h), aspect="equal")
    canvas.frame(axes)


def _energy(run: ToyRun, model: ToyModel, title: str) -> Panel:
    energy = model.density.energy
    shown, look = (energy - energy.min()).clamp_max(DEPTH), {"cmap": ENERGY, "vmin": 0, "vmax": DEPTH}
    return Panel(title, "", lambda axes: _map(axes, run, shown, **look), f"held-out NLL {model.nll:.2f}")


def _residual(run: ToyRun) -> Panel:
    """The residual, fading out where the prior has no mass: no chain goes there and nothing was learned."""
    prior = run.mixture.density.energy
    weight = ((DEPTH - (prior - prior.min())) / 4).clamp(0, 1)
    limit = float(np.quantile(run.residual[weight > 0].abs().numpy(), 0.98))
    look = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "alpha": weight.T.numpy()}
    note = f"red raises, blue lowers, up to {limit:.1f}"
    return Panel("residual", "", lambda axes: _map(axes, run, run.residual, **look), note)


def _points(axes: Any, run: ToyRun) -> None:
    points = run.data.train[:: max(1, len(run.data.train) // 4000)].numpy()
    axes.scatter(*points.T, s=1.2, color=canvas.ID, alpha=0.5, linewidths=0)
    _frame(axes, run)
    for number, (x, y) in enumerate(run.data.centres.tolist() if len(run.data.centres) > 1 else [], 1):
        axes.text(x + 1.0, y + 0.9, str(number), fontsize=9, color=canvas.MUTED, ha="center", va="center")


def _masses(axes: Any, run: ToyRun) -> None:
    positions = np.arange(len(run.data.centres))
    for offset, (model, colour) in enumerate(zip(run.models, ("#9aa4b8", canvas.FAR, canvas.ID), strict=True)):
        axes.bar(positions + 0.27 * (offset - 1), model.masses.numpy(), 0.25, color=colour, label=model.name)
    axes.axhline(1 / len(positions), color=canvas.INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xticks(positions, [str(p + 1) for p in positions])
    axes.yaxis.set_major_locator(canvas.MultipleLocator(0.05))
    axes.set(xlabel="mode", ylim=(0, 1.3 * max(float(model.masses.max()) for model in run.models)))
    place = {"loc": "upper center", "ncols": 3, "columnspacing": 1, "handlelength": 1}
    axes.legend(**place, fontsize=8, labelcolor=canvas.INK, frameon=False)
