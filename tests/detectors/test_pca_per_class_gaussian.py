"""PCA against scikit-learn's reconstruction error."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn import decomposition
from sklearn.covariance import ledoit_wolf
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors.distance.pca_per_class_gaussian import shrunk
from outfield.energy import priors
from outfield.features import normalise


def rows(data):
    return normalise(data.features).double().numpy()


@pytest.mark.parametrize("share", [0.3, 0.9, 0.95, 0.98])
@pytest.mark.parametrize("by", [0.0, 100.0])
def test_it_is_scikit_learn_s_error(share, by, monkeypatch):
    monkeypatch.setattr(priors, "PIECE_NUMBERS", 64)
    monkeypatch.setattr(priors, "PIECE_ROWS", 16)
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


def test_rows_that_do_not_vary():
    train = of.FeatureSet([[3.0, 4.0]] * 3)
    test = of.FeatureSet([[6.0, 8.0], [0.0, 0.0]])
    scores = of.PCA().fit(train).score(test).numpy()
    assert scores[0] == pytest.approx(0, abs=1e-7)
    assert np.isfinite(scores).all()


def uneven(sizes, seed=0, by=0.0):
    whole = make_set(n=600, seed=seed)
    picked = [np.flatnonzero(whole.labels.numpy() == c)[:size] for c, size in enumerate(sizes)]
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return of.FeatureSet(whole.features[np.concatenate(picked)] + by, labels=labels)


def naive(train, test, covariances=None):
    z, y, new = rows(train), train.labels.numpy(), rows(test)
    terms = []
    for c in np.unique(y):
        part = z[y == c]
        covariance = (covariances or {}).get(int(c))
        if covariance is None:
            covariance = ledoit_wolf(part)[0]
        terms.append(np.log(len(part) / len(z)) + multivariate_normal(part.mean(0), covariance).logpdf(new))
    return -logsumexp(terms, axis=0)


@pytest.mark.parametrize("by", [0.0, 30.0])
@pytest.mark.parametrize("sizes", [(150, 60, 30), (20, 9, 12)])
def test_it_is_the_density_with_scikit_learn_s_covariances(sizes, by):
    train, test = uneven(sizes, by=by), uneven((20, 20, 20), seed=1, by=by)
    found = of.PerClassGaussian().fit(train).score(test).numpy()
    np.testing.assert_allclose(found, naive(train, test), rtol=2e-5, atol=2e-4)


def test_shrinkage_is_between_one_nth_and_one():
    pair = torch.tensor([[2.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)  # Ledoit and Wolf see no noise in two rows
    np.testing.assert_allclose(shrunk(pair).numpy(), [[3.0, 0.0], [0.0, 1.0]])
    equal = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    np.testing.assert_allclose(shrunk(equal).numpy(), 0.5 * np.eye(2))


def test_a_class_of_one_row_has_the_mean_variance():
    train, test = uneven((100, 50, 1)), uneven((20, 20, 20), seed=1)
    z, y = rows(train), train.labels.numpy()
    mean_variance = sum((y == c).mean() * z[y == c].var(0).mean() for c in range(3))
    expected = naive(train, test, {2: mean_variance * np.eye(6)})
    np.testing.assert_allclose(of.PerClassGaussian().fit(train).score(test).numpy(), expected, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize(("size", "varies"), [(1e-6, False), (1e-2, True)])
def test_a_class_that_hardly_varies(size, varies):
    train, test = uneven((100, 50, 30)), uneven((20, 20, 20), seed=1)
    features = train.features.double()
    last = features[150:]
    features[150:] = last.mean(0) + size * (last - last.mean(0))
    train = of.FeatureSet(features, labels=train.labels)
    z, y = rows(train), train.labels.numpy()
    mean_variance = sum((y == c).mean() * z[y == c].var(0).mean() for c in range(3))
    expected = naive(train, test, None if varies else {2: mean_variance * np.eye(6)})
    np.testing.assert_allclose(of.PerClassGaussian().fit(train).score(test).numpy(), expected, rtol=1e-3, atol=2e-3)


def test_rows_that_do_not_vary_at_all():
    train = of.FeatureSet([[3.0, 4.0]] * 3, labels=[0, 0, 5])
    detector = of.PerClassGaussian().fit(train)
    near, far = detector.score(of.FeatureSet([[3.0, 4.0], [4.0, 3.0]])).tolist()
    constant = np.log(2 * np.pi * 1e-12)
    assert near == pytest.approx(constant, abs=1e-2)
    assert far == pytest.approx(constant + 0.5 * 0.08e12, rel=1e-5)
