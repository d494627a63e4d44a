"""PCA against scikit-learn's reconstruction error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import decomposition
from tests.helpers.samples import make_set

import outfield as of
from outfield.energy import moments, normalise


def rows(data):
    return normalise(data.features).double().numpy()


@pytest.mark.parametrize("share", [0.3, 0.9, 0.95, 0.98])
@pytest.mark.parametrize("by", [0.0, 100.0])
def test_it_is_scikit_learn_s_error(share, by, monkeypatch):
    monkeypatch.setattr(moments, "PIECE_NUMBERS", 64)
    monkeypatch.setattr(moments, "PIECE_ROWS", 16)
    train, test = (of.FeatureSet(make_set(seed=seed).features + by) for seed in (0, 1))
    peer = decomposition.PCA(n_components=share, svd_solver="full").fit(rows(train))
    z = rows(test)
    expected = np.linalg.norm(z - peer.inverse_transform(peer.transform(z)), axis=1)
    detector = of.PCA(share).fit(train)
    assert detector.outside_.shape == (6 - peer.n_components_, 6)
    np.testing.assert_allclose(detector.score(test).numpy(), expected, rtol=1e-4)


def test_the_default_share():
    assert of.PCA().share == 0.95
    for wrong in (0.0, 1.001):
        with pytest.raises(of.InputError, match=r"^share is .*at most 1"):
            of.PCA(wrong).fit(make_set())


def test_one_direction_at_least_is_outside(train_set, test_set):
    for share in (1, 1.0):
        assert of.PCA(share).fit(train_set).outside_.shape == (1, 6)
    alone = of.FeatureSet([[1.0], [-1.0], [1.0]])
    np.testing.assert_allclose(of.PCA().fit(alone).score(alone).numpy(), [2 / 3, 4 / 3, 2 / 3], rtol=1e-6)


def test_the_fewest_components_that_hold_the_share():
    """Variances 4, 3, 2, 1, 0: two components hold exactly 0.7 of them."""
    detector = of.PCA(0.7)
    values = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    assert detector._components(values) == 2
    assert of.PCA(0.701)._components(values) == 3
    assert of.PCA(0.4)._components(values) == 1
    assert of.PCA(0.95)._components(values) == 4
    assert of.PCA(1.0)._components(torch.tensor([-1e-20, 0.0, 1.0], dtype=torch.float64)) == 1


def test_rows_that_do_not_vary():
    train = of.FeatureSet([[3.0, 4.0]] * 3)
    test = of.FeatureSet([[6.0, 8.0], [0.0, 0.0]])
    scores = of.PCA().fit(train).score(test).numpy()
    assert scores[0] == pytest.approx(0, abs=1e-7)
    assert np.isfinite(scores).all()
