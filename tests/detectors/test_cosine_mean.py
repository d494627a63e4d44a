"""Means by class, whatever the pieces; and CosineMean, which is made of them, against a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors.distance.cosine_mean_she import ClassSums

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [1, 7, 100])
def test_pieces_are_the_whole(size):
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((100, 3)) + 1e6, rng.choice([0, 4, 5, 2**40], 100)
    sums = ClassSums(3, CPU)
    for start in range(0, 100, size):
        sums.add(torch.tensor(rows[start : start + size]), torch.tensor(labels[start : start + size]))
    sums.add(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    classes, means = sums.means()
    assert classes.tolist() == [0, 4, 5, 2**40]
    np.testing.assert_allclose(means.numpy(), [rows[labels == c].mean(0) for c in (0, 4, 5, 2**40)], rtol=1e-14)


def test_float32_rows_are_added_in_float64():
    sums = ClassSums(1, CPU)
    for value in (1.0, *[2.0**-30] * 8):
        sums.add(torch.tensor([[value]], dtype=torch.float32), torch.tensor([3]))
    assert float(sums.means()[1]) == (1 + 8 * 2.0**-30) / 9


def naive(train, test):
    unit = lambda v: v / np.linalg.norm(v)  # noqa: E731
    z, y = train.features.double().numpy(), train.labels.numpy()
    means = [unit(np.mean([unit(row) for row in z[y == c]], axis=0)) for c in np.unique(y)]
    return [1 - max(float(unit(row) @ mean) for mean in means) for row in test.features.double().numpy()]


@pytest.mark.parametrize("pieces", [4096, 13])
@pytest.mark.parametrize("by", [0.0, 100.0])
def test_cosine_mean_is_the_loop_s(pieces, by, monkeypatch):
    monkeypatch.setattr(of.CosineMean, "rows_at_once", pieces)
    train, test = (
        of.FeatureSet(one.features.double() + by, labels=one.labels) for one in (make_set(), make_set(seed=1))
    )
    found = of.CosineMean().fit(train).score(test).numpy()
    np.testing.assert_allclose(found, naive(train, test), rtol=1e-4)


def test_labels_need_not_be_consecutive():
    train, test = make_set(), make_set(seed=1)
    apart = of.FeatureSet(train.features, labels=1000 * train.labels + 7)
    assert of.CosineMean().fit(apart).directions_.shape == (3, 6)
    assert torch.equal(of.CosineMean().fit(apart).score(test), of.CosineMean().fit(train).score(test))


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
