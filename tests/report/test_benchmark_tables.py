"""Records to tables: the paper's figures beside ours, the best row against the others, and fewer training rows."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.benchmark_samples import PROTOCOL, make_run
from tests.helpers.records import C10, C100, SMALL, as_the_paper, record, records_of, small_run, verdicts

from outfield.benchmark import (
    AVERAGE,
    HOLDS,
    UNTESTED,
    BenchmarkRun,
    Difference,
    LowData,
    Protocol,
    check_claims,
    paper,
)
from outfield.cli.app import write_results
from outfield.report import benchmark_tables, fraction_table, tables, write_report
from outfield.report.benchmark_files import run_json, tables_markdown
from outfield.report.benchmark_tables import backbone_table, best_row, comparison_table
from outfield.report.canvas import new_figure, subplots
from outfield.report.figures import charts, fraction_chart
from outfield.report.page import page


class TestPaper:
    @pytest.mark.parametrize("protocol", [C10, C100])
    def test_the_average_is_the_mean_of_the_six_sets(self, protocol):
        for detector, row in paper.BY_SET[protocol.id].items():
            assert tuple(row) == (*protocol.ood, AVERAGE)
            for metric in (0, 1):
                mean = sum(row[ood][metric] for ood in protocol.ood) / 6
                slack = 0.31 if (protocol.id, detector, metric) == ("cifar100", "KNN", 1) else 0.07  # REMARKS
                assert row[AVERAGE][metric] == pytest.approx(mean, abs=slack)

    @pytest.mark.parametrize("protocol", [C10, C100])
    def test_levels_are_the_means_of_their_sets_and_tables_agree(self, protocol):
        levels = paper.BY_LEVEL[protocol.id]
        for detector, row in paper.BY_SET[protocol.id].items():
            assert levels[detector][AVERAGE] == row[AVERAGE]
            for level, sets in protocol.levels.items():
                for metric in (0, 1):
                    slack = 3 if (protocol.id, detector, level, metric) == ("cifar10", "KNN", "near", 0) else 0.11
                    mean = sum(row[ood][metric] for ood in sets) / 2
                    assert levels[detector][level][metric] == pytest.approx(mean, abs=slack)
        assert levels["GaussianMixture"] == levels["SSD"]


class TestTables:
    def test_rows_of_a_detector(self):
        table = tables(small_run())["levels"]
        assert table.header == ["detector", "", "near OOD", "mid OOD", "far OOD", "average"]
        assert [row[:4] for row in table.rows] == [
            ["KNN", "this run", "46.0 / 55.0", "31.0 / 70.0"],
            ["", "± backbones", "1.41 / 0.00", "1.41 / 0.00"],
            ["EnergyCorrected (ours)", "this run", "46.5 / 67.5", "31.5 / 75.0"],
            ["", "± seeds", "0.71 / 0.00", "0.71 / 0.00"],
            ["", "± backbones", "1.41 / 0.00", "1.41 / 0.00"],
        ]
        assert "2 backbones (accuracy 94.5, 95.0 %), 2 seeds" in table.title

    def test_the_best_mean_of_each_column_is_bold(self):
        table = tables(small_run())["levels"]
        assert {place for place in table.best if place[1] == 2} == {(0, 2, 0), (2, 2, 1)}
        assert "| **46.0** / 55.0 |" in table.markdown()
        assert r"& 46.5 / \textbf{67.5} &" in table.latex()

    def test_the_command_line_prints_levels_and_the_ablation(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr("outfield.report.write_report", lambda *_, **__: [tmp_path / "report.html"])
        write_results(BenchmarkRun(C10, as_the_paper(C10)), tmp_path)
        said = capsys.readouterr().out
        assert said.index("against near, mid and far OOD") < said.index("without parts of the method")
        assert "against each OOD set" not in said

    def test_equal_figures_are_equally_good(self):
        found = [
            record(SMALL, name, ood, 0.30001 + i * 1e-5, 0.5) for i, name in enumerate(("MSP", "KNN")) for ood in "abcd"
        ]
        assert len(tables(BenchmarkRun(SMALL, found))["levels"].best) == 2 * 4 * 2

    def test_the_paper_stands_beside(self):
        made = tables(BenchmarkRun(C10, as_the_paper(C10)))
        assert list(made) == ["levels", "detailed", "ablation"]
        rows = {name: [row for row in table.rows if row[1] == "paper"] for name, table in made.items()}
        assert rows["levels"][3][2:] == ["42.3 / 90.5", "37.0 / 93.4", "16.7 / 97.3", "32.9 / 93.7"]
        assert rows["detailed"][5][2:] == [
            "47.4 / 89.9", "41.6 / 90.4", "32.7 / 93.9", "34.3 / 92.4", "25.7 / 95.6", "5.7 / 98.9", "31.3 / 93.5",
        ]  # fmt: skip
        assert [row[0] for row in made["levels"].rows if row[0]] == [
            "MSP", "ODIN", "EnergyLogits", "KNN", "SSD", "EnergyCorrected (ours)",
        ]  # fmt: skip
        assert [row[0] for row in made["ablation"].rows if row[0]] == ["EBM (ours w/o MoG)", "EnergyCorrected (ours)"]
        assert made["detailed"].header[2:] == [
            "CIFAR-100", "TinyImageNet", "LSUN", "Places365", "Textures", "SVHN", "average",
        ]  # fmt: skip
        assert any("45.3" in note for note in made["levels"].notes)
        # The text has another figure than the tables for the correction, which the ablation shows and KNN's mistake it does not.
        for name in ("levels", "detailed", "ablation"):
            assert any("91.8 to 92.8; its tables print 92.5" in note for note in made[name].notes)
        assert not any("45.3" in note for note in made["ablation"].notes)
        assert paper.BY_LEVEL["cifar10"]["SSD"]["mid"].auroc == 91.8
        assert paper.BY_LEVEL["cifar10"]["EnergyCorrected"]["mid"].auroc == 92.5

    def test_no_paper_for_another_id_set(self):
        assert not any(row[1] == "paper" for table in tables(small_run()).values() for row in table.rows)

    def test_a_detector_of_ones_own_comes_last(self):
        run = small_run()
        run.records += [replace(r, detector="Mine", fpr95=0.1) for r in run.records if r.detector == "KNN"]
        shown = [row[0] for row in tables(run)["levels"].rows if row[0]]
        assert shown == ["KNN", "EnergyCorrected (ours)", "Mine"]

    def test_one_for_each_backbone_with_its_accuracy(self):
        run = small_run()
        assert list(tables(run)) == ["levels", "detailed", "backbone one", "backbone two"]
        table = backbone_table(run, "one")
        assert "backbone one (accuracy 94.5 %)" in table.title
        assert [row[1] for row in table.rows] == ["this run", "this run", "± seeds"]
        assert table.rows[1][2] == "45.5 / 67.5"

    def test_missing_sets_are_told_of(self):
        run = small_run()
        run.records = [r for r in run.records if r.ood != "d"]
        table = tables(run)["levels"]
        assert table.header[2:] == ["near OOD", "mid OOD", "average"]
        assert table.notes[0] == "Without d, not there in this run: means are over the other sets."
        assert tables_markdown(run).count("Without d") == 1  # said once, below the first table

    @pytest.mark.parametrize(("found", "levels", "detailed"), [
        (("KNN", "GaussianMixture"), ["KNN", "GaussianMixture"], ["KNN", "GaussianMixture"]),
        (("EBM", "Mine", "MSP"), ["MSP", "EBM", "Mine"], ["MSP", "EBM", "Mine"]),
        (("GaussianMixture",), ["GaussianMixture"], ["GaussianMixture"]),
        (("EBM", "GaussianMixture"), None, ["EBM", "GaussianMixture"]),  # which are the ablation's
    ])  # fmt: skip
    def test_no_detector_is_without_a_row(self, found, levels, detailed):
        figures = dict.fromkeys(C10.ood, (30.0, 90.0))
        made = tables(BenchmarkRun(C10, [r for name in found for r in records_of(C10, name, figures)]))
        rows = {name: [row[0] for row in table.rows if row[0]] for name, table in made.items()}
        assert rows.get("levels") == levels
        assert rows["detailed"] == detailed
        assert ("ablation" in rows) == (levels is None)

    def test_ablation_figures_stand_beside_rows_in_other_tables(self):
        run = BenchmarkRun(C10, records_of(C10, "GaussianMixture", dict.fromkeys(C10.ood, (30.0, 90.0))))
        made = tables(run)
        assert made["levels"].rows[1] == ["", "paper", "51.8 / 89.3", "46.8 / 91.8", "7.0 / 98.8", "35.1 / 93.3"]
        assert made["detailed"].rows[1][2:] == [""] * 6 + ["35.1 / 93.3"]
        assert any("prints SSD's figures" in note for note in made["levels"].notes)


class TestOtherSets:
    """The paper's figures stand beside ours only where both are over the same sets."""

    def paper_row(self, run, name, detector="KNN"):
        rows = tables(run)[name].rows
        start = next(i for i, row in enumerate(rows) if row[0].startswith(detector))
        return next((row[2:] for row in rows[start + 1 : start + 4] if row[1] == "paper"), None)

    def test_a_missing_set_leaves_the_mean_of_the_others(self):
        run = BenchmarkRun(C10, [r for r in as_the_paper(C10) if r.ood != "lsun"])
        # near as printed; mid is Places365 alone; the average is over five.
        average = "32.3 / 93.6"  # (47.9 + 42.6 + 37.8 + 25.2 + 8.1) / 5, (90.3 + 90.6 + 92.6 + 96.0 + 98.6) / 5
        assert self.paper_row(run, "levels") == ["42.3 / 90.5", "37.8 / 92.6", "16.7 / 97.3", average]
        assert self.paper_row(run, "detailed")[-1] == average
        table = tables(run)["levels"]
        assert table.notes[:2] == (
            "Without LSUN, not there in this run: means are over the other sets.",
            "The paper's figures, too, are means over the other sets, where it prints each of them.",
        )
        cell = json.loads(run_json(run))["tables"]["levels"]["detectors"]["KNN"]["average"]
        assert cell["paper"]["fpr95"] == pytest.approx(0.3232)
        assert cell["this_run"]["fpr95"]["mean"] == pytest.approx(0.3232)

    def test_a_figure_without_its_parts_is_left_out(self):
        figures = dict.fromkeys(C10.ood, (30.0, 90.0))
        found = [r for r in records_of(C10, "GaussianMixture", figures) if r.ood != "lsun"]
        row = self.paper_row(BenchmarkRun(C10, found), "levels", "GaussianMixture")
        assert row == ["51.8 / 89.3", "", "7.0 / 98.8", ""]

    def test_an_added_set_has_none(self):
        more = C10.with_ood("far", "noise")
        run = BenchmarkRun(more, as_the_paper(C10))
        run.records += [replace(r, ood="noise", fpr95=0.9) for r in run.records if r.ood == "svhn"]
        assert self.paper_row(run, "levels") == ["42.3 / 90.5", "37.0 / 93.4", "", ""]
        assert self.paper_row(run, "detailed")[-3:] == ["8.1 / 98.6", "", ""]
        assert tables(run)["levels"].notes[0].startswith("With noise, not in the paper:")

    def test_claims_are_judged_on_the_paper_s_sets(self):
        found = as_the_paper(C100)
        added = [replace(r, ood="noise", fpr95=1.0, auroc=0.0) for r in found if r.ood == "svhn"]
        others = check_claims(found + added, C100.with_ood("far", "noise"))
        assert others == check_claims(found, C100)
        less = [r for r in found if r.ood != "svhn"]
        claims = {claim.name: claim for claim in check_claims(less, C100)}
        expected = {**dict.fromkeys("bcde", UNTESTED), "f": HOLDS}
        assert {name: claim.verdict for name, claim in claims.items()} == expected
        assert claims["d"].lacks == ("SVHN",)
        near = [r for r in as_the_paper(C10) if r.ood != "cifar100"]
        assert set(verdicts(C10, near).values()) == {UNTESTED}


@pytest.mark.parametrize(("levels", "words"), [
    ({"near": ("a",), "mid": ("b",), "far": ("c",)}, "near, mid and far"),
    ({"near": ("a",), "mid": (), "far": ("c",)}, "near and far"),
    ({"near": (), "mid": ("b",), "far": ()}, "mid"),
])  # fmt: skip
def test_the_first_table_names_the_levels_that_there_are(levels, words):
    protocol = Protocol("shapes", **levels)
    run = BenchmarkRun(protocol, [record(protocol, "SSD", ood, 0.5, 0.5) for ood in protocol.ood])
    assert tables(run)["levels"].title.startswith(f"shapes against {words} OOD: ")


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


def test_where_nothing_can_be_compared_there_is_no_table(run):
    assert comparison_table(small_run()) is None
    assert comparison_table(make_run(detectors=("SSD",))) is None


def test_zero_is_on_neither_side():
    for interval, clear in (((0.0, 0.1), False), ((-0.1, 0.0), False), ((0.01, 0.1), True), ((-0.1, -0.01), True)):
        assert Difference(0.0, interval).clear is clear
    assert benchmark_tables._interval(Difference(-0.031, (-0.05, 0.0002))) == "−3.1 [−5.0, 0.0]"


def test_the_report_shows_it_and_fewer_rows_where_there_are_any(tmp_path):
    run = make_run(backbones=("one",), detectors=("SSD", "MSP"), n=50)
    run.layouts.clear()
    run.low_data = [LowData(f, "one", d, None, 0.5, 0.5) for f in (0.1, 1.0) for d in ("MSP", "SSD")]
    write_report(run, tmp_path)
    best = best_row(run)
    for name in ("tables.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert f"{best} against the others" in text
        assert "400 resamples" in text
        assert "fewer training rows" in text
    assert "a line begins where a detector can be fitted" in (tmp_path / "report.html").read_text()
    write_report(small_run(), tmp_path)
    assert "against the others" not in (tmp_path / "tables.md").read_text()


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
