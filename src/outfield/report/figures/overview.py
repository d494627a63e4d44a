"""One figure of a whole run: where the features lie, and what some detectors make of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outfield.benchmark import BenchmarkRun
from outfield.errors import InputError
from outfield.images.catalogue import title as set_title
from outfield.report.figures.chart import Chart
from outfield.report.figures.histograms import histogram_chart
from outfield.report.figures.levels import level_panel
from outfield.report.figures.views import view_chart, view_panel

COLUMNS = 4
SHOWN = ("MSP", "KNN", "SSD", "Auto")


def overview_chart(run: BenchmarkRun, shown: Sequence[str] = SHOWN) -> Chart:
    """The first backbone's features with the OOD sets of each level, above scores of the last three of these detectors that ran.

    Beside the scores stands how much OOD data every detector of the run accepts; the last of these detectors is marked there.

    Raises:
        InputError: the run has no view of features.
    """
    if not run.views:
        raise InputError("the run has no features laid out in two dimensions; benchmark it with view=True")
    view = run.views[0]
    sets = np.array(view.sets, dtype=object)
    known = sets == run.protocol.id
    panels = [view_panel(run, view, known, None, f"{set_title(run.protocol.id)} (ID)", "")]
    for level, names in run.protocol.levels.items():
        there = [name for name in names if (sets == name).any()]
        if there:
            titles = ", ".join(set_title(name) for name in there)
            panels.append(view_panel(run, view, known, np.isin(sets, there), f"{level}: {titles}", level))
    scores = histogram_chart(run, view.backbone)
    by_name = {panel.title: panel for panel in scores.panels}
    histograms = [by_name[name] for name in shown if name in by_name][1 - COLUMNS :]
    accepted = level_panel(run, shown[-1])
    marks = scores.marks if histograms else view_chart(run, view).marks
    title = f"Features of {set_title(run.protocol.id)} in a {view.backbone}, and how detectors score them"
    below = [*histograms, *([accepted] if accepted else [])]
    return Chart("overview", title, [*panels, *below], marks, COLUMNS, 2.5, width=3.4)
