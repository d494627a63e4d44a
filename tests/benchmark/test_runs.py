"""Benchmarks from features and from images: what is fitted, what is scored, what is recorded."""

import json
import logging
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers.fake_benchmark import (
    FITS,
    NAMES,
    PROTOCOL,
    FakeBackbone,
    detectors,
    feature_sets,
    image_sets,
    run_features,
    run_images,
    run_rows,
)
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.benchmark import ROWS, Key, detectors_from_text, provenance
from outfield.benchmark.plan import backbone_names, notes_of
from outfield.files import Record, write_record
from outfield.report.benchmark_tables import notes_on_sets


@pytest.fixture(scope="module")
def run():
    return run_features()


class Fussy(of.SSD):
    """Refuses the features of which it is told so."""

    refuses = staticmethod(lambda train: False)

    def _fit(self, train):
        if self.refuses(train.in_memory()):
            raise of.InputError("these features are not to my taste")
        super()._fit(train)


class TestLeftOut:
    """A detector that cannot be fitted costs its own row only."""

    def refused(self, monkeypatch, refuse, **more):
        monkeypatch.setattr(Fussy, "refuses", staticmethod(refuse))
        sets = {name: feature_sets(seed) for name, seed in (("a", 1), ("b", 2))}
        chosen = {"Fussy": Fussy(), "MSP": of.MSP()}
        return of.benchmark_features(PROTOCOL, sets, detectors=chosen, seeds=1, layout=False, **more)

    def test_on_one_backbone(self, monkeypatch):
        second = feature_sets(2)["train"].features
        with pytest.warns(of.OutfieldWarning, match="Fussy is left out, b: these features are not to my taste"):
            run = self.refused(monkeypatch, lambda train: torch.equal(train.features, second))
        assert {record.detector for record in run.records} == {key.detector for key in run.scores} == {"MSP"}
        assert {record.backbone for record in run.records} == {"a", "b"}
        assert run.provenance["left_out"] == {"Fussy": "b: these features are not to my taste"}
        assert "Fussy is left out, b: these features are not to my taste." in notes_on_sets(run)

    def test_on_the_first_it_is_not_tried_on_the_next(self, monkeypatch):
        tried = []
        with pytest.warns(of.OutfieldWarning, match="Fussy is left out, a:"):
            self.refused(monkeypatch, lambda train: tried.append(1) or True)
        assert len(tried) == 1

    def test_neither_are_fractions_of_it(self, monkeypatch):
        second = feature_sets(2)["train"].features
        for refuse in (lambda train: len(train) == 90, lambda train: torch.equal(train.features, second)):
            with pytest.warns(of.OutfieldWarning, match="Fussy is left out"):
                run = self.refused(monkeypatch, refuse, fractions=(0.5, 1))
            assert {found.detector for found in run.low_data} == {"MSP"}  # those of the first backbone are taken back

    def test_where_nothing_is_left_the_error_is_told(self, monkeypatch):
        monkeypatch.setattr(Fussy, "refuses", staticmethod(lambda train: True))
        with pytest.raises(of.InputError, match="not to my taste"):
            run_rows(detectors={"Fussy": Fussy()}, seeds=1)


class TestFeatures:
    def test_every_pair_is_recorded_once(self, run):
        keys = [(r.backbone, r.detector, r.seed, r.ood) for r in run.records]
        seeds = {name: [0, 1] if name == "EnergyCorrected" else [None] for name in NAMES}
        wanted = {(b, name, seed, ood) for b in "ab" for name in NAMES for seed in seeds[name] for ood in PROTOCOL.ood}
        assert len(keys) == len(set(keys))
        assert set(keys) == wanted
        assert {r.ood: r.level for r in run.records} == {
            "cousins": "near", "aunts": "mid", "uncles": "mid", "strangers": "far",
        }  # fmt: skip

    @pytest.mark.parametrize("name", ["MSP", "SSD"])
    def test_records_are_the_metrics_of_a_plain_fit(self, run, name):
        sets = feature_sets(1)
        detector = quick(name).fit(sets["train"])
        pair = of.Separation(detector.score(sets["test"]), detector.score(sets["aunts"]))
        (record,) = [r for r in run.records if (r.backbone, r.detector, r.ood) == ("b", name, "aunts")]
        metrics = ("fpr95", "auroc", "aupr_in", "aupr_out", "id_rejected_at_95_ood_recall")
        assert [getattr(record, m) for m in metrics] == [getattr(pair, m)() for m in metrics]
        assert (record.n_id, record.n_ood) == (60, 60)

    def test_learned_ones_are_fitted_from_each_seed(self, run):
        for seed in (0, 1):
            alone = quick("EnergyCorrected", seed=seed).fit(feature_sets()["train"])
            key = Key("a", "EnergyCorrected", seed)
            assert np.array_equal(run.scores[key]["strangers"], alone.score(feature_sets()["strangers"]).numpy())
            assert run.histories[key] == alone.history_
        assert set(run.histories) == {Key(b, "EnergyCorrected", seed) for b in "ab" for seed in (0, 1)}

    def test_scores_go_by_the_sets_names(self, run):
        for scores in run.scores.values():
            assert set(scores) == {"shapes", *PROTOCOL.ood}
            assert all(s.dtype == np.float32 and s.shape == (60,) for s in scores.values())

    def test_accuracy_is_that_of_the_test_set(self, run):
        test = feature_sets()["test"]
        right = sum(int(row.argmax()) == int(label) for row, label in zip(test.logits, test.labels, strict=True))
        assert run.accuracies["a"] == right / 60
        assert run.provenance["backbones"]["b"]["accuracy"] == run.accuracies["b"]

    def test_the_layout_shows_every_set_and_the_classes_of_the_id_set(self, run):
        assert run.layouts == []
        (layout,) = of.benchmark_features(PROTOCOL, {"a": feature_sets()}, detectors=detectors("MSP")).layouts
        assert layout.backbone == "a"
        assert layout.points.shape == (300, 2)
        assert np.isfinite(layout.points).all()
        assert Counter(layout.sets) == dict.fromkeys(("shapes", *PROTOCOL.ood), 60)
        inside = np.array(layout.sets) == "shapes"
        assert layout.labels[inside].tolist() == feature_sets()["test"].labels.tolist()
        assert (layout.labels[~inside] == -1).all()

    def test_the_provenance_is_json_and_says_what_was_done(self, run):
        about = json.loads(json.dumps(run.provenance, allow_nan=False))
        assert "left_out" not in about
        settings = {"type": "KNN", "k": 5, "field": "features", "index": "exact", "probes": 0}
        assert about["detectors"]["KNN"] == {"settings": settings, "given": []}
        assert about["seeds"] == [0, 1]
        assert about["protocol"] == {"id": "shapes", **{level: [*sets] for level, sets in PROTOCOL.levels.items()}}
        assert about["data"]["a"]["test"]["samples"] == 60
        assert about["data"]["a"]["test"]["sha256"] != about["data"]["b"]["test"]["sha256"]
        fits = [stage for stage in about["stages"] if stage["what"] == "detector"]
        assert len(fits) == 2 * FITS
        assert all(stage["seconds"] >= 0 and not stage["found"] for stage in about["stages"])
        scored = [stage for stage in about["stages"] if stage["what"] == "scores"]
        assert [stage["sets"] for stage in scored] == [5] * 2 * FITS

    def test_settings_are_left_as_they_came(self):
        chosen = detectors("SSD", "EnergyCorrected")
        run_rows(detectors=chosen, seeds=[3])
        assert chosen["EnergyCorrected"].seed == 0
        with pytest.raises(of.NotFittedError):
            chosen["SSD"].score(feature_sets()["test"])


def test_what_is_done_is_told_to_those_who_listen(caplog):
    with caplog.at_level(logging.INFO, logger="outfield"):
        run_rows(detectors=detectors("SSD"))
    assert "a: fitting SSD" in caplog.messages


def test_seeds_are_checked_before_any_work(count):
    for seeds in (0, [], [1, 1], -2):
        with pytest.raises(of.InputError, match="seeds"):
            run_rows(detectors=detectors(), seeds=seeds)
    assert not count
    run = run_rows(detectors=detectors("EnergyCorrected"), seeds=iter([5, 2]))
    assert run.provenance["seeds"] == [5, 2]
    assert {key.seed for key in run.scores} == {5, 2}


def test_the_paper_s_settings():
    assert list(of.paper_detectors(PROTOCOL)) == list(ROWS)
    assert [of.paper_detectors(of.PROTOCOLS[name])["KNN"].k for name in ("cifar10", "cifar100")] == [50, 200]
    assert repr(of.paper_detectors(PROTOCOL)["EBM"]) == repr(of.EBM())


def test_fitted_detectors_are_taken_as_they_are(count):
    other = quick("SSD").fit(make_set(seed=77))
    trained = {Key("a", "EnergyCorrected", s): quick("EnergyCorrected", seed=s).fit(make_set()) for s in (4, 5)}
    given = {Key("a", "SSD"): other, **trained}
    count.clear()
    sets = {"a": feature_sets(), "b": feature_sets(1)}
    run = of.benchmark_features(PROTOCOL, sets, detectors=detectors("SSD"), fitted=given, seeds=1, layout=False)
    assert count["fit"] == 1  # SSD on b
    assert count["fit_together"] == 1
    assert np.array_equal(run.scores[Key("a", "SSD")]["aunts"], other.score(feature_sets()["aunts"]).numpy())
    assert {key.seed for key in run.scores if key.detector == "EnergyCorrected"} == {4, 5, 0}
    about = run.provenance["detectors"]
    assert (about["SSD"]["given"], about["EnergyCorrected"]["given"]) == (["a"], ["a"])
    held = {name: data for name, data in feature_sets().items() if name != "train"}
    alone = of.benchmark_features(PROTOCOL, {"a": held}, detectors={}, fitted=given, layout=False)
    assert {k: alone.scores[k]["aunts"].sum() for k in given} == {k: run.scores[k]["aunts"].sum() for k in given}
    with pytest.raises(of.InputError, match="these sets are missing: train of a"):
        of.benchmark_features(PROTOCOL, {"a": held}, detectors=detectors("MSP"), fitted=given)
    with pytest.raises(of.InputError, match="fitted has a detector for 'c'"):
        of.benchmark_features(PROTOCOL, sets, fitted={Key("c", "SSD"): other})


class TestMissing:
    def test_all_missing_sets_are_named_before_any_work(self, count):
        sets = feature_sets()
        del sets["aunts"], sets["strangers"]
        with pytest.raises(of.InputError, match=r"aunts of a; strangers of a; allow_missing=True goes on"):
            of.benchmark_features(PROTOCOL, {"a": sets}, detectors=detectors())
        assert not count

    def test_they_may_be_left_out(self):
        whole = feature_sets(1)
        less = {name: data for name, data in feature_sets().items() if name != "aunts"}
        sets = {"a": less, "b": whole}
        run = of.benchmark_features(PROTOCOL, sets, detectors=detectors("SSD"), allow_missing=True, layout=False)
        assert run.provenance["missing"] == ["aunts"]
        assert {(r.backbone, r.ood) for r in run.records} == {
            (b, ood) for b in "ab" for ood in ("cousins", "uncles", "strangers")
        }
        assert set(run.scores[Key("b", "SSD")]) == {"shapes", "cousins", "uncles", "strangers"}

    @pytest.mark.parametrize("name", ["train", "test"])
    def test_but_not_the_id_sets_nor_all(self, name):
        sets = {part: data for part, data in feature_sets().items() if part != name}
        with pytest.raises(of.InputError, match=f"{name} of a$"):
            of.benchmark_features(PROTOCOL, {"a": sets}, allow_missing=True)
        with pytest.raises(of.InputError, match="no OOD set is there"):
            of.benchmark_features(PROTOCOL, {"a": {part: make_set() for part in ("train", "test")}}, allow_missing=True)
        with pytest.raises(of.InputError, match="no backbone"):
            of.benchmark_features(PROTOCOL, {})

    def test_a_missing_field_is_found_before_any_fit(self, count):
        sets = feature_sets()
        sets["uncles"] = of.FeatureSet(sets["uncles"].features, logits=sets["uncles"].logits)
        with pytest.raises(of.MissingFieldError, match="ODIN needs odin_logits, which uncles of a lacks"):
            of.benchmark_features(PROTOCOL, {"a": sets}, detectors=detectors())
        assert not count


class TestSettings:
    def test_given_as_text(self):
        chosen = detectors_from_text(of.PROTOCOLS["cifar100"], ["EBM", "KNN"], {"EBM": {"training.epochs": "3"}})
        assert [*chosen] == ["EBM", "KNN"]
        assert (chosen["EBM"].training.epochs, chosen["KNN"].k) == (3, 200)
        chosen = detectors_from_text(of.PROTOCOLS["cifar100"], None, {"KNN": {"k": "20"}})
        assert (list(chosen), chosen["KNN"].k) == (["Auto", *ROWS], 20)
        every = detectors_from_text(of.PROTOCOLS["cifar100"], ["ViM", "all"], {"GEN": {"gamma": "0.3"}})
        assert [*every][: 2 + len(ROWS)] == ["ViM", "Auto", *ROWS]
        assert sorted(every) == sorted(of.DETECTORS)
        assert (every["GEN"].gamma, every["KNN"].k) == (0.3, 200)

    def test_wrong_ones_given_in_python_are_found_before_any_work(self, count):
        wrong_ones = {"k is 0": of.KNN(0), "temperature is -1": of.EBM(temperature=-1), "outfield.Detector": of.KNN}
        for said, wrong in wrong_ones.items():
            with pytest.raises(of.InputError, match=said):
                of.benchmark_features(PROTOCOL, {"a": feature_sets()}, detectors={"SSD": of.SSD(), "X": wrong})
        assert not count

    @pytest.mark.parametrize(("names", "settings", "said"), [
        (["KNM"], {}, "there is no detector 'KNM'; there are"),
        (None, {"KNM": {"k": "1"}}, "there is no detector 'KNM'; there are"),
        (["SSD"], {"KNN": {"k": "1"}}, "settings of KNN, but only SSD"),
        (None, {"KNN": {"q": "1"}}, "KNN has no setting q; it has k"),
    ])  # fmt: skip
    def test_wrong_ones(self, names, settings, said):
        with pytest.raises(of.InputError, match=said):
            detectors_from_text(of.PROTOCOLS["cifar10"], names, settings)


class TestBackbones:
    def test_several(self, tmp_path):
        pair = [FakeBackbone("net"), FakeBackbone("other", scale=3.0)]
        settings = {"detectors": detectors("MSP", "SSD"), "layout": False}
        run = of.run_benchmark(PROTOCOL, image_sets(), pair, tmp_path, **settings)
        assert {r.backbone for r in run.records} == {"net", "other"}
        assert list(run.accuracies) == ["net", "other"]
        with pytest.raises(of.InputError, match="net and twin are the same backbone"):
            of.run_benchmark(PROTOCOL, image_sets(), [FakeBackbone(), FakeBackbone("twin")], tmp_path, **settings)
        for none in ([], "net.safetensors"):
            with pytest.raises(of.InputError, match="must be a list of at least one"):
                of.run_benchmark(PROTOCOL, image_sets(), none, tmp_path, **settings)

    @pytest.mark.parametrize(("given", "names"), [
        (["/data/x/net.safetensors"], ["net"]),
        (["/data/x/net.safetensors", "/data/y/net.safetensors"], ["x/net", "y/net"]),
        (["timm:resnet50.a1_in1k", "torchvision:vgg11"], ["resnet50.a1_in1k", "vgg11"]),
        (["timm:resnet50@runs/7/w.safetensors", "w.safetensors"], ["7/w", "w"]),
    ])  # fmt: skip
    def test_names(self, given, names):
        assert backbone_names(given) == names
        with pytest.raises(of.InputError, match="each must be given once"):
            backbone_names([given[0], given[0]])

    def test_what_its_file_tells_is_kept_without_paths(self, tmp_path):
        notes = {"accuracy": 0.9, "data": "/home/someone/cifar10"}
        header = {"classifier": {"architecture": "resnet34"}, "notes": notes}
        write_record(tmp_path / "net.safetensors", "classifier", Record(header, {"w": torch.ones(1)}))
        found = notes_of(str(tmp_path / "net.safetensors"))
        assert found == {"classifier": {"architecture": "resnet34"}, "notes": {"accuracy": 0.9, "data": "cifar10"}}
        assert notes_of("timm:resnet34") == notes_of(FakeBackbone()) == {}


def test_labels_are_missed_before_any_fit(count):
    sets = {name: of.FeatureSet(data.features) for name, data in feature_sets().items()}
    with pytest.raises(of.MissingFieldError, match="ours needs labels, which train of a lacks"):
        run_rows(sets, detectors={"first": of.KNN(k=5), "ours": quick("EnergyCorrected")}, seeds=1)
    assert not count


class TestProvenance:
    def test_it_names_no_place_or_person(self, tmp_path, monkeypatch):
        monkeypatch.setattr(
            "sys.argv", ["/opt/bin/outfield", "--out", str(tmp_path / "results"), f"--data={tmp_path}", "-k=3"]
        )
        run = run_images(tmp_path)
        text = json.dumps(run.provenance)
        assert run.provenance["command"][0] == "outfield"
        assert run.provenance["command"][2:3] == ["results"]
        assert str(tmp_path) not in text
        assert os.uname().nodename not in text
        assert str(Path.home()) not in text
        assert not re.search(r'"/', text)

    @pytest.mark.parametrize(("text", "clean"), [
        ("/home/someone/x.npz", "x.npz"),
        ("~/x.npz", "x.npz"),
        ("--out=/home/Some One/x y", "--out=x y"),
        ("timm:resnet18@/mnt/w.safetensors", "timm:resnet18@w.safetensors"),
        (r"C:\Users\someone\x.npz", "x.npz"),
        ("file:///home/someone/x", "x"),
        ("read from '/home/someone/x', then /srv/y", "read from 'x', then y"),
        ("FPR95 / AUROC, 1/2, a/b, ../x, https://host/page", "FPR95 / AUROC, 1/2, a/b, ../x, https://host/page"),
        (str(Path.home()), "~"),
    ])  # fmt: skip
    def test_paths_are_cut_down(self, text, clean):
        assert provenance.without_paths({text: [text, 1, None]}) == {clean: [clean, 1, None]}

    def test_code_versions_and_machine(self):
        about = provenance.about_this_run("cpu")
        assert about["versions"]["torch"] in torch.__version__
        assert about["versions"]["outfield"] == of.__version__
        assert about["machine"]["device"] == "cpu"
        assert about["machine"]["cpus"] == os.cpu_count()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", about["started"])
