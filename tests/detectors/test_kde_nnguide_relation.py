"""KDE against sums over all pairs, piece by piece, and scipy's von Mises–Fisher density."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
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


def test_far_rows_keep_their_order():
    """Their densities are 0 in float64."""
    train = of.FeatureSet([[1.0, 0.0]])
    angles = np.array([1.0, 2.0, 3.0])
    test = of.FeatureSet(np.stack([np.cos(angles), np.sin(angles)], 1))
    np.testing.assert_allclose(of.KDE(1e4).fit(train).score(test).numpy(), 1e4 * (1 - np.cos(angles)), rtol=1e-5)


def naive(train, test, k):
    energies, new = (logsumexp(one.logits.double().numpy(), axis=1) for one in (train, test))
    guided = unit(test.features) @ unit(train.features).T * energies
    return -new * np.sort(guided, axis=1)[:, -k:].mean(1)


@pytest.mark.parametrize("k", [1, 10, 120])
@pytest.mark.parametrize("pieces", [4096, 50, 7])
def test_it_is_the_loop_s(k, pieces, monkeypatch):
    monkeypatch.setattr(bank, "BANK_ROWS", pieces)
    monkeypatch.setattr(of.NNGuide, "rows_at_once", 32)
    train, test = make_set(), make_set(50, seed=1)
    np.testing.assert_allclose(of.NNGuide(k).fit(train).score(test).numpy(), naive(train, test, k), rtol=1e-5)


def test_how_many(tmp_path):
    assert of.NNGuide().k == 10
    assert of.NNGuide(120).fit(make_set()).energies_.dtype == torch.float64
    with pytest.raises(of.TooFewSamplesError, match="k is 121 but there are only 120"):
        of.NNGuide(121).fit(make_set())
    with pytest.raises(of.InputError, match=r"^k is 0"):
        of.NNGuide(0).fit(make_set())


def signed(n, seed):
    """Rows whose cosines have either sign."""
    rng = np.random.default_rng(seed)
    return of.FeatureSet(rng.standard_normal((n, 3)), logits=2 * rng.standard_normal((n, 4)))


def relation_naive(train, test, threshold):
    scores = []
    for f, p in zip(test.features.numpy(), softmax(test.logits.numpy(), axis=1), strict=True):
        total = 0.0
        for g, q in zip(train.features.numpy(), softmax(train.logits.numpy(), axis=1), strict=True):
            related = max(f @ g / np.linalg.norm(f) / np.linalg.norm(g), 0) * (p @ q)
            total += related if related > threshold else 0.0
        scores.append(-total)
    return scores


@pytest.mark.parametrize("threshold", [1e-9, 0.03, 0.5, 1])
@pytest.mark.parametrize("pieces", [4096, 30])
def test_relation_it_is_the_loop_s(threshold, pieces, monkeypatch):
    monkeypatch.setattr(bank, "BANK_ROWS", pieces)
    monkeypatch.setattr(of.Relation, "rows_at_once", 16)
    train, test = signed(80, 0), signed(30, 1)
    found = of.Relation(threshold).fit(train).score(test).numpy()
    np.testing.assert_allclose(found, relation_naive(train, test, threshold), rtol=1e-5)


def test_the_default_threshold():
    assert of.Relation().threshold == 0.03
    for wrong in (0.0, 1.001):
        with pytest.raises(of.InputError, match=r"^threshold is .*at most 1"):
            of.Relation(wrong).fit(make_set())


def test_what_is_at_the_threshold_does_not_count():
    """Two rows of the same direction, each certain to be of one of two classes or of both alike: relations 1 and ½."""
    train = of.FeatureSet([[1.0, 0.0], [2.0, 0.0]], logits=[[5000.0, 0.0], [0.0, 0.0]])
    test = of.FeatureSet([[3.0, 0.0]], logits=[[5000.0, 0.0]])
    for threshold, expected in ((0.4999, -1.5), (0.5, -1.0), (0.9999, -1.0), (1.0, 0.0)):
        assert float(of.Relation(threshold).fit(train).score(test)) == expected
