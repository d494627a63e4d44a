"""The best row against the others, as a table."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.benchmark_samples import PROTOCOL, make_run
from tests.helpers.records import small_run

from outfield.benchmark import BenchmarkRun, Key
from outfield.report import benchmark_tables, write_report
from outfield.report.benchmark_tables import best_row, comparison_table

DETECTORS = ("MSP", "SSD", "EBM", "EnergyCorrected")


@pytest.fixture(scope="module")
def run():
    return make_run()


def test_the_best_row_has_the_lowest_mean_fpr95(run):
    means = {name: np.mean([r.fpr95 for r in run.records if r.detector == name]) for name in DETECTORS}
    assert best_row(run) == min(means, key=means.get)
    assert best_row(small_run()) is None  # without scores
    assert best_row(BenchmarkRun(PROTOCOL)) is None


def test_cells_are_differences_in_points_with_intervals(run):
    table, best = comparison_table(run, resamples=50), best_row(run)
    others = [name for name in DETECTORS if name != best]
    assert [row[0] for row in table.rows] == [text for name in others for text in (name, "")]
    assert table.header == ["detector", "", "near OOD", "mid OOD", "far OOD", "average"]
    assert table.title.startswith(f"known, {best} against the others: ")
    for place, name in enumerate(others):
        found = run.compare(best, name, resamples=50)
        for metric, row in (("fpr95", table.rows[2 * place]), ("auroc", table.rows[2 * place + 1])):
            assert row[1] == {"fpr95": "FPR95 ↓", "auroc": "AUROC ↑"}[metric]
            for column, cell in zip(("near", "mid", "far", "average"), row[2:], strict=True):
                one = getattr(found, metric)[column]
                numbers = cell.replace("−", "-").replace("[", "").replace("]", "").replace(",", "").split()
                shown = [100 * x for x in (one.value, *one.widest)]
                assert list(map(float, numbers)) == pytest.approx(shown, abs=0.051)
                heading = column if column == "average" else f"{column} OOD"
                bold = (2 * place + (metric == "auroc"), table.header.index(heading), 0)
                assert (bold in table.best) == (one.widest[0] > 0 or one.widest[1] < 0)
    assert table.best
    assert "50 resamples" in table.notes[0]
    assert "over the 2 backbones" in table.notes[0]
    assert f"{best} has the lowest mean FPR95" in table.notes[1]


def test_one_backbone_and_two_levels():
    run = make_run(backbones=("one",), detectors=("SSD", "MSP"))
    run.scores = {
        key: {n: s for n, s in scores.items() if n not in ("elks", "fish")} for key, scores in run.scores.items()
    }
    table = comparison_table(run, resamples=5)
    assert table.header == ["detector", "", "near OOD", "mid OOD", "average"]
    assert "over samples;" in table.notes[0]


def test_where_nothing_can_be_compared_there_is_no_table(run):
    assert comparison_table(small_run()) is None
    assert comparison_table(make_run(detectors=("SSD",))) is None
    apart = make_run(backbones=("one",), detectors=("SSD", "MSP"))
    apart.scores[Key("two", "MSP")] = apart.scores.pop(Key("one", "MSP"))
    assert comparison_table(apart) is None


def test_what_was_scored_on_other_rows_is_left_out():
    run = make_run(backbones=("one",), detectors=("SSD", "MSP", "KNN"))
    best = best_row(run)
    other, odd = (name for name in ("MSP", "SSD", "KNN") if name != best)
    run.scores[Key("one", odd)] = {name: values[:-1] for name, values in run.scores[Key("one", odd)].items()}
    assert [row[0] for row in comparison_table(run, resamples=5).rows] == [other, ""]


def test_zero_is_on_neither_side():
    from outfield.benchmark import Difference

    for interval, clear in (((0.0, 0.1), False), ((-0.1, 0.0), False), ((0.01, 0.1), True), ((-0.1, -0.01), True)):
        assert benchmark_tables._is_clear(Difference(0.0, interval)) is clear
    assert benchmark_tables._interval(None) == ""
    assert benchmark_tables._interval(Difference(-0.031, (-0.05, 0.0002))) == "−3.1 [−5.0, 0.0]"


def test_the_report_shows_it(tmp_path):
    run = make_run(backbones=("one",), detectors=("SSD", "MSP"), n=50)
    run.layouts.clear()
    write_report(run, tmp_path)
    best = best_row(run)
    for name in ("tables.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert f"{best} against the others" in text
        assert "400 resamples" in text


def test_a_report_without_scores_goes_without(tmp_path):
    write_report(small_run(), tmp_path)
    assert "against the others" not in (tmp_path / "tables.md").read_text()
