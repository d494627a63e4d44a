"""Figures of a benchmark: what is drawn, panel by panel.

A chart is a list of panels, each of which draws on axes that it is given. So one piece of code serves the PNGs of
:func:`write_figures`, where panels stand in a grid, and the page, where they flow with the width of the window. Nothing here
computes anything but what is drawn. Colours are the same in every chart: one per level, one per detector.
"""

from __future__ import annotations

from pathlib import Path

from outfield.benchmark import BenchmarkRun
from outfield.files import PathLike, as_path, make_folder
from outfield.report.canvas import save_figure
from outfield.report.figures.chart import Chart, Paper, assemble, unique
from outfield.report.figures.curves import training_chart
from outfield.report.figures.overview import layout_chart, overview_chart
from outfield.report.figures.rates import fraction_chart, set_chart
from outfield.report.figures.scores import histogram_chart, roc_chart

DPI = 200


def charts(run: BenchmarkRun, paper: Paper | None = None) -> dict[str, list[Chart]]:
    """The charts that the run has data for, by kind: histograms and features for each backbone, one of each other kind."""
    found = {
        "sets": [set_chart(run, paper)],
        "roc": [roc_chart(run)],
        "histograms": [histogram_chart(run, name) for name in unique(key.backbone for key in run.scores)],
        "features": [layout_chart(run, layout) for layout in run.layouts],
        "training": [training_chart(run)],
        "fractions": [fraction_chart(run)],
    }
    return {kind: [chart for chart in those if chart.panels] for kind, those in found.items()}


def write_figures(run: BenchmarkRun, folder: PathLike, paper: Paper | None = None) -> list[Path]:
    """Write each chart that the run has data for as a PNG into ``folder``, which is made if need be.

    ``sets.png``, ``roc.png``, ``histograms.png``, ``features.png``, ``training.png``, ``fractions.png``; histograms and features
    are of the first backbone. Each is written atomically; one that lies there from an earlier run and that this run has no data
    for is removed.

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
    for kind, found in charts(run, paper).items():
        path = folder / f"{kind}.png"
        if found:
            save_figure(assemble(found[0]), path, dpi=DPI)
            written.append(path)
        else:
            path.unlink(missing_ok=True)  # it would be taken for one of this run
    return written


def write_overview(run: BenchmarkRun, path: PathLike) -> None:
    """Write the chart of a whole run to a PNG, atomically."""
    save_figure(assemble(overview_chart(run)), path, dpi=DPI)
