"""The power transform against scikit-learn's and against the formula written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.preprocessing import PowerTransformer

from outfield.detectors.power import FARTHEST, GOLDEN, STEPS, best_powers, powered


def naive(x, power):
    if x >= 0:
        return math.log(1 + x) if power == 0 else ((1 + x) ** power - 1) / power
    return -math.log(1 - x) if power == 2 else -((1 - x) ** (2 - power) - 1) / (2 - power)


@pytest.mark.parametrize("power", [-3.0, 0.0, 0.5, 1.0, 2.0, 2.5])
def test_the_formula(power):
    x = [-5.0, -0.3, 0.0, 0.7, 40.0]
    found = powered(torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor([power], dtype=torch.float64))
    assert found[:, 0].tolist() == pytest.approx([naive(one, power) for one in x], rel=1e-12)


def test_one_changes_nothing_and_columns_have_their_own():
    x = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = powered(x, torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(found[:, [0, 2]], x[:, [0, 2]])
    assert not torch.allclose(found[:, 1], x[:, 1])


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


def test_a_column_of_equal_numbers_is_left_alone():
    x = torch.zeros(10, 2, dtype=torch.float64)
    x[:, 1] = torch.arange(10)
    powers = best_powers(x)
    assert powers[0] == 1
    assert powers[1] != 1


def test_powers_stay_within_their_limits():
    assert FARTHEST == 10
    x = torch.zeros(100, 2, dtype=torch.float64)
    x[0] = torch.tensor([9.9, -9.9])  # all but one are equal: no power is too far
    x = (x - x.mean(0)) / x.std(0, correction=0)
    found = best_powers(x)
    assert found.tolist() == pytest.approx([-10, 10], abs=1e-6)


def test_the_search_ends_where_float32_sees_no_difference():
    width = 2 * FARTHEST * GOLDEN**STEPS
    assert width == pytest.approx(8e-9, rel=0.05)
