"""Means by class, whatever the pieces; and CosineMean, which is made of them, against a loop."""

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of

CPU = torch.device("cpu")


def naive(train, test):
    unit = lambda v: v / np.linalg.norm(v)  # noqa: E731
    z, y = train.features.double().numpy(), train.labels.numpy()
    means = [unit(np.mean([unit(row) for row in z[y == c]], axis=0)) for c in np.unique(y)]
    return [1 - max(float(unit(row) @ mean) for mean in means) for row in test.features.double().numpy()]


@pytest.mark.parametrize("pieces", [4096, 13])
@pytest.mark.parametrize("by", [0.0, 100.0])
def test_cosine_mean_is_the_loop_s(pieces, by, monkeypatch):
    monkeypatch.setattr(of.CosineMean, "rows_at_once", pieces)
    train, test = (of.FeatureSet(s.features.double() + by, labels=s.labels) for s in (make_set(), make_set(seed=1)))
    found = of.CosineMean().fit(train).score(test).numpy()
    np.testing.assert_allclose(found, naive(train, test), rtol=1e-4)


@pytest.mark.parametrize("cls", [of.CosineMean, of.PerClassGaussian])
def test_labels_need_not_be_consecutive(cls):
    train, test = make_set(), make_set(seed=1)
    apart = of.FeatureSet(train.features, labels=1000 * train.labels + 7)
    assert torch.equal(cls().fit(apart).score(test), cls().fit(train).score(test))


def test_a_mean_itself_and_its_opposite_and_nothing():
    train = of.FeatureSet([[1.0, 0.0], [0.0, 1.0]], labels=[0, 0])
    test = of.FeatureSet([[5.0, 5.0], [-1e-3, -1e-3], [0.0, 0.0], [1.0, -1.0]])
    np.testing.assert_allclose(of.CosineMean().fit(train).score(test).numpy(), [0, 2, 1, 1], atol=1e-7)


def test_rows_close_to_a_mean_keep_their_order():
    """A cosine in float32 would be 1 for all of them."""
    train = of.FeatureSet([[1.0, 0.0]], labels=[0])
    angles = np.array([1e-4, 2e-4, 4e-4])
    test = of.FeatureSet(np.stack([np.cos(angles), np.sin(angles)], 1))
    np.testing.assert_allclose(of.CosineMean().fit(train).score(test).numpy(), angles**2 / 2, rtol=1e-4)


def made(n=60, classes=3, width=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = 2 * np.eye(classes)[labels] + rng.standard_normal((n, classes))
    return of.FeatureSet(rng.standard_normal((n, width)) + labels[:, None], logits=logits, labels=labels)


def she_naive(train, test):
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
    np.testing.assert_allclose(of.SHE().fit(train).score(test).numpy(), she_naive(train, test), rtol=1e-5)


def test_a_class_that_is_never_right_and_one_without_rows():
    train, test = made(), made(seed=1)
    right = train.logits.argmax(1) == train.labels
    never = train[~((train.labels == 1) & right)]
    assert (never.labels == 1).any()
    np.testing.assert_allclose(of.SHE().fit(never).score(test).numpy(), she_naive(never, test), rtol=1e-5)
    without = train[train.labels != 2]
    scores = of.SHE().fit(without).score(test)
    np.testing.assert_allclose(scores.numpy(), she_naive(without, test), rtol=1e-5)
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
