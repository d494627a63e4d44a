"""CombOOD against the same steps with scikit-learn and a loop over rows."""

import math

import numpy as np
import pytest
import torch
from sklearn.preprocessing import PowerTransformer, StandardScaler
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors.distance.combood import best_powers, powered

TRAIN, TEST = make_set(150, seed=1), make_set(40, seed=3, shift=0.5)


def unit(features):
    rows = features.double().numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def naive(train, test, k):
    """√D log of the squared distance to the k-th neighbour plus the squared Mahalanobis distance, one row at a time."""
    known, rows = unit(train.features), unit(test.features)
    scaler, power = StandardScaler(), PowerTransformer()
    x = power.fit_transform(scaler.fit_transform(known))
    precision = np.linalg.inv(np.cov(x, rowvar=False) + np.identity(x.shape[1]))
    seen = power.transform(scaler.transform(rows))
    found = []
    for row, transformed in zip(rows, seen, strict=True):
        square = sorted(((known - row) ** 2).sum(1))[k - 1]
        found.append(math.sqrt(len(row)) * math.log(square) + transformed @ precision @ transformed)
    return np.array(found)


@pytest.mark.parametrize("k", [1, 7, 50])
def test_the_naive_computation(k):
    found = of.CombOOD(k=k).fit(TRAIN).score(TEST).numpy()
    assert np.allclose(found, naive(TRAIN, TEST, k), rtol=5e-3, atol=5e-3)


def test_a_training_row_has_a_finite_score():
    found = of.CombOOD(k=1).fit(TRAIN).score(TRAIN)
    expected = math.sqrt(6) * math.log(1e-12)
    assert bool((found >= expected).all())
    far = of.CombOOD(k=2).fit(TRAIN).score(TRAIN)
    assert bool((far > found).all())
    assert float(found.min()) < expected + 20


def test_constant_columns_count_nothing():
    constant = of.FeatureSet(torch.ones(30, 3))
    detector = of.CombOOD(k=1).fit(constant)
    assert detector.powers_.tolist() == [1, 1, 1]
    assert detector.scale_.tolist() == [1, 1, 1]
    assert torch.allclose(detector.score(constant), torch.tensor(math.sqrt(3) * math.log(1e-12)))
    torch.testing.assert_close(detector.whitening_, torch.eye(3, dtype=torch.float64))


def test_huge_values_stay_finite():
    narrow = torch.ones(40, 2, dtype=torch.float64)
    narrow[:, 0] += 1e-6 * torch.arange(40)
    scores = of.CombOOD(k=1).fit(of.FeatureSet(narrow)).score(of.FeatureSet(torch.tensor([[-1.0, 0.0], [0.0, 1.0]])))
    assert bool(torch.isfinite(scores).all())


def test_too_few_rows():
    for n, k in ((4, 5), (1, 1)):
        with pytest.raises(of.TooFewSamplesError, match=f"k is {k} but there are only {n} training samples"):
            of.CombOOD(k=k).fit(TRAIN[:n])
    of.CombOOD(k=5).fit(TRAIN[:5])
    of.CombOOD(k=1).fit(TRAIN[:2])


def test_powers_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=300), rng.exponential(size=300), -rng.exponential(size=300), rng.uniform(size=300)]
    columns += [rng.lognormal(sigma=0.5 + i / 40, size=300) for i in range(36)]  # more than are looked at together
    x = np.stack(columns, 1)
    x = (x - x.mean(0)) / x.std(0)
    theirs = PowerTransformer(standardize=False).fit(x)
    ours = best_powers(torch.from_numpy(x))
    assert np.allclose(ours.numpy(), theirs.lambdas_, atol=1e-3)
    assert np.allclose(powered(torch.from_numpy(x), ours).numpy(), theirs.transform(x), atol=1e-3)
