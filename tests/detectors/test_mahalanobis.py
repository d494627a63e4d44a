"""Distances of several layers: their sum is what a naive computation of each layer gives."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import outfield as of


def make(n, seed, shift=0.0):
    """Rows with a class structure in the features and two stages, each of another width and scale."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    wide = {"features": 5, "stage1": 3, "stage2": 4}
    rows = {
        name: (10.0**i) * np.abs(rng.normal(size=(n, width)) + labels[:, None] + shift * rng.normal(size=(n, width)))
        for i, (name, width) in enumerate(wide.items())
    }
    return of.FeatureSet(**rows, labels=labels)


TRAIN, TEST = make(150, 0), make(40, 1, shift=1.0)
LAYERS = ("features", "stage1", "stage2")


def distances(rows, train, labels):
    """min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c) of normalised rows, one row at a time."""
    unit = [
        value.double().numpy() / np.linalg.norm(value.double().numpy(), axis=1, keepdims=True)
        for value in (rows, train)
    ]
    means = [unit[1][labels == c].mean(0) for c in range(3)]
    centred = unit[1] - np.array(means)[labels]
    precision = np.linalg.inv(centred.T @ centred / len(centred))
    return np.array([min((z - m) @ precision @ (z - m) for m in means) for z in unit[0]])


def naive(weights):
    labels, total = TRAIN.labels.numpy(), np.zeros(len(TEST))
    for layer, weight in zip(LAYERS, weights, strict=True):
        train = TRAIN.tensors()[layer]
        known = distances(train, train, labels)
        total += weight * (distances(TEST.tensors()[layer], train, labels) - known.mean()) / known.std()
    return total


def test_every_layer_counts_the_same():
    found = of.Mahalanobis(LAYERS, floor=1e-12).fit(TRAIN).score(TEST).numpy()
    assert np.allclose(found, naive((1, 1, 1)), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("weights", [(1.0, 0.0, 2.5), (0, 0, 1)])
def test_weights(weights):
    found = of.Mahalanobis(LAYERS, weights, floor=1e-12).fit(TRAIN).score(TEST).numpy()
    assert np.allclose(found, naive(weights), rtol=2e-3, atol=2e-3)


def test_one_layer_ranks_as_ssd_does():
    for layer in LAYERS:
        alone = of.SSD(on=layer, floor=0.1, ridge=0.5).fit(TRAIN).score(TEST)
        found = of.Mahalanobis((layer,), floor=0.1, ridge=0.5).fit(TRAIN).score(TEST)
        assert torch.equal(found.argsort(), alone.argsort())
        assert not torch.allclose(of.Mahalanobis((layer,)).fit(TRAIN).score(TEST), found)


def test_saved_and_loaded(tmp_path):
    fitted = of.Mahalanobis(LAYERS, (1.0, 2.0, 3.0), ridge=0.1).fit(TRAIN)
    fitted.save(tmp_path / "d.safetensors")
    loaded = of.load(tmp_path / "d.safetensors")
    assert repr(loaded) == repr(fitted)
    assert torch.equal(loaded.score(TEST), fitted.score(TEST))


def test_defaults():
    assert {name: one.default for name, one in inspect.signature(of.Mahalanobis).parameters.items()} == {
        "layers": ("features", "stage1", "stage2", "stage3"),
        "weights": "equal",
        "floor": 1e-6,
        "ridge": 0.0,
    }
    detector = of.Mahalanobis()
    assert detector.needs_to_score == ("features", "stage1", "stage2", "stage3")
    assert detector.needs_to_fit == ("labels", "stage1", "stage2", "stage3")


class TestMistakes:
    def test_layers(self):
        for bad in ((), None, "features", ("features", "features"), ("stage9",), ("logits",), (2,), ("features", 2)):
            with pytest.raises(of.InputError, match=r"layers is .*different fields among features"):
                of.Mahalanobis(bad).fit(TRAIN)

    def test_weights(self):
        for bad in ("", "even", None, (1.0,), (1.0,) * 4, 3):
            with pytest.raises(of.InputError, match=r"weights is .*'equal' or a list of 3 numbers"):
                of.Mahalanobis(LAYERS, bad).fit(TRAIN)
        for bad in (-1e-9, "x", None):
            with pytest.raises(of.InputError, match=r"weights is .*at least 0"):
                of.Mahalanobis(LAYERS, (1.0, bad, 1.0)).fit(TRAIN)

    def test_mixtures(self):
        for setting in ({"floor": 0}, {"ridge": -1}):
            with pytest.raises(of.InputError, match=rf"{next(iter(setting))} is"):
                of.Mahalanobis(LAYERS, **setting).check_settings()

    def test_a_stage_that_is_not_there(self):
        with pytest.raises(of.MissingFieldError, match=r"Mahalanobis.fit needs stage3"):
            of.Mahalanobis().fit(TRAIN)
        only = of.FeatureSet(TEST.features, stage1=TEST.stage1)
        with pytest.raises(of.MissingFieldError, match=r"Mahalanobis.score needs stage2"):
            of.Mahalanobis(LAYERS).fit(TRAIN).score(only)
