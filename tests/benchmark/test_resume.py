"""What a benchmark keeps, and what a second run or one that was cut off computes again."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.helpers.fake_benchmark import (
    FITS,
    PROTOCOL,
    SETS,
    FakeBackbone,
    detectors,
    image_sets,
    run_features,
    run_images,
)
from torch import nn

import outfield as of
from outfield.backbone import Backbone
from outfield.benchmark import Key
from outfield.files import write_record
from outfield.images import ImageArray


@pytest.fixture(scope="module")
def run():
    return run_features()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Records of a run that was never cut off."""
    return run_images(tmp_path_factory.mktemp("whole")).records


class TestImages:
    def test_images_give_what_their_features_give(self, tmp_path):
        backbone, images = FakeBackbone(), image_sets()
        run = run_images(tmp_path, backbone, images)
        odin = [None, *[object()] * 5]
        sets = {
            name: FakeBackbone().extract(images[name], odin=o, labels=name in ("train", "test"))
            for name, o in zip(SETS, odin, strict=True)
        }
        plain = of.benchmark_features(PROTOCOL, {"net": sets}, detectors=detectors(), seeds=2, layout=False)
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
            train = images["train"]
            images["train"] = ImageArray(train.images[::-1].copy(), train.labels[::-1].copy(), "train images")
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

    def test_kept_results_of_seeds_are_not_mixed_up(self, tmp_path):
        first = run_images(tmp_path, detectors=detectors("EnergyCorrected"), seeds=[0, 1])
        found = run_images(tmp_path, detectors=detectors("EnergyCorrected"), seeds=[1, 0])
        alone = run_images(tmp_path / "alone", detectors=detectors("EnergyCorrected"), seeds=[1])
        zero, one = (Key("net", "EnergyCorrected", seed) for seed in (0, 1))
        assert not np.array_equal(first.scores[zero]["aunts"], first.scores[one]["aunts"])
        for key in (zero, one):
            assert np.array_equal(found.scores[key]["aunts"], first.scores[key]["aunts"])
        np.testing.assert_allclose(alone.scores[one]["aunts"], first.scores[one]["aunts"], atol=1e-3)
        kept = [path.stem.rpartition("-")[2] for path in (tmp_path / "cache").glob("detector-*.safetensors")]
        assert len(kept) == len(set(kept)) == 2  # the digest alone tells them apart

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

    def test_odin_and_stages_cost_nothing_where_nobody_asks_for_them(self, tmp_path):
        class Without(FakeBackbone):
            def extract(self, images, *, odin=None, labels=True):  # one that knows of no stages will do
                return super().extract(images, odin=odin, labels=labels)

        run = run_images(tmp_path, Without(), detectors=detectors("SSD"))
        assert run.provenance["odin"] is None
        kept = of.FeatureSet.load(next((tmp_path / "cache").glob("features-net-aunts*.safetensors")))
        assert kept.odin_logits is None
        assert kept.stage2 is None
        assert kept.head_weight.shape == (3, 8)  # not one row for each image
        assert not [*(tmp_path / "cache").glob("odin-*"), *(tmp_path / "cache").glob("blocks-*")]

    def test_features_of_other_views_are_others(self, tmp_path):
        backbone, chosen = FakeBackbone(), {"SSD": of.SSD(), "KNN": of.KNN(k=3, field="stage2"), "ODIN": of.ODIN()}
        plain = run_images(tmp_path, backbone, detectors=chosen)
        assert len(backbone.calls) == 6
        flipped = run_images(tmp_path, backbone, detectors=chosen, views="flip")
        assert len(backbone.calls) == 12
        assert "views" not in plain.provenance
        assert flipped.provenance["views"] == "flip"
        for key, scores in flipped.scores.items():
            assert not np.array_equal(scores["strangers"], plain.scores[key]["strangers"])
        for views, same in ((2, flipped), (of.Views(), flipped), ("one", plain), (1, plain)):
            assert run_images(tmp_path, backbone, detectors=chosen, views=views).records == same.records
        assert len(backbone.calls) == 12
        run_images(tmp_path, backbone, detectors=chosen, views="six")
        assert len(backbone.calls) == 18

    def test_views_are_those_of_a_plain_extraction(self, tmp_path):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
        backbone = Backbone(network, size=4, mean=(0.5,) * 3, std=(0.5,) * 3, name="tiny")
        run = run_images(tmp_path, backbone, detectors={"SSD": of.SSD()}, views=3)
        images = image_sets()
        sets = {name: backbone.extract(images[name], views=3, labels=name == "train") for name in ("train", "aunts")}
        ssd = of.SSD().fit(sets["train"])
        np.testing.assert_array_equal(run.scores[Key("tiny", "SSD")]["aunts"], ssd.score(sets["aunts"]).numpy())
        assert run.provenance["views"] == "3 views"

    def test_stages_come_and_go_without_the_others(self, tmp_path, count):
        chosen = {"SSD": of.SSD(), "early": of.SSD(field="stage2")}
        without = run_images(tmp_path, detectors={"SSD": of.SSD()})
        count.clear()
        backbone = FakeBackbone()
        run = run_images(tmp_path, backbone, detectors=chosen)
        assert backbone.calls == list(SETS)  # the training set too: it is fitted on a stage
        assert count == {"fit": 1}
        assert [r for r in run.records if r.detector == "SSD"] == without.records
        images = image_sets()
        sets = {n: FakeBackbone().extract(images[n], labels=n in ("train", "test"), stages=True) for n in SETS}
        afresh = of.benchmark_features(PROTOCOL, {"net": sets}, detectors=chosen, layout=False)
        assert run.records == afresh.records
        again = FakeBackbone()
        assert run_images(tmp_path, again, detectors=chosen).records == run.records
        assert again.calls == []

    @pytest.mark.parametrize("lost", [("scores-*aunts*",), ("scores-*", "detector-*")], ids=["scores", "fits"])
    def test_kept_stages_still_know_their_blocks(self, tmp_path, lost):
        """Also where a new fit learns from them."""
        chosen = {"early": of.SSD(field="stage2")}
        run_images(tmp_path, detectors=chosen)
        for file in [file for pattern in ("*-net-aunts*", *lost) for file in (tmp_path / "cache").glob(pattern)]:
            file.unlink(missing_ok=True)
        other = FakeBackbone()
        other.block = "layer9"
        with pytest.raises(of.InputError, match="stage2 is 'layer9' here, but 'layer2'"):
            run_images(tmp_path, other, detectors=chosen)
        assert other.calls == ["aunts"]

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
        with pytest.raises(of.InputError, match="data has nephews, but the protocol of shapes has train, test"):
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


@dataclass(frozen=True)
class AtOnce(of.Checkpoint):
    """Written after every step."""

    seconds: float = 0.0


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
        saved = []

        def write_and_die(path, kind, record, **more):
            write_record(path, kind, record, **more)
            saved.extend([path] * (kind == "Checkpoint"))
            if len(saved) >= stop:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("outfield.detectors.ebm_energy_corrected.Checkpoint", AtOnce)
            patch.setattr("outfield.energy.loop.write_record", write_and_die)
            with pytest.raises(KeyboardInterrupt):
                run_images(tmp_path)
        assert (count["fit"], count["step"]) == (4, stop)
        assert list((tmp_path / "cache").glob("checkpoint*"))
        count.clear()
        run = run_images(tmp_path)
        assert run.records == whole
        assert (count["fit"], count["step"]) == (0, 2 - stop)
        assert not list((tmp_path / "cache").glob("checkpoint*"))
        seconds = [s["seconds"] for s in run.provenance["stages"] if s["what"] == "detector" and s["seed"] is not None]
        assert seconds == [None, None]  # of the first part nothing is known

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
        curves = [json.loads(note.read_text())["seconds"] for note in (tmp_path / "cache").glob("history-*.json")]
        assert set(curves) == {0.0}  # they come with the fit
        for kind in ("scores-", "detector-", "features-", "odin-", "history-"):
            files = sorted((tmp_path / "cache").glob(f"{kind}*.safetensors"))
            assert files
            for file in files:
                file.write_bytes(damage(file.read_bytes()))
        with pytest.warns(of.OutfieldWarning, match="damaged and is computed again"):
            assert run_images(tmp_path).records == whole
        assert run_images(tmp_path).records == whole  # without a warning

    def test_a_layout_is_found(self, tmp_path):
        first, found = (run_images(tmp_path, detectors=detectors("MSP"), layout=True) for _ in range(2))
        assert next(stage["found"] for stage in found.provenance["stages"] if stage["what"] == "layout")
        assert np.array_equal(found.layouts[0].points, first.layouts[0].points)
        assert found.layouts[0].sets == first.layouts[0].sets

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
