"""Detectors of features on another field: the same as if that field were the features."""

import inspect
import json

import numpy as np
import pytest
import torch
from tests.helpers.samples import quick

import outfield as of
from outfield.config import construct_from_text, from_plain
from outfield.files import Record, read_record, write_record

NAMES = [name for name in of.DETECTORS if "field" in inspect.signature(of.DETECTORS[name]).parameters]


def sets(n=120, width=5, seed=0, **about):
    """A set with a stage, and the same with the stage as its features."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    stage = np.abs(rng.normal(size=(n, width)) + labels[:, None])
    logits = rng.normal(size=(n, 3))
    both = of.FeatureSet(rng.normal(size=(n, 2)), stage2=stage, labels=labels, logits=logits, about=about)
    return both, of.FeatureSet(stage, labels=labels, logits=logits)


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_is_taken_for_the_features(name, tmp_path):
    both, alone = sets()
    here, there = quick(name, field="stage2").fit(both), quick(name).fit(alone)
    assert "stage2" in here.needs_to_score
    assert "features" not in here.needs_to_score
    assert torch.equal(here.score(both), there.score(alone))
    both.save(tmp_path / "f.npz")
    assert torch.allclose(here.score(of.open_features(tmp_path / "f.npz")), here.score(both))
    streamed = quick(name, field="stage2").fit(of.open_features(tmp_path / "f.npz"))
    assert torch.allclose(streamed.score(both), here.score(both), atol=1e-4)
    here.save(tmp_path / "d.safetensors")
    loaded = of.load(tmp_path / "d.safetensors")
    assert loaded.field == "stage2"
    assert torch.equal(loaded.score(both), here.score(both))
    assert loaded.fingerprint() == here.fingerprint() != there.fingerprint()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_wrong_with_a_stage_is_said(name):
    both, alone = sets()
    with pytest.raises(of.MissingFieldError, match=rf"{name}.fit needs stage2"):
        quick(name, field="stage2").fit(alone)
    fitted = quick(name, field="stage2").fit(both)
    with pytest.raises(of.MissingFieldError, match=rf"{name}.score needs stage2"):
        fitted.score(alone)
    with pytest.raises(of.InputError, match=r"stage2 has 4 columns but this \w+ was fitted on 5"):
        fitted.score(sets(width=4)[0])
    for bad in ("stage9", "logits", 2, None):
        with pytest.raises(of.InputError, match="field is"):
            quick(name, field=bad).fit(both)


def test_a_stage_of_another_network_is_refused(tmp_path):
    ours, theirs = sets(stage2="layer2", views="flip")[0], sets(stage2="blocks.1", views="flip")[0]
    of.SSD(field="stage2").fit(ours).save(tmp_path / "d.safetensors")
    for detector in (of.SSD(field="stage2").fit(ours), of.load(tmp_path / "d.safetensors")):
        detector.score(ours)
        detector.score(sets()[0])  # of which nothing is known
        with pytest.raises(of.InputError, match=r"stage2 is .blocks.1. here, but 'layer2' where this SSD was fitted"):
            detector.score(theirs)
        with pytest.raises(of.InputError, match=r"views is .six. here, but .flip."):
            detector.score(sets(views="six")[0])
        with pytest.raises(of.InputError, match=r"views is .six. here, but .flip."):
            detector.partial_fit(sets(views="six")[0])
    of.SSD().fit(ours).score(theirs)  # which does not look at the stage


def test_the_default_is_not_written_down(tmp_path):
    alone = sets()[1]
    of.SSD().fit(alone).save(tmp_path / "d.safetensors")
    assert b'"field"' not in (tmp_path / "d.safetensors").read_bytes()
    assert b'"on"' not in (tmp_path / "d.safetensors").read_bytes()
    assert b'"about"' not in (tmp_path / "d.safetensors").read_bytes()


class TestTheOldName:
    """Version 0.1 called the setting ``on``."""

    @pytest.mark.parametrize("name", NAMES)
    def test_as_a_keyword_and_an_attribute(self, name):
        with pytest.warns(DeprecationWarning, match="on= is now field=") as told:
            old = of.DETECTORS[name](on="stage2")
        assert told[0].filename == __file__
        assert repr(old) == repr(of.DETECTORS[name](field="stage2"))
        assert old.on == old.field == "stage2"

    def test_as_text_and_in_settings(self):
        for name in ("on", "field"):
            assert construct_from_text(of.KNN, {name: "stage2", "k": "3"}).field == "stage2"
            assert from_plain({"type": "KNN", name: "stage2"}).field == "stage2"
            assert of.KNN(field="spread").fresh(**{name: "stage2"}).field == "stage2"
            with pytest.raises(of.InputError, match=f"MSP has no setting {name}"):
                construct_from_text(of.MSP, {name: "stage2"})
            with pytest.raises(of.InputError, match="field is 'x'"):
                construct_from_text(of.KNN, {name: "x"})

    def test_files_hold_it_and_either_is_read(self, tmp_path):
        both = sets()[0]
        fitted = of.Fused([of.SSD(field="stage2"), of.KNN(k=3)]).fit(both)
        fitted.save(tmp_path / "d.safetensors")
        header, tensors = read_record(tmp_path / "d.safetensors", "detector")
        assert header["settings"]["members"][0] == {"type": "SSD", "floor": 1e-6, "on": "stage2"}
        renamed = json.loads(json.dumps(header).replace('"on"', '"field"'))
        for said in (header, renamed):
            write_record(tmp_path / "e.safetensors", "detector", Record(said, tensors))
            loaded = of.load(tmp_path / "e.safetensors")
            assert torch.equal(loaded.score(both), fitted.score(both))
            assert loaded.fingerprint() == fitted.fingerprint()

    def test_a_users_own_detector_may_keep_it(self):
        class Mine(of.MSP):
            score_needs = ("features",)

            def __init__(self, on="features"):
                self.on = on

            def _score(self, batch):
                return batch["features"][:, 0]

        both = sets()[0]
        mine = Mine(on="stage2")
        assert (mine.field, mine.needs_to_score) == ("stage2", ("stage2",))
        assert torch.equal(mine.fit(both).score(both), both.stage2[:, 0].float())
        assert mine.fresh().on == "stage2"
