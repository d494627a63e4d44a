"""KDE against sums over all pairs, piece by piece, and scipy's von Mises–Fisher density."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import vonmises_fisher
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors.distance import kde_nnguide_relation as bank


def unit(rows):
    rows = rows.double().numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("kappa", [1e-3, 100.0, 1e5])
@pytest.mark.parametrize("pieces", [4096, 50, 1])
def test_it_is_the_sum_over_all_pairs(kappa, pieces, monkeypatch):
    monkeypatch.setattr(bank, "BANK_ROWS", pieces)
    monkeypatch.setattr(of.KDE, "rows_at_once", 32)
    train, test = make_set(), make_set(50, seed=1)
    expected = -logsumexp(kappa * (unit(test.features) @ unit(train.features).T - 1), axis=1) + np.log(120)
    np.testing.assert_allclose(of.KDE(kappa).fit(train).score(test).numpy(), expected, rtol=1e-4, atol=kappa * 1e-7)


def test_it_is_minus_the_logarithm_of_a_density():
    train, test = make_set(40, width=3), make_set(10, width=3, seed=1)
    density = np.mean([vonmises_fisher(mean, 100).pdf(unit(test.features)) for mean in unit(train.features)], axis=0)
    gap = of.KDE().fit(train).score(test).numpy() + np.log(density)
    assert of.KDE().kappa == 100
    np.testing.assert_allclose(gap, gap[0], atol=1e-4)


def test_nothing_but_its_own_direction_scores_zero():
    train = of.FeatureSet([[3.0, 4.0], [30.0, 40.0]])
    far = of.FeatureSet([[0.3, 0.4], [-3.0, -4.0], [0.0, 0.0]])
    np.testing.assert_allclose(of.KDE(kappa=7.0).fit(train).score(far).numpy(), [0, 14, 7], atol=1e-6)


def test_far_rows_keep_their_order():
    """Their densities are 0 in float64."""
    train = of.FeatureSet([[1.0, 0.0]])
    angles = np.array([1.0, 2.0, 3.0])
    test = of.FeatureSet(np.stack([np.cos(angles), np.sin(angles)], 1))
    np.testing.assert_allclose(of.KDE(1e4).fit(train).score(test).numpy(), 1e4 * (1 - np.cos(angles)), rtol=1e-5)
