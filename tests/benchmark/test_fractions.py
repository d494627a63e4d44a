"""Detectors on fractions of the training rows: which rows, what is fitted, what is kept."""

import itertools
import json
import statistics

import numpy as np
import pytest
import torch
from tests.helpers.fake_benchmark import PROTOCOL, FakeBackbone, detectors, feature_sets, run_images, run_rows
from tests.helpers.samples import quick

import outfield as of
from outfield.benchmark import Key, LowData, checked_fractions, fraction_cells, load_run, save_run
from outfield.benchmark.sets import rows_of
from outfield.features import Part
from outfield.report.benchmark_files import read_run, run_json, write_tables

LABELS = torch.tensor([0] * 100 + [1] * 30 + [2] * 7 + [5])


class TestRows:
    @pytest.mark.parametrize("fraction", [0.001, 0.07, 0.1, 0.3, 0.999, 1.0])
    def test_every_class_has_its_share_rounded_up(self, fraction):
        mask = rows_of(LABELS, fraction)
        for label, n in ((0, 100), (1, 30), (2, 7), (5, 1)):
            assert int(mask[label == LABELS].sum()) == int(np.ceil(round(fraction * n, 9)))

    def test_smaller_ones_lie_within_larger_ones(self):
        masks = [rows_of(LABELS, fraction) for fraction in (0.01, 0.03, 0.1, 0.3, 0.5, 1)]
        for small, large in itertools.pairwise(masks):
            assert bool((large | ~small).all())
            assert int(small.sum()) < int(large.sum())
        assert bool(masks[-1].all())


class TestSettings:
    def test_sorted_with_all_rows_among_them(self):
        assert checked_fractions([0.3, 0.01]) == [0.01, 0.3, 1.0]
        assert checked_fractions([1, np.float32(0.5)]) == [0.5, 1.0]
        assert checked_fractions([]) == []
        assert all(type(fraction) is float for fraction in checked_fractions([1, np.float64(0.5)]))

    @pytest.mark.parametrize(("wrong", "said"), [([0], "fraction is 0"), ([1.1], "fraction is 1.1"), ([0.1, 0.1], "fractions is"),
                                                 ([-0.5], "above 0 and at most 1"), (["x"], "fraction is 'x'")])  # fmt: skip
    def test_wrong_ones_are_found_before_any_work(self, wrong, said, monkeypatch):
        monkeypatch.setattr(of.SSD, "fit", lambda *_: pytest.fail("it was fitted"))
        with pytest.raises(of.InputError, match=said):
            run_rows(detectors=detectors("SSD"), fractions=wrong)


@pytest.fixture(scope="module")
def run():
    sets = {"a": feature_sets(0), "b": feature_sets(1)}
    chosen = detectors("SSD", "EnergyCorrected") | {"KNN": of.KNN(k=20)}
    return of.benchmark_features(PROTOCOL, sets, detectors=chosen, seeds=2, layout=False, fractions=[0.8, 0.1])


def low_data(run, *key):
    (found,) = [one for one in run.low_data if (one.fraction, one.backbone, one.detector, one.seed) == key]
    return found


class TestFeatures:
    def test_figures_are_means_of_a_fit_on_those_rows(self, run):
        sets = feature_sets(1)
        part = Part(sets["train"], rows_of(sets["train"].labels, 0.8))
        for name, seed in (("SSD", None), ("EnergyCorrected", 1)):
            fitted = quick(name, **({} if seed is None else {"seed": seed})).fit(part)
            pairs = [of.Separation(fitted.score(sets["test"]), fitted.score(sets[ood])) for ood in PROTOCOL.ood]
            found = low_data(run, 0.8, "b", name, seed)
            assert found.fpr95 == pytest.approx(statistics.fmean(pair.fpr95() for pair in pairs), abs=1e-12)
            assert found.auroc == pytest.approx(statistics.fmean(pair.auroc() for pair in pairs), abs=1e-12)
            assert found.reason == ""

    def test_all_rows_are_those_of_the_run(self, run):
        for backbone in "ab":
            for name, seed in (("SSD", None), ("KNN", None), ("EnergyCorrected", 0), ("EnergyCorrected", 1)):
                mine = [r for r in run.records if (r.backbone, r.detector, r.seed) == (backbone, name, seed)]
                found = low_data(run, 1, backbone, name, seed)
                assert found.fpr95 == statistics.fmean(r.fpr95 for r in mine)
                assert found.auroc == statistics.fmean(r.auroc for r in mine)

    def test_where_a_detector_cannot_be_fitted_it_says_so(self, run):
        failed = [one for one in run.low_data if one.reason]
        assert [(one.fraction, one.backbone, one.detector, one.seed) for one in failed] == [
            (0.1, "a", "KNN", None), (0.1, "b", "KNN", None),
        ]  # fmt: skip
        assert all("20" in one.reason and one.fpr95 is None and one.auroc is None for one in failed)
        assert fraction_cells(run)["KNN"][0.1] == LowData(0.1, "", "KNN", None, reason=failed[0].reason)
        assert fraction_cells(run)["KNN"][0.8].fpr95 is not None

    def test_the_run_itself_is_about_all_rows(self, run):
        plain = run_rows(detectors=detectors("SSD"), seeds=2)
        assert plain.low_data == []
        assert "fractions" not in plain.provenance
        assert [r for r in run.records if (r.backbone, r.detector) == ("a", "SSD")] == plain.records
        assert set(run.scores) == {Key(b, d, s) for b in "ab" for d, s in (("SSD", None), ("KNN", None), ("EnergyCorrected", 0),
                                                                         ("EnergyCorrected", 1))}  # fmt: skip
        assert run.provenance["fractions"] == {"of training rows": [0.1, 0.8, 1.0], "seed": 0}
        scored = [stage for stage in run.provenance["stages"] if stage["what"] == "scores"]
        assert {stage["sets"] for stage in scored} == {5}

    def test_cells_are_means_over_seeds_then_backbones(self):
        one = of.BenchmarkRun(PROTOCOL, low_data=[
            LowData(0.5, "a", "EBM", 0, 0.1, 0.9), LowData(0.5, "a", "EBM", 1, 0.3, 0.7), LowData(0.5, "b", "EBM", 0, 0.6, 0.5),
            LowData(0.1, "a", "EBM", 0, 0.5, 0.6), LowData(0.1, "b", "EBM", None, reason="no"),
            LowData(0.1, "a", "SSD", None, 0.25, 0.75),
        ])  # fmt: skip
        cells = fraction_cells(one)
        assert list(cells) == ["EBM", "SSD"]
        assert list(cells["EBM"]) == [0.1, 0.5]
        assert (cells["EBM"][0.5].fpr95, cells["EBM"][0.5].auroc) == pytest.approx((0.4, 0.65))
        assert cells["EBM"][0.1] == LowData(0.1, "", "EBM", None, reason="no")
        assert cells["SSD"] == {0.1: LowData(0.1, "", "SSD", None, 0.25, 0.75)}

    def test_without_labels_the_rows_are_one_class(self):
        sets = feature_sets()
        sets["train"] = of.FeatureSet(sets["train"].features)
        found = run_rows(sets, detectors=detectors("KNN"), fractions=[0.25]).low_data
        knn = quick("KNN").fit(Part(sets["train"], rows_of(torch.zeros(90), 0.25)))
        pairs = [of.auroc(knn.score(sets["test"]), knn.score(sets[ood])) for ood in PROTOCOL.ood]
        assert found[0].auroc == pytest.approx(statistics.fmean(pairs))

    def test_what_is_fitted_already_is_not_fitted_on_less(self):
        ssd = quick("SSD").fit(feature_sets()["train"])
        found = run_rows(detectors=detectors("MSP"), fitted={Key("a", "SSD"): ssd}, fractions=[0.5])
        assert {one.detector for one in found.low_data} == {"MSP"}
        assert {record.detector for record in found.records} == {"MSP", "SSD"}


class TestImages:
    def test_it_says_what_it_does_and_notes_where(self, tmp_path):
        said = []
        run_images(tmp_path, detectors=detectors("SSD"), fractions=[0.25], say=said.append)
        assert "net: SSD on 25 % of the training rows" in said
        notes = [json.loads(path.read_text()) for path in (tmp_path / "cache").glob("detector-*.json")]
        assert [note["device"] for note in notes] == ["cpu", "cpu"]

    def test_features_are_extracted_once_and_fits_are_kept(self, tmp_path, monkeypatch):
        backbone, fits = FakeBackbone(), []
        original = of.SSD.fit
        monkeypatch.setattr(of.SSD, "fit", lambda self, data: fits.append(len(data)) or original(self, data))
        chosen = detectors("SSD", "MSP")
        first = run_images(tmp_path, backbone, detectors=chosen, fractions=[0.2, 0.5])
        assert fits == [60, 12, 30]
        assert len(backbone.calls) == len(set(backbone.calls)) == 6
        again = run_images(tmp_path, backbone, detectors=chosen, fractions=[0.2, 0.3])
        assert fits == [60, 12, 30, 18]
        assert len(backbone.calls) == 6
        assert [one for one in again.low_data if one.fraction != 0.3] == [
            one for one in first.low_data if one.fraction != 0.5
        ]
        assert again.records == first.records


def test_they_are_saved_and_come_back(run, tmp_path):
    save_run(run, tmp_path / "run.safetensors")
    assert load_run(tmp_path / "run.safetensors").low_data == run.low_data
    write_tables(run, tmp_path)
    assert read_run(tmp_path).low_data == run.low_data
    assert "low_data" not in json.loads(run_json(of.BenchmarkRun(PROTOCOL, run.records)))
