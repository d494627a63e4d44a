"""Figures of a benchmark: what is drawn, panel by panel.

A chart is a list of panels, each of which draws on axes that it is given. So one piece of code serves the PNGs of
:func:`write_figures`, where panels stand in a grid, and the page, where they flow with the width of the window. Nothing here
computes anything but what is drawn. Colours are the same in every chart: one per level, one per detector.
"""

from __future__ import annotations

from pathlib import Path

from outfield.benchmark import BenchmarkRun
from outfield.files.atomic import PathLike, make_folder
from outfield.files.paths import as_path
from outfield.report.drawing import save
from outfield.report.figures.chart import Chart, Paper, assemble, backbones
from outfield.report.figures.fractions import fraction_chart
from outfield.report.figures.histograms import histogram_chart
from outfield.report.figures.overview import overview_chart
from outfield.report.figures.roc import roc_chart
from outfield.report.figures.sets import THE_PAPER, set_chart
from outfield.report.figures.training import training_chart
from outfield.report.figures.views import view_chart

__all__ = [
    "THE_PAPER",
    "Chart",
    "Paper",
    "charts",
    "fraction_chart",
    "histogram_chart",
    "overview_chart",
    "roc_chart",
    "set_chart",
    "training_chart",
    "view_chart",
    "write_figures",
    "write_overview",
]

DPI = 200
NAMES = ("histograms", "roc", "features", "training", "sets", "fractions")
"""What charts are called."""


def write_figures(run: BenchmarkRun, folder: PathLike, paper: Paper | None = None) -> list[Path]:
    """Write each chart that the run has data for as a PNG into ``folder``, which is made if need be.

    ``histograms.png``, ``roc.png``, ``features.png``, ``training.png``, ``sets.png``,
    ``fractions.png``; histograms and features are of the first backbone. Each is written atomically; one that lies there from an
    earlier run and that this run has no data for is removed.

    Args:
        run: the benchmark.
        folder: where to.
        paper: published figures to draw beside ours.

    Returns:
        The paths written.

    Raises:
        StorageError: the folder cannot be made or written to.
    """
    folder = as_path(folder, "folder")
    make_folder(folder)
    written = []
    for chart in charts(run, paper):
        path = folder / f"{chart.name}.png"
        save(assemble(chart), path, dpi=DPI)
        written.append(path)
    for name in NAMES:
        path = folder / f"{name}.png"
        if path not in written:
            path.unlink(missing_ok=True)  # it would be taken for one of this run
    return written


def write_overview(run: BenchmarkRun, path: PathLike) -> None:
    """Write the chart of a whole run to a PNG, atomically."""
    save(assemble(overview_chart(run)), path, dpi=DPI)


def charts(run: BenchmarkRun, paper: Paper | None = None) -> list[Chart]:
    """The charts that the run has data for; histograms and features of the first backbone."""
    scored = backbones(key.backbone for key in run.scores)
    found = [set_chart(run, paper), roc_chart(run)]
    found += [histogram_chart(run, name) for name in scored[:1]]
    found += [view_chart(run, view) for view in run.views[:1]]
    found += [training_chart(run), fraction_chart(run)]
    return [chart for chart in found if chart.panels]
