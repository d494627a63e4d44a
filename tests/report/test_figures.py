"""Figures of a benchmark: what is written, and that panels show the numbers they should."""

import dataclasses
import io
import json
import os

import matplotlib
import numpy as np
import pytest
from PIL import Image
from tests.helpers.benchmark_samples import PAPER, PROTOCOL, make_run

import outfield as of
from outfield.benchmark import BenchmarkRun, Layout, Protocol, summarise
from outfield.energy import History
from outfield.report import figures, risk_table
from outfield.report.benchmark_files import run_json
from outfield.report.canvas import new_figure, subplots, svg_text
from outfield.report.figures import chart, scores
from outfield.report.page import page

FEW = Protocol("known", near=("a",), mid=(), far=())
NAMES = {"sets", "roc", "histograms", "features", "training"}


@pytest.fixture(scope="module")
def run():
    return make_run()


def axes_of(panel):
    axes = subplots(new_figure(4, 3))[0, 0]
    panel.draw(axes)
    return axes


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_every_figure_is_written_in_full_size(run, tmp_path):
    written = figures.write_figures(run, tmp_path / "new" / "folder", PAPER)
    assert {path.stem for path in written} == NAMES
    assert sorted(path.name for path in written) == sorted(os.listdir(tmp_path / "new" / "folder"))
    widths = {"sets": 3 * 3.4, "roc": 3 * 3.4, "histograms": 4 * 3.4, "features": 4 * 2.5, "training": 3 * 3.4}
    for path in written:
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert image.width == round(200 * widths[path.stem])
            assert image.height > 500
            pixels = np.asarray(image.convert("RGB"))
        assert (pixels[0, 0] == 255).all()
        inked = (pixels < 250).any(2)
        assert 0.005 < inked.mean() < 0.6
        assert not inked[:, -1].any(), "something is cut off at the right"


def test_risk_is_drawn_where_wrong_answers_are_known(run, tmp_path):
    assert not figures.charts(run)["risk"]
    wrong = np.random.default_rng(0).uniform(size=200) < 0.2
    known = dataclasses.replace(run, wrong={"one": wrong})
    (found,) = figures.charts(known)["risk"]
    assert [panel.title for panel in found.panels] == ["ID inputs alone", "half of the inputs OOD"]
    curve = known.risks()["SSD"][0]
    line = axes_of(found.panels[0]).lines[[mark.label for mark in found.marks].index("SSD")]
    assert line.get_ydata()[-1] == pytest.approx(100 * wrong.mean())
    assert np.isin(line.get_ydata(), 100 * curve.risk).all()
    assert f"SSD {100 * curve.aurc():.1f}" in found.panels[0].alt
    assert (tmp_path / "risk.png") in figures.write_figures(known, tmp_path)
    table = risk_table(known.risks())
    assert table.rows[1][:2] == ["SSD", f"{100 * curve.aurc():.1f}"]
    assert json.loads(run_json(known))["risk"]["SSD"]["augrc"] == curve.augrc()
    assert "Risk and coverage" in page(known, drawn={"risk": [("Risk", "<p></p>")]})
    assert risk_table({}) is None


@pytest.mark.parametrize(("lacking", "left"), [
    ({"scores": {}}, {"sets", "features", "training"}),
    ({"layouts": []}, NAMES - {"features"}),
    ({"histories": {}}, NAMES - {"training"}),
])  # fmt: skip
def test_a_chart_without_data_is_left_out(run, lacking, left):
    assert {kind for kind, found in figures.charts(dataclasses.replace(run, **lacking)).items() if found} == left


def test_figures_of_an_earlier_run_do_not_stay(tmp_path):
    run = make_run(FEW, backbones=("one",), detectors=("EBM",), n=12)
    names = {path.name for path in figures.write_figures(run, tmp_path)}
    assert "training.png" in names
    (tmp_path / "mine.png").write_text("mine")
    left = {path.name for path in figures.write_figures(dataclasses.replace(run, histories={}, layouts=[]), tmp_path)}
    assert left == names - {"training.png", "features.png"}
    assert {path.name for path in tmp_path.iterdir()} == left | {"mine.png"}


@pytest.mark.parametrize("digits", [0, 8])  # with many ties, and with none
def test_the_roc_curve_agrees_with_the_metrics(digits):
    rng = np.random.default_rng(1)
    ids, oods = rng.standard_normal(1000).round(digits), (rng.standard_normal(700) + 1).round(digits)
    grid = np.unique(np.append(np.linspace(0, 1, 4001), 0.05))
    curve = scores.roc_curve(ids, oods, grid)
    assert curve[-1] == 1
    assert (np.diff(curve) >= 0).all()
    area = float(((curve[1:] + curve[:-1]) / 2 * np.diff(grid)).sum())
    assert area == pytest.approx(of.auroc(ids, oods), abs=1e-3)
    if digits:
        assert np.interp(0.05, grid, curve) == pytest.approx(1 - of.fpr95(ids, oods), abs=1e-9)


def test_the_threshold_keeps_what_it_says():
    assert scores.keeping(np.arange(20.0)) == 18  # 19 of 20, which floating point would make 20
    assert scores.keeping(np.array([3.0])) == 3


def test_a_histogram_tells_the_shares_of_the_tables(run):
    panels = {panel.title: panel for panel in figures.histogram_chart(run, "one").panels}
    records = [record for record in run.records if record.backbone == "one" and record.seed in (None, 0)]
    for name, cells in summarise(records, PROTOCOL.levels).items():
        words = ", ".join(f"{level} {100 * cells[level].fpr95.mean:.0f} %" for level in PROTOCOL.levels)
        assert panels[name].note == f"accepted: {words}"
        assert words in panels[name].alt


def test_histograms_have_their_threshold_and_unit_area(run):
    chart_ = figures.histogram_chart(run, "two")
    key = next(key for key in run.scores if key.backbone == "two" and key.detector == "SSD")
    axes = axes_of(next(panel for panel in chart_.panels if panel.title == "SSD"))
    assert axes.lines[0].get_xdata()[0] == pytest.approx(scores.keeping(run.scores[key]["known"]))
    for steps in axes.patches[::2]:
        values, edges, _ = steps.get_data()
        assert (values * np.diff(edges)).sum() == pytest.approx(1)
    assert "log" in axes_of(chart_.panels[0]).get_xlabel()  # MSP's long tail
    assert "log" not in axes.get_xlabel()


@pytest.mark.parametrize("value", [0.0, -2.0, 7.0])
def test_scores_that_are_all_equal_are_drawn(value):
    run = make_run(backbones=("one",), detectors=("SSD",))
    run.scores = {key: {name: np.full(3, value, np.float32) for name in scores} for key, scores in run.scores.items()}
    for panel in (*figures.histogram_chart(run, "one").panels, *figures.roc_chart(run).panels):
        axes_of(panel)


def test_roc_panels_per_level_whole_and_close(run):
    chart_ = figures.roc_chart(run)
    assert [panel.level for panel in chart_.panels] == ["near", "mid", "far"] * 2
    axes = axes_of(chart_.panels[3])
    assert axes.get_xscale() == "log"
    assert len(axes.lines) == 1 + 4  # the 95 % line and each detector
    assert len(chart_.marks) == 5


def test_sets_show_every_fit_the_mean_and_the_paper(run):
    chart_ = figures.set_chart(run, PAPER)
    assert [panel.title for panel in chart_.panels][:2] == ["apes (near)", "bees (near)"]
    assert chart_.down
    axes = axes_of(chart_.panels[0])
    records = [record for record in run.records if record.ood == "apes"]
    drawn = [line.get_xdata()[0] for line in axes.lines if line.get_marker() in "os" and len(line.get_xdata()) == 1]
    rings = [line.get_xdata()[0] for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert rings == [57.25, 10]
    assert sorted(drawn) == pytest.approx(sorted([100 * record.fpr95 for record in records] + rings))
    cells = summarise(records, {"apes": ("apes",)})
    assert texts(axes) == [f"{100 * cell['apes'].fpr95.mean:.1f}" for cell in cells.values()]
    plain = axes_of(figures.set_chart(run).panels[0]).lines
    assert not [line for line in plain if line.get_markerfacecolor() == "none"]
    assert "the paper" not in [mark.label for mark in figures.set_chart(run).marks]
    uneven = Protocol("known", near=("a",), mid=(), far=("b", "c", "d"))
    assert not figures.set_chart(make_run(uneven, n=5)).down


def test_each_detector_has_a_look_of_its_own():
    found = chart.looks([*chart.DETECTOR_LOOKS, "mine", "yours"])
    assert found["KNN"] == chart.DETECTOR_LOOKS["KNN"]
    assert len({colour for colour, _ in found.values()}) == 10
    assert len({*chart.looks([f"d{i}" for i in range(32)]).values()}) == 32 + len(chart.DETECTOR_LOOKS)


@pytest.mark.parametrize(("names", "shown"), [
    (("ant", "bee", "cow"), ["ant", "bee", "cow"]),
    ((), ["class 0", "class 1", "class 2"]),
    (("ant",), ["ant", "class 1", "class 2"]),
])  # fmt: skip
@pytest.mark.parametrize("of_id", ["known", "cifar10"])
def test_classes_go_by_the_names_that_the_data_gives_them(names, shown, of_id):
    """Also where somebody's own data is called as a published set is."""
    run = make_run(dataclasses.replace(PROTOCOL, id=of_id), backbones=("one",), detectors=("SSD",), n=5)
    run.classes = names
    assert [text.strip() for text in texts(axes_of(figures.layout_chart(run, run.layouts[0]).panels[0]))] == shown


class TestLegends:
    def labels(self, chart_):
        return [mark.label for mark in chart_.marks]

    def test_levels_without_scores_are_left_out(self):
        run = make_run(backbones=("one",), detectors=("SSD",))
        run.scores = {
            key: {name: found for name, found in scores.items() if name not in ("cats", "dogs")}
            for key, scores in run.scores.items()
        }
        assert "mid-OOD" not in self.labels(figures.histogram_chart(run, "one"))
        assert "far-OOD" in self.labels(figures.histogram_chart(run, "one"))

    def test_one_fit_has_no_mean_and_the_paper_only_where_it_is_drawn(self):
        run = make_run(backbones=("one",), detectors=("MSP", "EBM"), seeds=(0,))
        assert self.labels(figures.set_chart(run)) == []
        assert self.labels(figures.set_chart(run, PAPER)) == ["one fit", "the paper"]
        assert self.labels(figures.set_chart(run, {"KNN": PAPER["MSP"]})) == []  # of a detector that was not run
        assert self.labels(figures.training_chart(run)) == ["energy of real features", "energy of chain ends"]


def test_dots_are_all_drawn():
    """Strokes without length must leave as much ink as markers would."""
    points = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), -1).reshape(-1, 2)
    view = Layout("one", points, ("known",) * 144, np.full(144, -1))
    found = figures.layout_chart(BenchmarkRun(PROTOCOL), view)
    buffer = io.BytesIO()
    chart.single(found, found.panels[0]).savefig(buffer, dpi=200)
    blue = np.asarray(Image.open(buffer).convert("RGB")).astype(int)
    assert (blue[..., 2] - blue[..., 0] > 60).sum() > 144 * 15


@pytest.mark.parametrize("points", [np.zeros((6, 2)), np.full((6, 2), 1e9), np.arange(12.0).reshape(6, 2)])
def test_odd_views_are_drawn(points):
    view = Layout("one", points, ("known", "apes") * 3, np.full(6, -1))
    for panel in figures.layout_chart(BenchmarkRun(PROTOCOL), view).panels:
        axes_of(panel)


def test_many_classes_go_without_numbers():
    labels = np.arange(50)
    view = Layout("one", np.random.default_rng(0).standard_normal((50, 2)), ("known",) * 50, labels)
    assert texts(axes_of(figures.layout_chart(BenchmarkRun(PROTOCOL), view).panels[0])) == []


def test_training_shows_each_fit_and_the_mean(run):
    loss, energies, gap = figures.training_chart(run).panels[:3]
    lines = axes_of(loss).lines
    assert len(lines) == 4 + 1
    assert lines[-1].get_ydata() == pytest.approx([3, 2, 1])
    assert len(axes_of(energies).lines) == 10
    assert axes_of(gap).lines[-1].get_ydata() == pytest.approx([0.1, 0.5, 1.2])


def test_training_of_one_epoch_is_a_dot():
    run = make_run(backbones=("one",), detectors=("EBM",))
    run.histories = {next(iter(run.histories)): History([1.0], [1.0], [1.0])}
    assert axes_of(figures.training_chart(run).panels[0]).lines[0].get_marker() == "o"


def test_fits_of_different_lengths_have_no_mean():
    run = make_run(backbones=("one",), detectors=("EBM",))
    histories = [History([1.0] * n, [1.0] * n, [2.0] * n) for n in (2, 3)]
    run.histories = dict(zip([*run.histories][:2], histories, strict=True))
    assert [len(line.get_xdata()) for line in axes_of(figures.training_chart(run).panels[0]).lines] == [2, 3]


def test_settings_of_matplotlib_stay_as_they_are(tmp_path, monkeypatch):
    """They belong to the whole process: another thread would see them changed, and a user's own must not show in figures."""
    run, plain = make_run(FEW, ("one",), ("EBM",), n=20), tmp_path / "plain"
    figures.write_figures(run, plain)
    own = {"axes.grid": True, "text.color": "red", "font.family": "serif", "axes.facecolor": "black"}
    with matplotlib.rc_context(own):
        before = dict(matplotlib.rcParams)
        with monkeypatch.context() as patch:
            patch.setattr(matplotlib, "rc_context", lambda *_: pytest.fail("a setting of Matplotlib is being changed"))
            written = figures.write_figures(run, tmp_path / "other")
            svg_text(chart.single(figures.roc_chart(run), figures.roc_chart(run).panels[0]))
        assert dict(matplotlib.rcParams) == before
    for path in written:
        assert path.read_bytes() == (plain / path.name).read_bytes(), path.name
