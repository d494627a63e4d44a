"""RMDS against numpy's inverse covariances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of
from outfield.energy import normalise


def uneven(seed=0, by=0.0):
    """Classes of 100, 30 and 10 rows."""
    labels = np.repeat([0, 1, 2], [100, 30, 10])
    whole = make_set(n=300, seed=seed)
    picked = np.concatenate([np.flatnonzero(whole.labels.numpy() == c)[: (labels == c).sum()] for c in range(3)])
    return of.FeatureSet(whole.features[picked] + by, labels=labels)


def naive(train, test):
    z, new, y = (
        normalise(train.features).double().numpy(),
        normalise(test.features).double().numpy(),
        train.labels.numpy(),
    )
    means = np.stack([z[y == c].mean(0) for c in range(3)])
    within, around = z - means[y], z - z.mean(0)
    inside, outside = (np.linalg.inv(rows.T @ rows / len(z)) for rows in (within, around))
    near = [min((p - m) @ inside @ (p - m) for m in means) for p in new]
    return np.array(near) - [(p - z.mean(0)) @ outside @ (p - z.mean(0)) for p in new]


@pytest.mark.parametrize("by", [0.0, 30.0])
def test_it_is_the_difference_of_two_distances(by):
    train, test = uneven(by=by), uneven(seed=1, by=by)
    expected = naive(train, test)
    assert (expected < 0).any()
    np.testing.assert_allclose(of.RMDS().fit(train).score(test).numpy(), expected, rtol=2e-4, atol=2e-4)


def test_batch_after_batch():
    train, more, test = make_set(n=100), make_set(n=80, seed=3), make_set(n=50, seed=1)
    detector = of.RMDS().fit(train)
    first = detector.score(test)
    detector.partial_fit(more)
    whole = of.FeatureSet.join([train, more])
    torch.testing.assert_close(detector.score(test), of.RMDS().fit(whole).score(test), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(detector.score(test), first, rtol=1e-2)


def test_both_covariances_have_the_floor():
    train, test = make_set(), make_set(seed=1)
    assert of.RMDS().floor == 1e-6
    z, new, y = (
        normalise(train.features).double().numpy(),
        normalise(test.features).double().numpy(),
        train.labels.numpy(),
    )
    means = np.stack([z[y == c].mean(0) for c in range(3)])
    within, between = z - means[y], (means - z.mean(0))[y]

    def floored(covariance):
        values, vectors = np.linalg.eigh(covariance)
        return vectors @ np.diag(values.clip(0.3 * max(values.max(), 0.3 / 6))) @ vectors.T

    inside = floored(within.T @ within / len(z))
    outside = floored(inside + between.T @ between / len(z))
    near = [min((p - m) @ np.linalg.inv(inside) @ (p - m) for m in means) for p in new]
    expected = np.array(near) - [(p - z.mean(0)) @ np.linalg.inv(outside) @ (p - z.mean(0)) for p in new]
    np.testing.assert_allclose(of.RMDS(floor=0.3).fit(train).score(test).numpy(), expected, rtol=1e-4, atol=1e-5)
