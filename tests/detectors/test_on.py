"""Detectors of features on another field: the same as if that field were the features."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from tests.helpers.samples import quick

import outfield as of

NAMES = [name for name in of.DETECTORS if "on" in inspect.signature(of.DETECTORS[name]).parameters]


def sets(n=120, width=5, seed=0, **about):
    """A set with a stage, and the same with the stage as its features."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    stage = np.abs(rng.normal(size=(n, width)) + labels[:, None])
    logits = rng.normal(size=(n, 3))
    both = of.FeatureSet(rng.normal(size=(n, 2)), stage2=stage, labels=labels, logits=logits, about=about)
    return both, of.FeatureSet(stage, labels=labels, logits=logits)


def test_feature_space_detectors_have_the_setting():
    assert {"SSD", "GaussianMixture", "KNN", "EBM", "EnergyCorrected"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_is_taken_for_the_features(name, tmp_path):
    both, alone = sets()
    here, there = quick(name, on="stage2").fit(both), quick(name).fit(alone)
    assert "stage2" in here.needs_to_score
    assert "features" not in here.needs_to_score
    assert torch.equal(here.score(both), there.score(alone))
    both.save(tmp_path / "f.npz")
    assert torch.allclose(here.score(of.open_features(tmp_path / "f.npz")), here.score(both))
    streamed = quick(name, on="stage2").fit(of.open_features(tmp_path / "f.npz"))
    assert torch.allclose(streamed.score(both), here.score(both), atol=1e-4)
    here.save(tmp_path / "d.safetensors")
    loaded = of.load(tmp_path / "d.safetensors")
    assert loaded.on == "stage2"
    assert torch.equal(loaded.score(both), here.score(both))
    assert loaded.fingerprint() == here.fingerprint() != there.fingerprint()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_wrong_with_a_stage_is_said(name):
    both, alone = sets()
    with pytest.raises(of.MissingFieldError, match=rf"{name}.fit needs stage2"):
        quick(name, on="stage2").fit(alone)
    fitted = quick(name, on="stage2").fit(both)
    with pytest.raises(of.MissingFieldError, match=rf"{name}.score needs stage2"):
        fitted.score(alone)
    with pytest.raises(of.InputError, match=r"stage2 has 4 columns but this \w+ was fitted on 5"):
        fitted.score(sets(width=4)[0])
    for bad in ("stage9", "logits", 2, None):
        with pytest.raises(of.InputError, match="on is"):
            quick(name, on=bad).fit(both)


def test_a_stage_of_another_network_is_refused(tmp_path):
    ours, theirs = sets(stage2="layer2", views="flip")[0], sets(stage2="blocks.1", views="flip")[0]
    of.SSD(on="stage2").fit(ours).save(tmp_path / "d.safetensors")
    for detector in (of.SSD(on="stage2").fit(ours), of.load(tmp_path / "d.safetensors")):
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
    assert b'"on"' not in (tmp_path / "d.safetensors").read_bytes()
    assert b'"about"' not in (tmp_path / "d.safetensors").read_bytes()
