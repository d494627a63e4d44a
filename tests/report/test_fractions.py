"""Detectors on fewer training rows: the table, the chart, the page."""

from __future__ import annotations

from dataclasses import replace

from tests.helpers.benchmark_samples import PROTOCOL, make_run
from tests.helpers.html_tree import parse

from outfield.benchmark import BenchmarkRun, LowData
from outfield.report import fraction_table
from outfield.report.canvas import new_figure, subplots
from outfield.report.figures import charts, fraction_chart
from outfield.report.page import page

BARE = {"scores": {}, "layouts": [], "histories": {}}  # nothing else to draw but records
LOW = [
    LowData(0.01, "one", "SSD", None, 0.5, 0.75),
    LowData(0.01, "one", "KNN", None, reason="k is 50, but there are 10 rows"),
    LowData(0.01, "one", "MSP", None, 0.5, 0.8),
    LowData(0.1, "one", "SSD", None, 0.3, 0.9),
    LowData(0.1, "one", "KNN", None, 0.2, 0.85),
    LowData(1.0, "one", "SSD", None, 0.25, 0.95),
]


def test_the_table():
    table = fraction_table(BenchmarkRun(PROTOCOL, low_data=LOW))
    assert table.title.startswith("known, fewer training rows: FPR95 ↓ / AUROC ↑ in percent")
    assert table.header == ["detector", "1 %", "10 %", "100 %"]
    assert table.rows == [
        ["SSD", "50.0 / 75.0", "30.0 / 90.0", "25.0 / 95.0"],
        ["KNN", "–", "20.0 / 85.0", ""],
        ["MSP", "50.0 / 80.0", "", ""],
    ]
    assert table.left == 1
    assert table.best == {(0, 1, 0), (2, 1, 0), (2, 1, 1), (1, 2, 0), (0, 2, 1)}  # alone in a column, none is the best
    assert table.notes[0].startswith("Means over all OOD sets, seeds and backbones.")
    assert table.notes[1:] == ("KNN cannot be fitted on 1 %: k is 50, but there are 10 rows.",)


def test_no_table_and_no_chart_without_data():
    assert fraction_table(BenchmarkRun(PROTOCOL)) is None
    assert fraction_chart(BenchmarkRun(PROTOCOL)).panels == []
    assert not charts(make_run())["fractions"]
    assert "Fewer training rows" not in page(replace(make_run(), **BARE))


def test_lines_are_drawn_where_there_are_figures():
    chart = fraction_chart(BenchmarkRun(PROTOCOL, low_data=LOW))
    assert [panel.title for panel in chart.panels] == ["FPR95 ↓", "AUROC ↑"]
    assert [mark.label for mark in chart.marks] == ["SSD", "KNN", "MSP"]
    for panel, ssd, knn in zip(chart.panels, ([50.0, 30.0, 25.0], [75.0, 90.0, 95.0]), ([20.0], [85.0]), strict=True):
        axes = subplots(new_figure(3, 3))[0, 0]
        panel.draw(axes)
        lines = [([*map(float, line.get_xdata())], [*map(float, line.get_ydata())]) for line in axes.lines]
        assert lines[0] == ([1.0, 10.0, 100.0], ssd)
        assert lines[1] == ([10.0], knn)
        assert len(lines) == 3
        assert axes.get_xscale() == "log"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "10", "100"]
    assert "SSD 50.0 to 25.0" in chart.panels[0].alt
    assert chart.panels[0].alt.startswith("Mean FPR95 in percent")


def test_a_detector_that_was_never_fitted_has_no_line():
    chart = fraction_chart(BenchmarkRun(PROTOCOL, low_data=[*LOW, LowData(1.0, "one", "PCA", None, reason="no")]))
    axes = subplots(new_figure(3, 3))[0, 0]
    chart.panels[0].draw(axes)
    assert len(axes.lines) == 3
    assert "PCA" not in chart.panels[0].alt


def test_the_page_has_a_section_of_it():
    run = replace(make_run(), **BARE)
    run.low_data = [LowData(f, "one", d, None, 0.5, 0.5) for f in (0.1, 1.0) for d in ("MSP", "SSD")]
    shown = parse(page(run)).text
    assert "Fewer training rows" in shown
    assert "a line begins where a detector can be fitted" in shown
    assert len(charts(run)["fractions"]) == 1
