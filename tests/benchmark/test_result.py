"""What a run hands on: its records as a table, names of classes, layouts in two dimensions, a file; results of one detector."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.helpers.fake_benchmark import PROTOCOL, FakeBackbone, detectors, feature_sets, image_sets
from tests.helpers.records import SMALL, record, small_run

import outfield as of
from outfield.benchmark import benchmark_features, load_run, save_run
from outfield.benchmark.fits import embed, lay_out
from outfield.benchmark.result import COLUMNS


class TestTable:
    def test_one_row_for_each_record(self):
        pandas = pytest.importorskip("pandas")
        run = small_run()
        table = run.table()
        assert isinstance(table, pandas.DataFrame)
        assert list(table.columns) == list(COLUMNS)
        assert len(table) == len(run.records)
        for name in (name for name in COLUMNS if name != "seed"):
            assert table[name].tolist() == [getattr(found, name) for found in run.records]
        assert table["seed"].dtype == "Int64"
        assert table["seed"].isna().tolist() == [one.seed is None for one in run.records]
        assert table[table["detector"] == "EnergyCorrected"]["seed"].tolist() == [0, 1] * 8
        by_hand = [one.fpr95 for one in run.records if (one.detector, one.level) == ("KNN", "near")]
        means = table.groupby(["detector", "level"])["fpr95"].mean()
        assert means["KNN", "near"] == pytest.approx(sum(by_hand) / len(by_hand))
        assert [*of.BenchmarkRun(SMALL).table()] == list(COLUMNS)

    def test_without_pandas_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(of.MissingExtraError, match=r"needs pandas.*pip install 'outfield\[tables\]'"):
            small_run().table()


class TestRepr:
    def test_it_is_one_short_line(self):
        assert repr(small_run()) == "BenchmarkRun(shapes: 2 detectors × 4 OOD sets × 2 backbones, 24 records)"
        many = of.BenchmarkRun(SMALL, [record(SMALL, "KNN", "a", 0.5, 0.5)] * 1234)
        assert repr(many) == "BenchmarkRun(shapes: 1 detector × 1 OOD set × 1 backbone, 1,234 records)"


NAMES = ("dark", "grey", "bright")


@pytest.mark.parametrize("protocol", [PROTOCOL, replace(PROTOCOL, id="cifar10")], ids=["shapes", "cifar10"])
@pytest.mark.parametrize(("test", "train"), [(NAMES, ("a", "b", "c")), (None, NAMES), (None, None)])
def test_images_name_their_classes(protocol, test, train, tmp_path):
    """Not a published set that the ID set is called after."""
    images = image_sets()
    images["test"].classes, images["train"].classes = test, train
    run = of.run_benchmark(protocol, images, [FakeBackbone()], tmp_path, detectors=detectors("SSD"), layout=False)
    assert run.classes == (test or train or ())


def test_features_have_none_unless_they_are_given_and_a_saved_run_keeps_them(tmp_path):
    sets, settings = {"net": feature_sets()}, {"detectors": detectors("SSD"), "layout": False}
    assert of.benchmark_features(PROTOCOL, sets, **settings).classes == ()
    named = of.benchmark_features(PROTOCOL, sets, **settings, classes=list(NAMES))
    save_run(named, tmp_path / "run.safetensors")
    found = load_run(tmp_path / "run.safetensors")
    assert named.classes == found.classes == NAMES
    assert found.records == named.records


@pytest.fixture
def sets():
    torch.manual_seed(0)
    labels = torch.arange(60) % 3
    train = of.FeatureSet(torch.rand(60, 5) + 4 * torch.eye(5)[labels], labels=labels)
    return train, train, {"other": of.FeatureSet(torch.rand(30, 5))}


def test_risk_and_coverage_count_every_ood_answer_as_wrong(tmp_path):
    sets = feature_sets()
    test, ood = sets["test"], {name: sets[name] for name in PROTOCOL.ood}
    risks, detector = {}, of.SSD().fit(sets["train"])
    of.evaluate(detector, test, ood, risks)
    known, both = risks["SSD"]
    wrong = (test.logits.argmax(1) != test.labels).numpy()
    assert known.aurc() == of.aurc(detector.score(test), wrong)
    assert both.risk[-1] == pytest.approx((1 + wrong.mean()) / 2)  # half of the inputs are OOD
    run = benchmark_features(PROTOCOL, {"one": sets}, detectors={"SSD": of.SSD()}, layout=False)
    save_run(run, tmp_path / "run.safetensors")
    for one in (run, load_run(tmp_path / "run.safetensors")):
        assert one.wrong["one"].tolist() == wrong.tolist()
        assert one.risks()["SSD"][1].aurc() == both.aurc()
    plain = of.FeatureSet(test.features)
    of.evaluate(detector, plain, ood, none := {})
    assert none == {}


def test_one_detector_or_a_mapping_is_evaluated_and_nothing_else(sets):
    train, test, ood = sets
    detector = of.SSD().fit(train)
    alone = of.evaluate(detector, test, ood)  # by the name of its class
    assert alone == of.evaluate({"SSD": detector}, test, ood)
    assert [(result.detector, result.ood, result.n_id, result.n_ood) for result in alone] == [("SSD", "other", 60, 30)]
    with pytest.raises(of.InputError, match="ood is 'FeatureSet'; it must be a mapping by name"):
        of.evaluate(detector, test, ood["other"])
    with pytest.raises(of.InputError, match="detectors is 'list'"):
        of.evaluate([detector], test, ood)
    with pytest.raises(of.InputError, match=r"detectors\['a'\] is 'int'; it must be a Detector"):
        of.evaluate({"a": 3}, test, ood)
    with pytest.raises(of.InputError, match=r"ood\['b'\] is 'Tensor'; it must be a FeatureSource"):
        of.evaluate(detector, test, {"b": torch.ones(2, 5)})
    with pytest.raises(of.InputError, match="test is 'list'"):
        of.evaluate(detector, [1], ood)


@pytest.mark.parametrize("shape", [(4, 1), (30, 1), (4, 2), (5, 80), (70, 3)])
def test_every_row_has_a_place(shape):
    z = np.random.default_rng(0).random(shape).astype(np.float32)
    points = embed(z, seed=0)
    assert points.shape == (shape[0], 2)
    assert points.dtype == np.float32
    assert np.isfinite(points).all()
    assert np.ptp(points, axis=0).any()


def test_its_library_is_missed_before_any_work(monkeypatch, count):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    settings = {"detectors": detectors("SSD"), "seeds": 1}
    with pytest.raises(of.MissingExtraError, match=r"outfield\[report\]"):
        benchmark_features(PROTOCOL, {"a": feature_sets()}, **settings)
    assert not count
    assert benchmark_features(PROTOCOL, {"a": feature_sets()}, **settings, layout=False).records
    with pytest.warns(DeprecationWarning, match="view is called layout now"):
        assert benchmark_features(PROTOCOL, {"a": feature_sets()}, **settings, view=False).layouts == []


def test_clusters_stay_apart_and_equal_seeds_give_equal_layouts():
    rng = np.random.default_rng(0)
    near, far = (of.FeatureSet(np.abs(centre + 0.01 * rng.standard_normal((40, 8)))) for centre in np.eye(8)[:2] + 0.1)
    found = lay_out("net", {"id": near, "ood": far})
    assert np.array_equal(found.points, lay_out("net", {"id": near, "ood": far}).points)
    one, two = (found.points[np.array(found.sets) == name] for name in ("id", "ood"))
    assert np.linalg.norm(one.mean(0) - two.mean(0)) > 2 * max(one.std(), two.std())


def test_what_cannot_be_laid_out_lies_at_the_origin():
    same = of.FeatureSet(np.ones((9, 4)))
    assert not lay_out("net", {"id": same, "ood": same}).points.any()
    assert not embed(np.random.default_rng(0).random((3, 5)), seed=0).any()
    line = of.FeatureSet(np.linspace(1, 2, 9)[:, None])
    assert lay_out("net", {"id": line, "ood": line}).points.shape == (18, 2)
