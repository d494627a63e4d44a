"""SHE against a loop, with rows that are classified wrong and classes that never are right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import outfield as of


def made(n=60, classes=3, width=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = 2 * np.eye(classes)[labels] + rng.standard_normal((n, classes))
    return of.FeatureSet(rng.standard_normal((n, width)) + labels[:, None], logits=logits, labels=labels)


def naive(train, test):
    f, y, guess = train.features.numpy(), train.labels.numpy(), train.logits.numpy().argmax(1)
    scores = []
    for row, logits in zip(test.features.numpy(), test.logits.numpy(), strict=True):
        c = logits.argmax()
        right, own = (y == c) & (guess == c), y == c
        pattern = f[right].mean(0) if right.any() else f[own].mean(0) if own.any() else np.zeros(f.shape[1])
        scores.append(-(row @ pattern))
    return scores


@pytest.mark.parametrize("pieces", [4096, 7])
def test_it_is_the_loop_s(pieces, monkeypatch):
    monkeypatch.setattr(of.SHE, "rows_at_once", pieces)
    train, test = made(), made(seed=1)
    assert (train.logits.argmax(1) != train.labels).any()
    np.testing.assert_allclose(of.SHE().fit(train).score(test).numpy(), naive(train, test), rtol=1e-5)


def test_a_class_that_is_never_right_and_one_without_rows():
    train, test = made(), made(seed=1)
    right = train.logits.argmax(1) == train.labels
    never = train[~((train.labels == 1) & right)]
    assert (never.labels == 1).any()
    np.testing.assert_allclose(of.SHE().fit(never).score(test).numpy(), naive(never, test), rtol=1e-5)
    without = train[train.labels != 2]
    scores = of.SHE().fit(without).score(test)
    np.testing.assert_allclose(scores.numpy(), naive(without, test), rtol=1e-5)
    assert (scores[test.logits.argmax(1) == 2] == 0).all()


def test_the_length_of_features_counts():
    train, test = made(), made(seed=1)
    twice = of.FeatureSet(2 * test.features, logits=test.logits)
    detector = of.SHE().fit(train)
    torch.testing.assert_close(detector.score(twice), 2 * detector.score(test))


@pytest.mark.parametrize("name", ["SHE", "NNGuide", "Relation"])
def test_logits_of_another_network_are_refused(name, tmp_path):
    detector = of.DETECTORS[name]().fit(made())
    detector.save(tmp_path / "d.safetensors")
    test = made(classes=4, seed=1)
    for one in (detector, of.load(tmp_path / "d.safetensors")):
        with pytest.raises(of.InputError, match=rf"logits has 4 columns but this {name} was fitted on 3"):
            one.score(test)
        with pytest.raises(of.InputError, match=rf"features has 5 columns but this {name} was fitted on 4"):
            one.score(made(width=5))
