"""Held-out ID samples in a benchmark: how many, which, who is given them, and views that are chosen by stand-ins of them."""

import numpy as np
import pytest
import torch
from tests.helpers.fake_benchmark import PROTOCOL, FakeBackbone, feature_sets, image_sets, run_images
from tests.helpers.samples import make_set

import outfield as of
from outfield.benchmark import runs
from outfield.benchmark.plan import held_out_count
from outfield.benchmark.protocol import HELD_OUT
from outfield.benchmark.sets import split, split_features, split_images
from outfield.detectors import ViewsChoice
from outfield.images import ImageArray, part_of
from outfield.report import tables

AUTO = {"Auto": of.Auto(most_members=1), "SSD": of.SSD()}


def many_images():
    """The small sets, the ID ones repeated with other noise so that some can be held out."""
    rng = np.random.default_rng(7)
    found = image_sets()
    for name, times in (("train", 3), ("test", 3)):
        labels = np.tile(found[name].labels, times)
        pixels = np.tile(found[name].images, (times, 1, 1, 1)).astype(int) + rng.integers(0, 9, (len(labels), 4, 4, 3))
        found[name] = ImageArray(pixels.clip(0, 255).astype(np.uint8), labels, name=found[name].name)
    return found


class TestHowMany:
    @pytest.mark.parametrize(
        ("test", "count"), [(10_000, 1000), (20_000, 1000), (5000, 500), (400, 40), (394, 0), (60, 0)]
    )
    def test_a_tenth_where_a_detector_calibrates_itself(self, test, count):
        assert held_out_count(None, [of.SSD(), of.Auto()], test) == count
        assert held_out_count(None, [of.Fused()], test) == count
        assert held_out_count(None, [of.SSD()], test) == 0

    def test_as_many_as_are_asked_for(self):
        assert held_out_count(0, [of.Auto()], 1000) == 0
        assert held_out_count(40, [], 80) == 40
        for wrong in (39, 1, 41):
            with pytest.raises(of.InputError, match=f"held_out is {wrong}; it must be 0, or from 40 to 40"):
                held_out_count(wrong, [], 80)
        for wrong, said in ((-1, "at least 0"), (40.5, "whole"), ("40", "whole"), (True, "whole")):
            with pytest.raises(of.InputError, match=f"held_out is {wrong!r}; it must be .*{said}"):
                held_out_count(wrong, [], 100)

    def test_every_sample_is_judged_or_held_out(self):
        judged, held_out = split(50, 12)
        assert (len(judged), len(held_out)) == (38, 12)
        assert sorted([*judged, *held_out]) == list(range(50))
        assert list(judged) == sorted(judged)
        assert list(held_out) == sorted(held_out) != list(range(12))
        assert [*split(50, 12)[1]] == [*held_out]


class TestSplitting:
    def test_images(self):
        images = many_images()
        found, levels = split_images(images, 40, [of.Auto()])
        judged, held_out = split(len(images["test"]), 40)
        assert np.array_equal(found["test"].images, images["test"].images[judged])
        assert np.array_equal(found["test"].labels, images["test"].labels[judged])
        assert np.array_equal(found[HELD_OUT].images, images["test"].images[held_out])
        assert found["train"] is images["train"]
        made = of.stand_ins(found[HELD_OUT])
        assert levels == {f"stand-in {name}": level for name, level in made.levels.items()}
        assert all(len(found[name]) == 40 for name in levels)
        assert np.array_equal(found["stand-in turned180"][3], made["turned180"][3])

    def test_stand_ins_are_made_for_who_chooses_by_them(self):
        found, levels = split_images(many_images(), 40, [of.Fused()])
        assert levels == {}
        assert set(found) == {*many_images(), HELD_OUT}
        assert split_images(many_images(), 0, [of.Auto()])[0].keys() == many_images().keys()

    def test_features(self):
        sets = {"train": make_set(90), "test": make_set(90, seed=1)}
        found = split_features(sets, 40)
        judged, held_out = split(90, 40)
        assert torch.equal(found["test"].features, sets["test"].features[judged])
        assert torch.equal(found[HELD_OUT].features, sets["test"].features[held_out])
        assert torch.equal(found[HELD_OUT].labels, sets["test"].labels[held_out])
        given = {**sets, HELD_OUT: make_set(50, seed=2)}
        assert split_features(given, 40) == given
        assert split_features(sets, 0) == sets

    def test_images_that_are_decoded_one_by_one(self):
        images = many_images()["test"]
        lazy = of.stand_ins(images, kinds=["turned180"])["turned180"]
        part = part_of(lazy, np.array([5, 2]))
        assert np.array_equal(np.stack([part[0], part[1]]), np.stack([lazy[5], lazy[2]]))
        assert (len(part), part.size, part.labels, part.name) == (2, (4, 4), None, lazy.name)
        assert repr(part) == f"PartOfImages({lazy.name}: 2 images of 177)"
        assert part.fingerprint() == part_of(lazy, np.array([5, 2])).fingerprint()
        assert part.fingerprint() != part_of(lazy, np.array([2, 5])).fingerprint() != lazy.fingerprint()


class TestRuns:
    def test_from_images(self, tmp_path):
        said = []
        run = run_images(tmp_path, FakeBackbone(), many_images(), detectors=AUTO, held_out=40, say=said.append)
        assert run.provenance["held_out"] == {"images": 40, "seed": 0}
        assert "40 images of the ID test set only calibrate; no detector is judged on them" in said
        assert "40 images of the ID test set only calibrate" in tables(run)["levels"].notes[0]
        assert {record.n_id for record in run.records} == {177 - 40}
        assert {stage["backbone"] for stage in run.provenance["stages"]} == {"net"}
        images, levels = split_images(many_images(), 40, [of.Auto()])
        features = {name: FakeBackbone().extract(x, stages=True, labels=name == "train") for name, x in images.items()}
        stand_ins = {at: {name: features[name] for name in levels if levels[name] == at} for at in ("near", "far")}
        auto = of.Auto(most_members=1).fit(features["train"], held_out=features[HELD_OUT], stand_ins=stand_ins)
        found = run.scores[next(key for key in run.scores if key.detector == "Auto")]
        assert run.provenance["chosen"] == {"Auto": {"net": [*auto.names]}}
        np.testing.assert_allclose(found["strangers"], auto.score(features["strangers"]).numpy(), rtol=1e-5)

    def test_a_second_run_finds_everything(self, tmp_path):
        first = run_images(tmp_path, FakeBackbone(), many_images(), detectors=AUTO, held_out=40)
        backbone = FakeBackbone()
        again = run_images(tmp_path, backbone, many_images(), detectors=AUTO, held_out=40)
        assert backbone.calls == []
        assert [*again.records] == [*first.records]
        assert again.provenance["chosen"] == first.provenance["chosen"]
        other = run_images(tmp_path, FakeBackbone(), many_images(), detectors=AUTO, held_out=60)
        assert {record.n_id for record in other.records} == {117}

    def test_fused_is_given_the_held_out_rows(self, tmp_path):
        fused = of.Fused([of.KNN(k=3), of.SSD()])
        run = run_images(tmp_path, FakeBackbone(), many_images(), detectors={"Fused": fused}, held_out=50)
        images, _ = split_images(many_images(), 50, [fused])
        features = {name: FakeBackbone().extract(one, labels=name == "train") for name, one in images.items()}
        expected = of.Fused([of.KNN(k=3), of.SSD()]).fit(features["train"], held_out=features[HELD_OUT])
        (found,) = run.scores.values()
        np.testing.assert_allclose(found["aunts"], expected.score(features["aunts"]).numpy(), rtol=1e-5)

    def test_from_features(self):
        sets = feature_sets()
        sets["test"], sets["train"] = make_set(100, seed=50), make_set(150, seed=51)
        given = {**sets, "held_out": make_set(50, seed=52)}
        for mine, more, split_off, judged in (
            (sets, {"held_out": 40}, split_features(sets, 40), 60),
            (given, {}, given, 100),
        ):
            run = of.benchmark_features(PROTOCOL, {"a": mine}, detectors=AUTO, layout=False, **more)
            assert {record.n_id for record in run.records} == {judged}
            assert ("40 rows of the ID test set only calibrate" in str(tables(run)["levels"].notes)) == (judged == 60)
            auto = of.Auto(most_members=1).fit(split_off["train"], held_out=split_off[HELD_OUT])
            found = run.scores[next(key for key in run.scores if key.detector == "Auto")]
            np.testing.assert_allclose(found["aunts"], auto.score(sets["aunts"]).numpy(), rtol=1e-5)


@pytest.fixture
def prefers(monkeypatch):
    """Makes the choice fall on views by name, and notes the rows that it was given."""
    seen = {}

    def prefer(best):
        def choose(rows_of, device):
            seen.update({views: rows_of(views) for views in ("one", "flip", "six")})
            return ViewsChoice(best, {views: 0.1 if views == best else 0.2 for views in seen})

        monkeypatch.setattr(runs, "choose_views", choose)
        return seen

    return prefer


def run(tmp_path, backbone, **more):
    return run_images(tmp_path, backbone, many_images(), detectors=AUTO, held_out=40, **more)


@pytest.mark.parametrize("best", ["one", "flip", "six"])
def test_the_run_is_that_with_the_chosen_views(tmp_path, prefers, best):
    prefers(best)
    found = run(tmp_path / "auto", FakeBackbone(), views="auto")
    expected = run(tmp_path / best, FakeBackbone(), views=best)
    assert [record.fpr95 for record in found.records] == [record.fpr95 for record in expected.records]
    assert found.provenance["views"]["net"].startswith(f"{best} (one ")


def test_it_is_chosen_by_training_held_out_and_stand_in_images(tmp_path, prefers):
    seen, backbone = prefers("flip"), FakeBackbone()
    run(tmp_path, backbone, views="auto")
    assert {str(rows.train.about.get("views")) for rows in seen.values()} == {"None", "flip", "six"}
    for rows in seen.values():
        assert (len(rows.train), len(rows.held_out)) == (len(many_images()["train"]), 40)
        assert set(rows.stand_ins.levels.values()) == {"near", "far"}
        assert {len(one) for one in rows.stand_ins.values()} == {40}
    assert backbone.calls.count("strangers") == 1


def test_a_second_run_finds_the_choice(tmp_path):
    first = run(tmp_path, FakeBackbone(), views="auto")
    backbone = FakeBackbone()
    again = run(tmp_path, backbone, views="auto")
    assert backbone.calls == []
    assert again.provenance["views"] == first.provenance["views"]
    assert [*again.records] == [*first.records]


def test_without_stand_ins_there_is_nothing_to_choose_by(tmp_path):
    for detectors, held_out in (({"SSD": of.SSD()}, 40), (AUTO, 0)):
        with pytest.raises(of.InputError, match=r"views are chosen by stand-ins.*one, flip, six"):
            run_images(tmp_path, FakeBackbone(), many_images(), detectors=detectors, held_out=held_out, views="auto")
