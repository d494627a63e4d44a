"""Percentiles by counting are those of sorting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outfield.detectors.head.react_vra_dice import percentiles

WANTED = [0, 0.1, 10, 33.3, 50, 90, 99.9, 100]


def in_pieces(values, size):
    return lambda: (torch.as_tensor(values[i : i + size]) for i in range(0, len(values), size))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 3, 1000])
def test_against_numpy(dtype, n):
    rng = np.random.default_rng(n)
    values = (rng.normal(size=n) * 10.0 ** rng.integers(-3, 4, n)).astype(dtype)
    expected = np.percentile(values.astype(np.float64), WANTED)
    for size in (n // 3 + 1, 5000):
        np.testing.assert_allclose(percentiles(in_pieces(values, size), WANTED), expected, rtol=1e-12)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30), st.floats(0, 100))
def test_any_numbers(values, percent):
    expected = np.percentile(np.array(values), percent)
    (found,) = percentiles(in_pieces(torch.tensor(values, dtype=torch.float64), 11), [percent])
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-300 + 1e-12 * max(map(abs, values)))


def test_many_equal_numbers_and_zeros_of_either_sign():
    values = np.array([0.0] * 900 + [-0.0] * 50 + [1.0] * 49 + [5.0])
    assert percentiles(in_pieces(values, 64), [50, 97, 100]) == [0.0, 1.0, 5.0]
    assert percentiles(in_pieces(-values, 64), [0, 3, 50]) == [-5.0, pytest.approx(-1.0), 0.0]


def test_exact_where_numbers_differ_in_their_last_bit():
    values = 1 + np.arange(9) * np.finfo(np.float64).eps
    assert percentiles(in_pieces(values[::-1].copy(), 2), [0, 12.5, 50, 100]) == [*values[[0, 1, 4, 8]]]


def test_tensors_of_any_shape():
    values = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)
    assert percentiles(lambda: [values], [100, 50]) == [23.0, 11.5]
    assert percentiles(lambda: [values], []) == []
