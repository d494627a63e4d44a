"""Benchmarks from features and from images: what is fitted, what is scored, what is kept, and what a second run does."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import outfield as of
from outfield import provenance, storage
from outfield.backbone import Backbone
from outfield.benchmark import Key, benchmark_features, detectors_from_text, paper_detectors, run_benchmark, sources
from outfield.benchmark.images import backbone_names, notes_of
from outfield.benchmark.saved import load_run, save_run
from outfield.benchmark.view import choose, lay_out
from outfield.datasets import PROTOCOLS, Protocol
from outfield.images import ImageArray
from outfield.training import _Run
from samples import make_set, quick

PROTOCOL = Protocol("shapes", near=("cousins",), mid=("aunts", "uncles"), far=("strangers",), neighbours=5)
SETS = ("train", "test", *PROTOCOL.ood)
NAMES = ("MSP", "ODIN", "KNN", "SSD", "EnergyCorrected")
FITS = len(NAMES) + 1  # two seeds of the learned one


def detectors(*names):
    return {name: quick(name) for name in names or NAMES}


def feature_sets(seed=0):
    shifts = {"train": 0.0, "test": 0.0, "cousins": 0.1, "aunts": 0.3, "uncles": 0.4, "strangers": 1.0}
    return {name: make_set(60 if n else 90, seed=10 * seed + n, shift=s) for n, (name, s) in enumerate(shifts.items())}


def image_sets():
    """Tiny images whose brightness tells their class; OOD sets have labels that the backbone knows nothing of."""
    rng = np.random.default_rng(0)
    images = {}
    for n, name in enumerate(SETS):
        labels = np.arange(60 - n) % 3
        bright = 40 + 60 * labels[:, None, None, None] + rng.integers(0, 40, (len(labels), 4, 4, 3)) + 8 * n * (n > 1)
        images[name] = ImageArray(bright.astype(np.uint8), labels if n < 2 else labels + 7, name=f"{name} images")
    return images


class FakeBackbone:
    """Features are the pixels' means by row; counts how often each set is extracted, and dies when told to."""

    def __init__(self, name="net", scale=1.0):
        self.name, self.scale, self.calls, self.die_at = name, scale, [], None

    def fingerprint(self):
        return f"weights {self.scale}"

    def extract(self, images, *, odin=None, labels=True):
        if self.die_at == len(self.calls):
            raise KeyboardInterrupt
        self.calls.append(images.name.split()[0])
        pixels = images.images.astype(np.float32) / 255
        features = np.concatenate([pixels.mean((2, 3)), pixels.std((1, 3))], 1) * self.scale
        logits = -np.abs(pixels.mean((1, 2, 3))[:, None] * 255 - np.array([60, 120, 180], np.float32)) / 20
        return of.FeatureSet(
            features,
            logits=logits,
            labels=images.labels if labels else None,
            odin_logits=None if odin is None else logits * 1.01,
        )


@pytest.fixture
def count(monkeypatch):
    """How often detectors fit, score and step."""
    counts = Counter()

    def watch(cls, name):
        original = getattr(cls, name)

        def watched(self, *arguments, **more):
            counts[name.strip("_")] += 1
            return original(self, *arguments, **more)

        monkeypatch.setattr(cls, name, watched)

    for cls in (of.MSP, of.ODIN, of.KNN, of.SSD):
        watch(cls, "fit")
    watch(of.EnergyCorrected, "_fit_together")
    watch(_Run, "step")
    return counts


def run_images(out, backbone=None, data=None, **more):
    settings = {"detectors": detectors(), "seeds": 2, "device": "cpu", "view": False, **more}
    return run_benchmark(PROTOCOL, data or image_sets(), [backbone or FakeBackbone()], out, **settings)


@pytest.fixture(scope="module")
def run():
    sets = {"a": feature_sets(0), "b": feature_sets(1)}
    return benchmark_features(PROTOCOL, sets, detectors=detectors(), seeds=2, view=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Records of a run that was never cut off."""
    return run_images(tmp_path_factory.mktemp("whole")).records


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

    def test_the_view_shows_every_set_and_the_classes_of_the_id_set(self, run):
        assert run.views == []
        (view,) = benchmark_features(PROTOCOL, {"a": feature_sets()}, detectors=detectors("MSP")).views
        assert view.backbone == "a"
        assert view.points.shape == (300, 2)
        assert np.isfinite(view.points).all()
        assert Counter(view.sets) == dict.fromkeys(("shapes", *PROTOCOL.ood), 60)
        inside = np.array(view.sets) == "shapes"
        assert view.labels[inside].tolist() == feature_sets()["test"].labels.tolist()
        assert (view.labels[~inside] == -1).all()

    def test_the_provenance_is_json_and_says_what_was_done(self, run):
        about = json.loads(json.dumps(run.provenance, allow_nan=False))
        assert about["detectors"]["KNN"] == {"settings": {"type": "KNN", "k": 5}, "given": []}
        assert about["seeds"] == [0, 1]
        assert about["data"]["a"]["test"]["samples"] == 60
        assert about["data"]["a"]["test"]["sha256"] != about["data"]["b"]["test"]["sha256"]
        fits = [stage for stage in about["stages"] if stage["what"] == "detector"]
        assert len(fits) == 2 * FITS
        assert all(stage["seconds"] >= 0 and not stage["found"] for stage in about["stages"])
        scored = [stage for stage in about["stages"] if stage["what"] == "scores"]
        assert [stage["sets"] for stage in scored] == [5] * 2 * FITS

    def test_settings_are_left_as_they_came(self):
        chosen = detectors("SSD", "EnergyCorrected")
        benchmark_features(PROTOCOL, {"a": feature_sets()}, detectors=chosen, seeds=[3], view=False)
        assert chosen["EnergyCorrected"].seed == 0
        with pytest.raises(of.NotFittedError):
            chosen["SSD"].score(feature_sets()["test"])


def test_seeds_are_checked_before_any_work(count):
    for seeds in (0, [], [1, 1], -2):
        with pytest.raises(of.InputError, match="seeds"):
            benchmark_features(PROTOCOL, {"a": feature_sets()}, detectors=detectors(), seeds=seeds)
    assert not count
    run = benchmark_features(
        PROTOCOL, {"a": feature_sets()}, detectors=detectors("EnergyCorrected"), seeds=iter([5, 2]), view=False
    )
    assert run.provenance["seeds"] == [5, 2]
    assert {key.seed for key in run.scores} == {5, 2}


def test_the_paper_s_settings():
    assert set(paper_detectors(PROTOCOL)) == set(of.DETECTORS)
    assert [paper_detectors(PROTOCOLS[name])["KNN"].k for name in ("cifar10", "cifar100")] == [50, 200]
    assert repr(paper_detectors(PROTOCOL)["EBM"]) == repr(of.EBM())


def test_fitted_detectors_are_taken_as_they_are(count):
    other = quick("SSD").fit(make_set(seed=77))
    trained = {
        Key("a", "EnergyCorrected", seed): quick("EnergyCorrected", seed=seed).fit(make_set()) for seed in (4, 5)
    }
    given = {Key("a", "SSD"): other, **trained}
    count.clear()
    sets = {"a": feature_sets(), "b": feature_sets(1)}
    run = benchmark_features(PROTOCOL, sets, detectors=detectors("SSD"), fitted=given, seeds=1, view=False)
    assert count["fit"] == 1  # SSD on b
    assert count["fit_together"] == 1
    assert np.array_equal(run.scores[Key("a", "SSD")]["aunts"], other.score(feature_sets()["aunts"]).numpy())
    assert {key.seed for key in run.scores if key.detector == "EnergyCorrected"} == {4, 5, 0}
    about = run.provenance["detectors"]
    assert (about["SSD"]["given"], about["EnergyCorrected"]["given"]) == (["a"], ["a"])
    held = {name: data for name, data in feature_sets().items() if name != "train"}
    alone = benchmark_features(PROTOCOL, {"a": held}, detectors={}, fitted=given, view=False)
    assert {key: alone.scores[key]["aunts"].sum() for key in given} == {
        key: run.scores[key]["aunts"].sum() for key in given
    }
    with pytest.raises(of.InputError, match="these sets are missing: train of a"):
        benchmark_features(PROTOCOL, {"a": held}, detectors=detectors("MSP"), fitted=given)
    with pytest.raises(of.InputError, match="fitted has a detector for 'c'"):
        benchmark_features(PROTOCOL, sets, fitted={Key("c", "SSD"): other})


class TestMissing:
    def test_all_missing_sets_are_named_before_any_work(self, count):
        sets = feature_sets()
        del sets["aunts"], sets["strangers"]
        with pytest.raises(of.InputError, match=r"aunts of a; strangers of a; allow_missing=True, or --allow-missing,"):
            benchmark_features(PROTOCOL, {"a": sets}, detectors=detectors())
        assert not count

    def test_they_may_be_left_out(self):
        whole = feature_sets(1)
        less = {name: data for name, data in feature_sets().items() if name != "aunts"}
        sets = {"a": less, "b": whole}
        run = benchmark_features(PROTOCOL, sets, detectors=detectors("SSD"), allow_missing=True, view=False)
        assert run.provenance["missing"] == ["aunts"]
        assert {(r.backbone, r.ood) for r in run.records} == {
            (b, ood) for b in "ab" for ood in ("cousins", "uncles", "strangers")
        }
        assert set(run.scores[Key("b", "SSD")]) == {"shapes", "cousins", "uncles", "strangers"}

    @pytest.mark.parametrize("name", ["train", "test"])
    def test_but_not_the_id_sets_nor_all(self, name):
        sets = {part: data for part, data in feature_sets().items() if part != name}
        with pytest.raises(of.InputError, match=f"{name} of a$"):
            benchmark_features(PROTOCOL, {"a": sets}, allow_missing=True)
        with pytest.raises(of.InputError, match="no OOD set is there"):
            benchmark_features(PROTOCOL, {"a": {part: make_set() for part in ("train", "test")}}, allow_missing=True)
        with pytest.raises(of.InputError, match="no backbone"):
            benchmark_features(PROTOCOL, {})

    def test_a_missing_field_is_found_before_any_fit(self, count):
        sets = feature_sets()
        sets["uncles"] = of.FeatureSet(sets["uncles"].features, logits=sets["uncles"].logits)
        with pytest.raises(of.MissingFieldError, match="ODIN needs odin_logits, which uncles of a lacks"):
            benchmark_features(PROTOCOL, {"a": sets}, detectors=detectors())
        assert not count


class TestImages:
    def test_images_give_what_their_features_give(self, tmp_path):
        backbone, images = FakeBackbone(), image_sets()
        run = run_images(tmp_path, backbone, images)
        odin = [None, *[object()] * 5]
        sets = {
            name: FakeBackbone().extract(images[name], odin=o, labels=name in ("train", "test"))
            for name, o in zip(SETS, odin, strict=True)
        }
        plain = benchmark_features(PROTOCOL, {"net": sets}, detectors=detectors(), seeds=2, view=False)
        assert run.records == plain.records
        assert run.accuracies == plain.accuracies
        assert backbone.calls == list(SETS)
        assert run.provenance["data"]["test"] == {"images": 59, "sha256": images["test"].fingerprint()}
        assert run.provenance["backbones"]["net"]["sha256"] == backbone.fingerprint()
        assert run.provenance["odin"] == {"type": "Odin", "temperature": 1000.0, "epsilon": 0.0014}

    def test_a_second_run_computes_nothing(self, tmp_path, count):
        first = run_images(tmp_path)
        count.clear()
        backbone = FakeBackbone()
        second = run_images(tmp_path, backbone)
        assert backbone.calls == []
        assert not count
        assert second.records == first.records
        assert second.histories == first.histories
        assert all(stage["found"] for stage in second.provenance["stages"])
        for stages in (first.provenance["stages"], second.provenance["stages"]):
            assert sum(stage["seconds"] for stage in stages if stage["what"] == "detector") > 0

    def test_only_what_changed_is_computed_again(self, tmp_path, count):
        first = run_images(tmp_path)
        count.clear()
        other = {**detectors(), "KNN": of.KNN(k=7)}
        second = run_images(tmp_path, detectors=other)
        assert count == {"fit": 1}
        differ = {a.detector for a, b in zip(first.records, second.records, strict=True) if a != b}
        assert differ == {"KNN"}
        images = image_sets()
        images["uncles"] = ImageArray(images["uncles"].images[::-1].copy(), name="uncles images")
        backbone = FakeBackbone()
        third = run_images(tmp_path, backbone, images)
        assert backbone.calls == ["uncles"]
        assert count == {"fit": 1}
        afresh = run_images(tmp_path / "afresh", data=images)
        assert third.records == afresh.records
        key = Key("net", "SSD")
        assert not np.array_equal(third.scores[key]["uncles"], first.scores[key]["uncles"])
        assert np.array_equal(third.scores[key]["uncles"], afresh.scores[key]["uncles"])

    @pytest.mark.parametrize("changed", ["weights", "training images"])
    def test_other_features_to_learn_from_are_learned_from(self, changed, tmp_path, count):
        run_images(tmp_path)
        count.clear()
        images = image_sets()
        if changed == "training images":
            images["train"] = ImageArray(
                images["train"].images[::-1].copy(), images["train"].labels[::-1].copy(), "train images"
            )
        backbone = FakeBackbone(scale=2.0 if changed == "weights" else 1.0)
        run_images(tmp_path, backbone, images)
        assert backbone.calls == (list(SETS) if changed == "weights" else ["train"])
        assert (count["fit"], count["fit_together"]) == (4, 1)

    def test_more_seeds_fit_only_the_new_ones(self, tmp_path, count):
        run_images(tmp_path, detectors=detectors("EnergyCorrected"), seeds=1)
        steps = count["step"]
        run = run_images(tmp_path, detectors=detectors("EnergyCorrected"), seeds=3)
        whole = run_images(tmp_path / "whole", detectors=detectors("EnergyCorrected"), seeds=3)
        assert count["step"] == 3 * steps  # seed 0; seeds 1 and 2 side by side; all three side by side
        found = {stage["seed"]: stage["found"] for stage in run.provenance["stages"] if stage["what"] == "detector"}
        assert found == {0: True, 1: False, 2: False}
        assert [r.auroc for r in run.records] == pytest.approx([r.auroc for r in whole.records], abs=1e-3)

    def test_a_set_that_was_missing_is_added_without_a_fit(self, tmp_path, count):
        images = image_sets()
        less = {name: data for name, data in images.items() if name != "aunts"}
        with pytest.raises(of.InputError, match="missing: aunts; allow_missing"):
            run_images(tmp_path, data=less)
        assert not (tmp_path / "cache").exists()
        run = run_images(tmp_path, data=less, allow_missing=True)
        assert run.provenance["missing"] == ["aunts"]
        count.clear()
        backbone = FakeBackbone()
        whole = run_images(tmp_path, backbone, images)
        assert (backbone.calls, whole.provenance["missing"]) == (["aunts"], [])
        assert not count
        assert len(whole.records) == FITS * 4

    def test_odin_costs_nothing_where_nobody_asks_for_it(self, tmp_path):
        run = run_images(tmp_path, detectors=detectors("SSD"))
        assert run.provenance["odin"] is None
        kept = next((tmp_path / "cache").glob("features-net-aunts*.safetensors"))
        assert of.FeatureSet.load(kept).odin_logits is None
        assert not list((tmp_path / "cache").glob("odin-*"))

    def test_odin_comes_and_goes_without_the_others(self, tmp_path, count):
        without = run_images(tmp_path, detectors=detectors("SSD", "MSP"))
        count.clear()
        backbone = FakeBackbone()
        run = run_images(tmp_path, backbone, detectors=detectors("SSD", "MSP", "ODIN"))
        assert backbone.calls == list(SETS[1:])  # for ODIN alone
        assert count == {"fit": 1}
        assert {s["detector"] for s in run.provenance["stages"] if s["what"] == "scores" and not s["found"]} == {"ODIN"}
        assert [r for r in run.records if r.detector != "ODIN"] == without.records
        assert run.records == run_images(tmp_path / "afresh", detectors=detectors("SSD", "MSP", "ODIN")).records
        again = FakeBackbone()
        assert run_images(tmp_path, again, detectors=detectors("SSD", "MSP")).records == without.records
        run_images(tmp_path, again, detectors=detectors("ODIN"))
        assert again.calls == []
        run_images(tmp_path / "afresh", again, detectors=detectors("SSD"))  # of a folder that began with it
        assert again.calls == []
        assert count == {"fit": 4}  # three of them afresh

    def test_odin_perturbs_at_its_detector_s_temperature(self, tmp_path):
        run = run_images(tmp_path, detectors={"ODIN": of.ODIN(temperature=7.0)})
        assert run.provenance["odin"] == {"type": "Odin", "temperature": 7.0, "epsilon": 0.0014}
        backbone = FakeBackbone()
        run_images(tmp_path, backbone, detectors={"ODIN": of.ODIN(temperature=8.0)})
        assert backbone.calls == list(SETS[1:])
        with pytest.raises(of.InputError, match=r"temperatures are 7 \(one\), 8 \(two\)"):
            run_images(tmp_path, backbone, detectors={"one": of.ODIN(7.0), "two": of.ODIN(8.0)})

    @pytest.mark.parametrize(("one", "other"), [("test", "train"), ("aunts", "train"), ("uncles", "test")])
    def test_one_set_for_two_is_refused(self, one, other, tmp_path, count):
        images, backbone = image_sets(), FakeBackbone()
        twin = images[other].images.copy()
        with pytest.raises(of.InputError, match=f"{one} and the {other} set of {other} images are the same images"):
            run_images(tmp_path, backbone, {**images, one: ImageArray(twin)})  # it may have no labels, or others
        assert not count
        assert (backbone.calls, list(tmp_path.iterdir())) == ([], [])
        twin[-1, 0, 0, 0] ^= 1
        run_images(tmp_path, backbone, {**images, one: ImageArray(twin, images[other].labels)})

    def test_a_set_that_the_protocol_lacks_is_not_left_out_silently(self, tmp_path):
        with pytest.raises(
            of.InputError, match="data has nephews, but the protocol of shapes has train, test, cousins"
        ):
            run_images(tmp_path, data={**image_sets(), "nephews": image_sets()["aunts"]})

    def test_curves_are_found_without_the_detector(self, tmp_path, count):
        first = run_images(tmp_path, detectors=detectors("EnergyCorrected"))
        count.clear()
        for file in (tmp_path / "cache").glob("detector-*"):
            file.unlink()
        again = run_images(tmp_path, detectors=detectors("EnergyCorrected"))
        assert not count
        assert again.histories == first.histories
        assert len(first.histories) == 2

    def test_training_images_need_labels(self, tmp_path):
        images = image_sets() | {"train": ImageArray(image_sets()["train"].images, name="unlabelled")}
        with pytest.raises(of.InputError, match="unlabelled have no labels"):
            run_images(tmp_path, data=images)

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").write_text("here")
        with pytest.raises(of.StorageError, match="cannot make the folder"):
            run_images(tmp_path / "file")


class TestCutOff:
    """A run that was cut off anywhere loses the stage in hand and nothing else."""

    @pytest.mark.parametrize("done", [0, 2, 5])
    def test_while_extracting(self, done, tmp_path, whole, count):
        backbone = FakeBackbone()
        backbone.die_at = done
        with pytest.raises(KeyboardInterrupt):
            run_images(tmp_path, backbone)
        assert backbone.calls == list(SETS[:done])
        assert not count  # an image that cannot be read is found before the first fit
        again = FakeBackbone()
        assert run_images(tmp_path, again).records == whole
        assert again.calls == list(SETS[done:])

    @pytest.mark.parametrize("stop", [1, 2])
    def test_while_fitting_a_learned_detector(self, stop, tmp_path, whole, count, monkeypatch):
        save, saved = _Run.save, []

        def save_and_die(self, checkpoint):
            save(self, checkpoint)
            saved.append(checkpoint)
            if len(saved) == stop:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("outfield.detectors.learned.Checkpoint", functools.partial(of.Checkpoint, seconds=0.0))
            patch.setattr(_Run, "save", save_and_die)
            with pytest.raises(KeyboardInterrupt):
                run_images(tmp_path)
        assert (count["fit"], count["step"]) == (4, stop)
        assert list((tmp_path / "cache").glob("checkpoint*"))
        count.clear()
        notes = list((tmp_path / "cache").glob("checkpoint*.json"))
        (note,) = (json.loads(file.read_text()) for file in notes)
        assert note["seconds"] > 0
        notes[0].write_text(json.dumps(note | {"seconds": 1000.0}))
        run = run_images(tmp_path)
        assert run.records == whole
        assert (count["fit"], count["step"]) == (0, 2 - stop)
        assert not list((tmp_path / "cache").glob("checkpoint*"))
        seconds = [s["seconds"] for s in run.provenance["stages"] if s["what"] == "detector" and s["seed"] is not None]
        assert seconds == [pytest.approx(500, abs=30)] * 2  # both parts of the fit, shared by two seeds

    def test_a_fit_that_was_killed_does_not_know_its_seconds(self, tmp_path, whole, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(of.EnergyCorrected, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                run_images(tmp_path)
        (note,) = (tmp_path / "cache").glob("checkpoint*.json")
        note.write_text(json.dumps(json.loads(note.read_text()) | {"seconds": None}))  # as it stands during the fit
        for run in (run_images(tmp_path), run_images(tmp_path)):
            assert run.records == whole
            fits = [stage for stage in run.provenance["stages"] if stage["what"] == "detector"]
            assert [stage["seconds"] for stage in fits if stage["seed"] is not None] == [None, None]

    def test_between_the_seeds_of_a_fit(self, tmp_path, whole, count, monkeypatch):
        save = of.EnergyCorrected.save

        def save_one(self, path):
            if self.seed == 1:
                raise KeyboardInterrupt
            save(self, path)

        with monkeypatch.context() as patch:
            patch.setattr(of.EnergyCorrected, "save", save_one)
            with pytest.raises(KeyboardInterrupt):
                run_images(tmp_path)
        count.clear()
        assert run_images(tmp_path).records == whole
        assert count["step"] == 0

    def test_while_scoring(self, tmp_path, whole, count, monkeypatch):
        score, scored = of.Detector.score, []

        def score_and_die(self, data):
            if len(scored) == 12:
                raise KeyboardInterrupt
            scored.append(data)
            return score(self, data)

        with monkeypatch.context() as patch:
            patch.setattr(of.Detector, "score", score_and_die)
            with pytest.raises(KeyboardInterrupt):
                run_images(tmp_path)
        kept = len(list((tmp_path / "cache").glob("scores-*.safetensors")))
        assert kept == 12
        assert count["fit"] == 3  # five sets each
        assert run_images(tmp_path).records == whole
        assert count["fit"] == 4

    @pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""])
    def test_a_damaged_file_is_computed_again(self, damage, tmp_path, whole):
        run_images(tmp_path)
        for kind in ("scores-", "detector-", "features-", "odin-", "history-"):
            files = sorted((tmp_path / "cache").glob(f"{kind}*.safetensors"))
            assert files
            for file in files:
                file.write_bytes(damage(file.read_bytes()))
        with pytest.warns(of.OutfieldWarning, match="damaged and is computed again"):
            assert run_images(tmp_path).records == whole
        assert run_images(tmp_path).records == whole  # without a warning

    def test_so_is_a_damaged_view(self, tmp_path):
        first, found = (run_images(tmp_path, detectors=detectors("MSP"), view=True) for _ in range(2))
        assert next(stage["found"] for stage in found.provenance["stages"] if stage["what"] == "view")
        assert np.array_equal(found.views[0].points, first.views[0].points)
        assert found.views[0].sets == first.views[0].sets
        (file,) = (tmp_path / "cache").glob("view-*.safetensors")
        file.write_bytes(file.read_bytes()[:-5])
        with pytest.warns(of.OutfieldWarning, match="damaged and is computed again"):
            second = run_images(tmp_path, detectors=detectors("MSP"), view=True)
        assert np.array_equal(first.views[0].points, second.views[0].points)

    def test_features_of_other_images_are_not_trusted(self, tmp_path, whole):
        run_images(tmp_path)
        for file in (tmp_path / "cache").glob("scores-*"):
            file.unlink()
        aunts, uncles = (next((tmp_path / "cache").glob(f"features-net-{n}*.safetensors")) for n in ("aunts", "uncles"))
        aunts.write_bytes(uncles.read_bytes())
        with pytest.warns(of.OutfieldWarning, match="rows, but there are"):
            assert run_images(tmp_path).records == whole

    def test_a_damaged_checkpoint_is_left_behind(self, tmp_path, whole, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(of.EnergyCorrected, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                run_images(tmp_path)
        (checkpoint,) = (tmp_path / "cache").glob("checkpoint*.safetensors")
        checkpoint.write_bytes(checkpoint.read_bytes()[:-3])
        with pytest.warns(of.OutfieldWarning, match="a fit begins anew"):
            assert run_images(tmp_path).records == whole

    def test_a_lost_note_costs_only_the_note(self, tmp_path, whole):
        run_images(tmp_path)
        for note in (tmp_path / "cache").glob("*.json"):
            note.write_text("{") if note.name.startswith("detector") else note.unlink()
        again = run_images(tmp_path)
        assert again.records == whole
        assert all(stage["seconds"] is None for stage in again.provenance["stages"])


class TestCode:
    """What changed code computed is not taken for a result of the code as it is."""

    @pytest.fixture
    def package(self, tmp_path, monkeypatch):
        copy = tmp_path / "package"
        shutil.copytree(sources.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.setattr(sources, "PACKAGE", copy)
        sources.code.cache_clear()
        yield copy
        sources.code.cache_clear()

    @pytest.mark.parametrize(
        ("file", "extracted", "fits"),
        [
            ("engine/step.py", [], 5),
            ("detectors/knn.py", [], 5),
            ("hooks.py", list(SETS), 5),
            ("odin.py", list(SETS[1:]), 0),
            ("figures/roc.py", [], 0),
        ],
    )
    def test_what_it_stands_behind_is_computed_again(self, file, extracted, fits, package, tmp_path, count):
        run_images(tmp_path / "out")
        count.clear()
        with open(package / file, "a") as source:
            source.write("# changed\n")
        sources.code.cache_clear()
        backbone = FakeBackbone()
        run_images(tmp_path / "out", backbone)
        assert backbone.calls == extracted
        assert count["fit"] + count["fit_together"] == fits

    def test_another_torch_computes_again(self, tmp_path, count, monkeypatch):
        run_images(tmp_path)
        monkeypatch.setattr(sources, "version_of", lambda name: "0.0")
        sources.code.cache_clear()
        backbone = FakeBackbone()
        run_images(tmp_path, backbone)
        sources.code.cache_clear()
        assert backbone.calls == list(SETS)

    def test_a_detector_of_ones_own_has_its_file(self):
        assert sources.code_of(FakeBackbone()) == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()

    @pytest.mark.parametrize(("what", "roots"), [("odin", ["backbone"]), ("detector", ["detectors", "training"])])
    def test_no_module_is_forgotten(self, what, roots):
        """Whatever is imported on the way is listed, or is of those that decide no number."""
        inert = {
            "arrays",
            "checks",
            "config",
            "devices",
            "errors",
            "features",
            "progress",
            "storage",
            "tables",
            "version",
        }
        seen, todo = set(), list(roots)
        while todo:
            name = todo.pop()
            if name not in seen | inert:
                seen.add(name)
                for file in [*(sources.PACKAGE / name).glob("*.py")] or [sources.PACKAGE / f"{name}.py"]:
                    text = file.read_text()
                    todo += re.findall(r"^\s*from outfield\.(\w+)", text, re.M)
                    todo += [
                        n for line in re.findall(r"^\s*from outfield import (.*)", text, re.M) for n in line.split(", ")
                    ]
        assert seen == set(sources.SOURCES[what]) - ({"imagefiles"} if what == "odin" else set())

    def test_results_say_what_made_them(self, tmp_path, monkeypatch):
        monkeypatch.setattr(provenance, "commit", lambda: {"commit": "a" * 40, "dirty": True})
        run_images(tmp_path, detectors=detectors("SSD"))
        monkeypatch.setattr(provenance, "commit", lambda: {"commit": "b" * 40, "dirty": False})
        run = run_images(tmp_path, detectors=detectors("SSD", "MSP"))
        made = {stage["detector"]: stage for stage in run.provenance["stages"] if stage["what"] == "detector"}
        assert (made["SSD"]["found"], made["SSD"]["commit"]) == (True, "a" * 12 + " with changes")
        assert (made["MSP"]["found"], made["MSP"]["commit"]) == (False, "b" * 12)
        assert made["SSD"]["torch"] == provenance.versions()["torch"]
        (note,) = (tmp_path / "cache").glob("detector-net-SSD*.json")
        about = json.loads(note.read_text())
        assert (about["outfield"], about["commit"]) == (of.__version__, "a" * 12 + " with changes")
        assert about["depends_on"]["code"] == sources.code("detector")


class TestSettings:
    def test_given_as_text(self):
        chosen = detectors_from_text(PROTOCOLS["cifar100"], ["EBM", "KNN"], {"EBM": {"training.epochs": "3"}})
        assert [*chosen] == ["EBM", "KNN"]
        assert (chosen["EBM"].training.epochs, chosen["KNN"].k) == (3, 200)
        chosen = detectors_from_text(PROTOCOLS["cifar100"], None, {"KNN": {"k": "20"}})
        assert (set(chosen), chosen["KNN"].k) == (set(of.DETECTORS), 20)

    @pytest.mark.parametrize(
        ("names", "settings", "said"),
        [
            (["KNM"], {}, "there is no detector 'KNM'; there are"),
            (None, {"KNM": {"k": "1"}}, "there is no detector 'KNM'; there are"),
            (["SSD"], {"KNN": {"k": "1"}}, "settings of KNN, but only SSD"),
            (None, {"KNN": {"q": "1"}}, "KNN has no setting q; it has k"),
            (None, {"KNN": {"k": "many"}}, "k is 'many'"),
        ],
    )
    def test_wrong_ones(self, names, settings, said):
        with pytest.raises(of.InputError, match=said):
            detectors_from_text(PROTOCOLS["cifar10"], names, settings)


class TestSaved:
    def test_a_smaller_run_over_a_larger_one_is_told_of(self, run, tmp_path):
        path = tmp_path / "run.safetensors"
        save_run(run, path)
        save_run(run, path)  # nothing is lost
        keep = [
            r for r in run.records if (r.backbone, r.seed) == ("a", None) and r.detector != "KNN" and r.ood != "aunts"
        ]
        less = replace(run, records=keep, scores={}, histories={})
        said = (
            "had the backbone b and the detectors KNN, EnergyCorrected and the seeds 0, 1 and the OOD set aunts, which"
        )
        with pytest.warns(of.OutfieldWarning, match=said):
            save_run(less, path)
        assert load_run(path).records == keep
        path.write_bytes(b"no run")
        save_run(run, path)


class TestFolder:
    def test_sets_are_found_in_a_folder(self, tmp_path):
        for name, source in image_sets().items():
            file = {"train": "shapes_train", "test": "shapes_test"}.get(name, f"{name}_test")
            labels = {} if source.labels is None else {"labels": source.labels}
            np.savez(tmp_path / f"{file}.npz", images=source.images, **labels)
        run = run_images(tmp_path / "out", data=tmp_path)
        assert run.records == run_images(tmp_path / "other").records
        (tmp_path / "aunts_test.npz").unlink()
        backbone = FakeBackbone()
        with pytest.raises(of.InputError, match=r"these sets are missing: aunts \(test\)"):
            run_images(tmp_path / "out", backbone, tmp_path)
        assert backbone.calls == []
        assert run_images(tmp_path / "out", data=tmp_path, allow_missing=True).provenance["missing"] == ["aunts"]
        (tmp_path / "uncles_test.npz").write_bytes(b"PK, but no archive")
        with pytest.raises(of.FileFormatError):  # damaged is not missing
            run_images(tmp_path / "out", data=tmp_path, allow_missing=True)


class TestBackbones:
    def test_several(self, tmp_path):
        pair = [FakeBackbone("net"), FakeBackbone("other", scale=3.0)]
        settings = {"detectors": detectors("MSP", "SSD"), "view": False}
        run = run_benchmark(PROTOCOL, image_sets(), pair, tmp_path, **settings)
        assert {r.backbone for r in run.records} == {"net", "other"}
        assert list(run.accuracies) == ["net", "other"]
        with pytest.raises(of.InputError, match="net and twin are the same backbone"):
            run_benchmark(PROTOCOL, image_sets(), [FakeBackbone(), FakeBackbone("twin")], tmp_path, **settings)
        for none in ([], "net.safetensors"):
            with pytest.raises(of.InputError, match="must be a list of at least one"):
                run_benchmark(PROTOCOL, image_sets(), none, tmp_path, **settings)

    @pytest.mark.parametrize(
        ("given", "names"),
        [
            (["/data/x/net.safetensors"], ["net"]),
            (["/data/x/net.safetensors", "/data/y/net.safetensors"], ["x/net", "y/net"]),
            (["timm:resnet50.a1_in1k", "torchvision:vgg11"], ["resnet50.a1_in1k", "vgg11"]),
            (["timm:resnet50@runs/7/w.safetensors", "w.safetensors"], ["7/w", "w"]),
        ],
    )
    def test_names(self, given, names):
        assert backbone_names(given) == names
        with pytest.raises(of.InputError, match="each must be given once"):
            backbone_names([given[0], given[0]])

    def test_a_real_one_from_end_to_end(self, tmp_path):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
        backbone = Backbone(network, size=4, mean=(0.5,) * 3, std=(0.5,) * 3, name="tiny")
        run = run_images(tmp_path, backbone)
        assert len(run.records) == FITS * 4
        assert run_images(tmp_path, backbone).records == run.records
        assert run.provenance["backbones"]["tiny"]["sha256"] == backbone.fingerprint()

    def test_what_its_file_tells_is_kept_without_paths(self, tmp_path):
        header = {
            "classifier": {"architecture": "resnet34"},
            "notes": {"accuracy": 0.9, "data": "/home/someone/cifar10"},
        }
        storage.write(tmp_path / "net.safetensors", "classifier", header, {"w": torch.ones(1)})
        found = notes_of(str(tmp_path / "net.safetensors"))
        assert found == {"classifier": {"architecture": "resnet34"}, "notes": {"accuracy": 0.9, "data": "cifar10"}}
        assert notes_of("timm:resnet34") == notes_of(FakeBackbone()) == {}


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

    @pytest.mark.parametrize(
        ("text", "clean"),
        [
            ("/home/someone/x.npz", "x.npz"),
            ("~/x.npz", "x.npz"),
            ("--out=/home/Some One/x y", "--out=x y"),
            ("timm:resnet18@/mnt/w.safetensors", "timm:resnet18@w.safetensors"),
            (r"C:\Users\someone\x.npz", "x.npz"),
            ("file:///home/someone/x", "x"),
            ("read from '/home/someone/x', then /srv/y", "read from 'x', then y"),
            ("FPR95 / AUROC, 1/2, a/b, ../x, https://host/page", "FPR95 / AUROC, 1/2, a/b, ../x, https://host/page"),
            (str(Path.home()), "~"),
        ],
    )
    def test_paths_are_cut_down(self, text, clean):
        assert provenance.without_paths({text: [text, 1, None]}) == {clean: [clean, 1, None]}

    def test_code_versions_and_machine(self, monkeypatch):
        about = provenance.about_this_run("cpu")
        assert (
            about["versions"]["torch"] == torch.__version__.partition("+")[0]
            or about["versions"]["torch"] in torch.__version__
        )
        assert about["versions"]["outfield"] == of.__version__
        assert about["machine"]["device"] == "cpu"
        assert about["machine"]["cpus"] == os.cpu_count()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", about["started"])

    def test_the_gpu_is_named_only_where_it_is_used(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"GPU {torch.device(device).index}")
        assert provenance.machine("cpu")["gpu"] is None
        monkeypatch.setattr(provenance, "resolve_device", torch.device)
        assert provenance.machine("cuda:1")["gpu"] == "GPU 1"

    def test_without_a_checkout_the_commit_may_be_told(self, monkeypatch):
        monkeypatch.setattr(provenance, "_git", lambda *_: None)
        assert provenance.commit() == {"commit": None, "dirty": None}
        monkeypatch.setenv("OUTFIELD_COMMIT", "abc")
        assert provenance.commit() == {"commit": "abc", "dirty": None}


class TestView:
    def test_shares_of_the_points(self):
        rng = np.random.default_rng(0)
        sets = {name: of.FeatureSet(rng.random((n, 3))) for name, n in (("id", 700), ("a", 900), ("b", 20))}
        rows = choose(sets, 0)
        assert {name: len(index) for name, index in rows.items()} == {"id": 600, "a": 700, "b": 20}
        assert all((np.diff(index) > 0).all() for index in rows.values())

    def test_clusters_stay_apart_and_equal_seeds_give_equal_views(self):
        rng = np.random.default_rng(0)
        near, far = (
            of.FeatureSet(np.abs(centre + 0.01 * rng.standard_normal((40, 8)))) for centre in np.eye(8)[:2] + 0.1
        )
        points, rows = lay_out({"id": near, "ood": far})
        assert np.array_equal(points, lay_out({"id": near, "ood": far})[0])
        one, two = points[: len(rows["id"])], points[len(rows["id"]) :]
        assert np.linalg.norm(one.mean(0) - two.mean(0)) > 2 * max(one.std(), two.std())

    def test_what_cannot_be_laid_out_lies_at_the_origin(self):
        same = of.FeatureSet(np.ones((9, 4)))
        assert not lay_out({"id": same, "ood": same})[0].any()
        line = of.FeatureSet(np.linspace(1, 2, 9)[:, None])
        assert math.prod(lay_out({"id": line, "ood": line})[0].shape) == 36
