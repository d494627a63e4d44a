"""OpenOOD's protocols: its figures beside ours, marked as another network's, and nothing of the paper."""

import json

from tests.helpers.html_tree import parse
from tests.helpers.records import records_of

import outfield as of
from outfield.benchmark import PROTOCOLS, BenchmarkRun, check_claims, load_run, paper, published, save_run
from outfield.benchmark import published_beside as beside
from outfield.report import read_run, tables, write_report
from outfield.report.page import page

OPEN = PROTOCOLS["openood-cifar10"]


def run_of(protocol=OPEN, names=("KNN", "MSP", "EnergyCorrected"), without=()):
    found = [r for name in names for r in records_of(protocol, name, {"near": (40.0, 90.0), "far": (20.0, 95.0)})]
    return BenchmarkRun(protocol, [r for r in found if r.ood not in without])


def test_rows_are_of_our_detectors_and_of_near_and_far():
    for name, rows in paper.OPENOOD.items():
        assert name in PROTOCOLS
        assert set(rows) <= set(of.DETECTORS)
        for cells in rows.values():
            assert list(cells) == ["near", "far"]
            assert all(cell.fpr95 is None and 50 < cell.auroc < 100 for cell in cells.values())
    ten, hundred = paper.OPENOOD["openood-cifar10"], paper.OPENOOD["openood-cifar100"]
    assert (len(ten), len(hundred)) == (18, 15)
    assert [ten["KNN"][level].auroc for level in ("near", "far")] == [90.6, 93.0]
    assert [hundred["KNN"][level].auroc for level in ("near", "far")] == [80.2, 82.4]


def test_figures_stand_below_ours_without_an_fpr95():
    table = tables(run_of())["levels"]
    assert table.header == ["detector", "", "near OOD", "far OOD", "average"]
    assert [row for row in table.rows if row[1] != "this run"] == [
        ["", "OpenOOD", "– / 88.0", "– / 90.7", ""],
        ["", "OpenOOD", "– / 90.6", "– / 93.0", ""],
    ]
    assert "OpenOOD: OpenOOD 1.5's leaderboard, ResNet-18." in table.notes
    assert paper.OPENOOD_NOTE in table.notes
    assert "ResNet-18" in paper.OPENOOD_NOTE
    assert "own selection" in paper.OPENOOD_NOTE
    assert not any("paper" in note for note in table.notes)
    assert not any(row[1] == "OpenOOD" for row in tables(run_of())["detailed"].rows)
    assert "ablation" not in tables(run_of())


def test_over_other_sets_there_is_no_figure():
    run = run_of(without=("mnist",))
    rows = [row[2:] for row in tables(run)["levels"].rows if row[1] == "OpenOOD"]
    assert rows == [["– / 88.0", "", ""], ["– / 90.6", "", ""]]
    notes = tables(run)["levels"].notes
    assert "Without MNIST, not there in this run: means are over the other sets." in notes
    assert "OpenOOD's figures, too, are means over the other sets, where it prints each of them." in notes
    more = tables(run_of(OPEN.with_ood("far", "mine")))["levels"].notes
    assert "With mine, not in OpenOOD: it has no figure for a mean over more than its sets." in more


def test_a_mean_of_figures_without_fpr95_has_none():
    rows = {"with": {"a": (20.0, 80.0), "b": (40.0, 90.0)}, "without": {"a": (None, 80.0), "b": (40.0, 90.0)}}
    found = published(rows, {"near": ("a", "b")}, of.Protocol("x", ("a", "b"), (), ()))
    assert found == {"with": {"near": (30.0, 85.0)}, "without": {"near": (None, 85.0)}}


def test_the_papers_claims_and_figures_are_not_about_it():
    run = run_of()
    assert check_claims(run.records, OPEN) == []
    assert beside(OPEN).rows is paper.OPENOOD["openood-cifar10"]
    assert beside(OPEN, ["KNN"]).notes == (paper.OPENOOD_NOTE,)
    theirs = beside(PROTOCOLS["cifar10"], ["KNN"])
    assert (theirs.label, theirs.words) == ("paper", "the paper")
    assert theirs.rows["KNN"]["near"] == (42.3, 90.5)
    assert theirs.rows["KNN"]["svhn"] == (8.1, 98.6)
    assert len(theirs.notes) == 1
    assert beside(PROTOCOLS["cifar10"]).notes == ()
    own = beside(of.Protocol("photos", ("a",), (), ()))
    assert (own.rows, own.notes) == ({}, ())


def test_the_page_says_whose_figures_they_are():
    run = run_of()
    text = page(run, paper=beside(OPEN).rows, notes=beside(OPEN).notes)
    shown = parse(text).text
    assert "in italics, below ours, OpenOOD's figures" in shown
    assert paper.OPENOOD_NOTE in shown
    assert '<span class="paper">90.6</span>' in text
    assert '<span class="paper">–' not in text
    assert "; the paper:" not in text


def test_files_and_back(tmp_path):
    run = run_of()
    write_report(run, tmp_path)
    body = json.loads((tmp_path / "results.json").read_text())
    assert body["paper"] == "OpenOOD 1.5's leaderboard, ResNet-18"
    cell = body["tables"]["levels"]["detectors"]["KNN"]["near"]
    assert cell["paper"] == {"fpr95": None, "auroc": 0.906}
    assert body["tables"]["levels"]["detectors"]["EnergyCorrected"]["near"]["paper"] is None
    assert read_run(tmp_path).protocol == OPEN
    save_run(run, tmp_path / "run.safetensors")
    assert load_run(tmp_path / "run.safetensors").protocol == OPEN
    own = of.Protocol("photos", ("a",), (), ("b",), neighbours=3)
    assert own.plain() == {"id": "photos", "near": ("a",), "mid": (), "far": ("b",), "neighbours": 3}
