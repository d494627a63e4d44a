"""The demo on the features that ship with the package."""

import dataclasses
import re
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import outfield as of
from outfield.benchmark import AVERAGE, ROWS
from outfield.benchmark.paper import BY_LEVEL
from outfield.cli import app
from outfield.errors import StorageError
from outfield.images import DATASETS
from outfield.report import write_overview
from outfield.report.figures import overview_chart
from outfield.studies import demo

SHOWN = ("Auto", *(name for name in ROWS if name != "EBM"))


@pytest.fixture(scope="module")
def made():
    said = []
    return demo.run_demo(device="cpu", say=said.append), said


def test_the_pack_holds_every_set_and_is_small():
    sets = demo.pack_sets()
    assert list(sets) == ["train", "held_out", "test", *of.PROTOCOLS["cifar10"].ood]
    assert {data.features.shape[1] for data in sets.values()} == {512}
    assert sets["train"].features.dtype == torch.float16
    assert torch.bincount(sets["train"].labels).tolist() == [350] * 10
    sizes = {file.name: len(file.read_bytes()) for file in resources.files(demo.PACKAGE).iterdir() if file.is_file()}
    assert sizes["cifar10_resnet34.npz"] <= 12_000_000
    assert sum(sizes.values()) <= 20_000_000


def test_every_detector_is_in_the_table_and_tells_far_from_known(made):
    run = made[0].run
    assert {record.detector for record in run.records} == {*SHOWN}
    assert len(run.records) == 8 * 6
    for name in SHOWN:
        far = [record.auroc for record in run.records if record.detector == name and record.level == "far"]
        assert np.mean(far) > 0.9, name
    assert run.accuracies[demo.BACKBONE] > 0.9


def test_the_readme_has_the_demos_table(made):
    """To 0.3 points, which machines may differ by."""
    readme = Path(__file__, "../../../README.md").resolve().read_text()
    assert "| EBM |" not in readme
    for name in SHOWN:
        row = re.search(rf"^\| \**{name}\** \|(.*)\|$", readme, re.MULTILINE)
        shown = [[float(x) for x in cell.strip(" *").split("/")] for cell in row[1].split("|") if "/" in cell]
        means = [mean_of(made[0].run, name, levels) for levels in (["near"], ["mid"], ["far"], ["near", "mid", "far"])]
        paper = [BY_LEVEL["cifar10"][name][AVERAGE]] if name in ROWS else []
        np.testing.assert_allclose(shown, [*means, *paper], atol=0.3, err_msg=name)


def mean_of(run, detector, levels):
    chosen = [record for record in run.records if record.detector == detector and record.level in levels]
    return [100 * np.mean([getattr(record, metric) for record in chosen]) for metric in ("fpr95", "auroc")]


def test_it_says_what_was_fitted_live(made):
    result, said = made
    assert result.live == ("Auto", "MSP", "ODIN", "EnergyLogits", "KNN", "SSD", "GaussianMixture")
    assert result.left_out == ("EBM",)
    assert "EnergyCorrected: fitted beforehand" in " ".join(said)
    assert result.detectors["EnergyCorrected"].training == of.EnergyCorrected().training  # the paper's settings


def test_the_provenance_says_what_was_fitted_where(made):
    about = made[0].run.provenance
    given = [name for name, detector in about["detectors"].items() if detector["given"]]
    assert given == ["EnergyCorrected"]
    timed = {s["detector"] for s in about["stages"] if s["what"] == "detector" and s["seconds"] is not None}
    assert timed >= set(made[0].live)
    pack = demo.about_pack()
    assert about["backbones"][demo.BACKBONE]["sha256"] == pack["backbone"]["sha256"]
    assert about["pack"]["fitted"]["machine"]["device"] == "cpu"
    assert {name: len(data) for name, data in made[0].sets.items()} == pack["rows"]


def test_live_fits_everything(monkeypatch):
    few = {name: data[:: len(data) // 100] for name, data in demo.pack_sets().items()}
    quick = {
        "SSD": of.SSD(),
        "EBM": of.EBM(training=of.Training(epochs=1, batch_size=32, start="normal"), sampler=of.Langevin(steps=1)),
    }
    monkeypatch.setattr(demo, "pack_sets", lambda: few)
    monkeypatch.setattr(demo, "default_detectors", lambda _: quick)
    result = demo.run_demo(live=True, device="cpu")
    assert result.live == ("SSD", "EBM")
    assert result.left_out == ()
    assert len(result.detectors["EBM"].history_.loss) == 1


def test_what_comes_fitted_belongs_to_the_packs_rows(made):
    """The mixture inside the fitted correction is the mixture of the pack's training rows."""
    fitted, live = made[0].detectors["EnergyCorrected"].prior_, made[0].detectors["GaussianMixture"].mixture_
    rows = torch.nn.functional.normalize(made[0].sets["test"].features.float())
    ours, theirs = (prior.energy(rows) for prior in (fitted, live))
    assert float((ours - theirs).abs().max()) < 1e-3 * float(theirs.abs().max())


def test_thresholds_are_chosen_on_images_that_nothing_else_uses(made):
    """And what is reported is found on the test images, which chose nothing."""
    demo_run, sets = made[0], made[0].sets
    for name, detector in demo_run.detectors.items():
        chosen, other = (of.Threshold.fit(detector.score(sets[part])).value for part in ("held_out", "test"))
        chosen = detector.threshold().value if name == "Auto" else chosen
        assert demo_run.thresholds[name].value == chosen != other, name
        key = next(key for key in demo_run.run.scores if key.detector == name)
        assert np.array_equal(demo_run.run.scores[key]["cifar10"], detector.score(sets["test"]).numpy()), name
    rows = {name: {tuple(row) for row in sets[name].features.tolist()} for name in ("train", "held_out", "test")}
    assert not rows["held_out"] & (rows["train"] | rows["test"])


def test_thresholds_keep_what_they_promise(made):
    for name, detector in made[0].detectors.items():
        refused = made[0].thresholds[name].is_ood(detector.score(made[0].sets["test"])).float().mean()
        assert 0.01 < float(refused) < 0.12, name


def test_the_picture(made, tmp_path):
    write_overview(made[0].run, tmp_path / "demo.png")
    assert Image.open(tmp_path / "demo.png").width > 2000


def test_the_picture_ends_with_what_every_detector_accepts(made):
    """Each detector's mean over the sets and its dots of the levels, the lowest mean on top; Auto's row stands out."""
    run = made[0].run
    *others, last = overview_chart(run).panels
    assert [panel.title for panel in others[-3:]] == ["KNN", "SSD", "Auto"]
    axes = Figure().subplots()
    last.draw(axes)
    levels = {level: [mean_of(run, name, [level])[0] for name in SHOWN] for level in ("near", "mid", "far")}
    means = dict(zip(SHOWN, np.mean(list(levels.values()), axis=0), strict=True))
    order = sorted(SHOWN, key=means.get)
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [means[name] for name in order])
    written = [(text.get_text(), text.get_fontweight()) for text in axes.texts]
    weights = ["bold" if name == "Auto" else "normal" for name in order]
    assert written[::2] == list(zip(order, weights, strict=True))
    assert written[1::2] == [(f"{means[name]:.0f} %", weight) for name, weight in zip(order, weights, strict=True)]
    dots = [line.get_xdata()[0] for line in axes.lines]
    expected = [levels[level][SHOWN.index(name)] for name in order for level in levels]
    np.testing.assert_allclose(dots, expected)
    assert f"{order[0]} {means[order[0]]:.1f}" in last.alt


@pytest.mark.parametrize("width", [2.5, 3.4])
def test_the_picture_names_the_classes_inside_its_frame(made, width):
    axes = Figure(figsize=(width, 2.5)).subplots()
    overview_chart(made[0].run).panels[0].draw(axes)
    axes.figure.draw_without_rendering()
    assert {text.get_text().strip() for text in axes.texts} == set(DATASETS["cifar10"].classes)
    frame = axes.get_window_extent()
    for text in axes.texts:
        where = text.get_window_extent()
        assert frame.x0 <= where.x0, text.get_text()
        assert where.x1 <= frame.x1, text.get_text()


def test_a_run_without_a_view_has_no_picture(made):
    with pytest.raises(of.InputError, match="layout=True"):
        overview_chart(dataclasses.replace(made[0].run, layouts=[]))


def test_the_command_leaves_everything_beside_the_page(made, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("outfield.studies.run_demo", lambda live, device: asked.append((live, device)) or made[0])
    app(["demo", "--out", str(tmp_path / "demo [/]"), "--live", "--device", "cpu"], standalone_mode=False)
    assert asked == [(True, "cpu")]
    (tmp_path / "demo [/]").rename(tmp_path / "demo")
    written = {path.name for path in (tmp_path / "demo").iterdir()}
    assert {"report.html", "demo.png", "tables.md"} <= written
    assert {"SSD.safetensors", "SSD.threshold.safetensors", "svhn.safetensors"} <= written
    said = capsys.readouterr().out
    assert "Fitted beforehand on the same rows" in " ".join(said.split())
    assert "Not shown, because it does not come fitted: EBM; outfield demo --live fits it." in " ".join(said.split())
    assert said.rstrip().endswith("outfield serve --demo")
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "Fitted live" in page
    assert "does not come fitted: EBM" in page
    assert "bedrooms" in page
    assert "what this run finds" not in page  # a few images of one backbone are no evidence on the paper's claims


def test_a_copy_without_data_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "outfield_demo", None)
    with pytest.raises(StorageError, match="package outfield-demo"):
        demo.pack_sets()
