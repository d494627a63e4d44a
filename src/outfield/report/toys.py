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
    share = 1 / len(data.centres)
    known = [f"{share:.3f}", "0.000"] if share < 1 else []
    rows = [["true density", mean_std([run.true_nll for run in runs]), *known]]
    for index, model in enumerate(runs[0].models):
        models = [run.models[index] for run in runs]
        masses = [mass for m in models for mass in m.masses.tolist()]
        worst = max(abs(mass - share) for mass in masses)
        spread = [f"{min(masses):.3f} to {max(masses):.3f}", f"{worst:.3f}"] if share < 1 else []
        rows.append([model.name, mean_std([m.nll for m in models]), *spread])
    header = ["model", "held-out NLL ↓"]
    if share < 1:
        header += ["mass of a mode (all seeds)", f"largest |mass − 1/{len(data.centres)}|"]
    title = f"{data.name}: {counted(len(data.centres), 'mode')}, {counted(len(runs), 'seed')}"
    return Table(title, header, rows)


def toy_json(runs: Sequence[ToyRun]) -> str:
    """Every toy run's numbers as JSON."""
    rows = []
    for run in runs:
        models = {m.name: {"nll": m.nll, "masses": m.masses.tolist()} for m in run.models}
        rows.append({"toy": run.data.name, "seed": run.seed, "true_nll": run.true_nll, "models": models})
    return json.dumps(rows, indent=2) + "\n"


def cross_figure(run: ToyRun, path: PathLike) -> None:
    """Data, Gaussian + residual = corrected energy, and the EBM alone, in one row."""
    figure = canvas.new_figure(14.2, 3.55)
    (axes,) = canvas.subplots(figure, 1, 5, wspace=0.3, left=0.012, right=0.93, top=0.79, bottom=0.09)
    _points(axes[0], run, "data", f"NLL under the truth {run.true_nll:.2f}")
    image = _energy(axes[1], run, run.mixture, "Gaussian")
    _residual(axes[2], run)
    _energy(axes[3], run, run.corrected, "corrected")
    _energy(axes[4], run, run.ebm, "EBM alone", ", mass outside")
    for panel in axes:
        panel.set(xlim=(-2, 2), ylim=(-2, 2))
    for left, right, sign in ((1, 2, "+"), (2, 3, "=")):
        x = (axes[left].get_position().x1 + axes[right].get_position().x0) / 2
        figure.text(x, 0.44, sign, ha="center", va="center", fontsize=22, color=canvas.MUTED)
    _scale(figure, image, (0.942, 0.11, 0.009, 0.66))
    _heading(figure, "A small network corrects a Gaussian's energy", 0.012)
    canvas.save_figure(figure, path)


def grid_figure(run: ToyRun, path: PathLike) -> None:
    """Nine crosses: data, mixture, EBM; residual, correction, and the mass that each model gives to each mode."""
    figure = canvas.new_figure(12.6, 8.3)
    axes = canvas.subplots(figure, 2, 3, wspace=0.14, hspace=0.26, left=0.015, right=0.9, top=0.89, bottom=0.06)
    _points(axes[0, 0], run, "data: nine crosses", f"NLL under the truth {run.true_nll:.2f}")
    image = _energy(axes[0, 1], run, run.mixture, "mixture of Gaussians")
    _energy(axes[0, 2], run, run.ebm, "EBM alone")
    _residual(axes[1, 0], run)
    _energy(axes[1, 1], run, run.corrected, "mixture + residual")
    _masses(axes[1, 2], run)
    _scale(figure, image, (0.918, 0.53, 0.011, 0.35))
    _heading(figure, "Short chains that do not mix bias an EBM; correcting a mixture keeps every mode", 0.025)
    canvas.save_figure(figure, path)


def _scale(figure: Any, image: Any, place: tuple[float, float, float, float]) -> None:
    """Which colour is which energy."""
    axes = figure.add_axes(place)
    bar = figure.colorbar(image, cax=axes)
    canvas.prepare(axes)
    bar.outline.set(visible=True, edgecolor=canvas.RULE, linewidth=0.8)
    bar.set_label("energy above its minimum", color=canvas.INK, fontsize=canvas.SIZE)


def _heading(figure: Any, text: str, x: float) -> None:
    figure.suptitle(text, x=x, y=0.98, ha="left", va="top", fontsize=14, fontweight="bold", color=canvas.INK)


def _title(axes: Any, text: str) -> None:
    axes.set_title(text, fontsize=11, fontweight="bold", color=canvas.INK)


def _panel(axes: Any, title: str, caption: str) -> None:
    _title(axes, title)
    axes.text(0.5, -0.045, caption, transform=axes.transAxes, ha="center", va="top", fontsize=9.5, color=canvas.MUTED)
    canvas.frame(axes)


def _map(axes: Any, run: ToyRun, values: Tensor, **options: Any) -> Any:
    h = run.data.half_width
    return axes.imshow(values.T.numpy(), origin="lower", extent=(-h, h, -h, h), interpolation="bilinear", **options)


def _energy(axes: Any, run: ToyRun, model: ToyModel, title: str, note: str = "") -> Any:
    _panel(axes, title, f"held-out NLL {model.nll:.2f}{note}")
    energy = model.density.energy
    return _map(axes, run, (energy - energy.min()).clamp_max(DEPTH), cmap=ENERGY, vmin=0, vmax=DEPTH)


def _residual(axes: Any, run: ToyRun) -> None:
    """The residual, fading out where the prior has no mass: no chain goes there and nothing was learned."""
    prior = run.mixture.density.energy
    weight = ((DEPTH - (prior - prior.min())) / 4).clamp(0, 1)
    limit = float(np.quantile(run.residual[weight > 0].abs().numpy(), 0.98))
    _panel(axes, "residual", f"red raises, blue lowers, up to {limit:.1f}")
    _map(axes, run, run.residual, cmap="RdBu_r", vmin=-limit, vmax=limit, alpha=weight.T.numpy())


def _points(axes: Any, run: ToyRun, title: str, caption: str) -> None:
    points = run.data.train[:: max(1, len(run.data.train) // 4000)].numpy()
    axes.scatter(*points.T, s=1.2, color=canvas.ID, alpha=0.5, linewidths=0)
    h = run.data.half_width
    axes.set(xlim=(-h, h), ylim=(-h, h), aspect="equal")
    _panel(axes, title, caption)
    if len(run.data.centres) > 1:
        for number, (x, y) in enumerate(run.data.centres.tolist(), 1):
            axes.text(x + 1.0, y + 0.9, str(number), fontsize=9, color=canvas.MUTED, ha="center", va="center")


def _masses(axes: Any, run: ToyRun) -> None:
    positions = np.arange(len(run.data.centres))
    for offset, (model, colour) in enumerate(zip(run.models, ("#9aa4b8", canvas.FAR, canvas.ID), strict=True)):
        axes.bar(positions + 0.27 * (offset - 1), model.masses.numpy(), 0.25, color=colour, label=model.name)
    axes.axhline(1 / len(positions), color=canvas.INK, linewidth=0.8, linestyle=(0, (4, 3)))
    where = (positions[-1] + 0.95, 1 / len(positions))
    axes.annotate("1/9", where, va="center", fontsize=9, color=canvas.INK, annotation_clip=False)
    _title(axes, "mass of each mode")
    axes.set_xticks(positions, [str(p + 1) for p in positions])
    axes.yaxis.set_major_locator(canvas.MultipleLocator(0.05))
    box = axes.get_position()
    axes.set_position((box.x0 + 0.025, box.y0, box.width - 0.025, box.height))
    axes.set_xlabel("mode", color=canvas.MUTED)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3, "columnspacing": 1, "handlelength": 1}
    axes.legend(**place, fontsize=8.5, labelcolor=canvas.INK, frameon=False)
    axes.set_ylim(0, 1.3 * max(float(model.masses.max()) for model in run.models))
    axes.set_xlim(-0.6, positions[-1] + 0.8)
