"""The door for scores: what cannot be a vector of exact numbers is refused, never rounded or reinterpreted."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import outfield as of
from outfield.scores import as_scores, marked, rank

REFUSED = {
    "integers beyond 2^53": np.array([2**53 + 1, 1]),
    "negative ones": np.array([0, -(2**53) - 1]),
    "such a tensor": torch.tensor([2**53 + 1]),
    "unsigned": np.array([2**63 + 1], np.uint64),
    "python integers": [2**53 + 1, 3],
    "masked": np.ma.array([1.0, 2.0], mask=[False, True]),
    "complex": np.array([1 + 2j, 3]),
    "complex tensor": torch.tensor([1 + 2j]),
    "text": np.array(["1.0", "2.0"]),
    "texts": ["1.0", "2.0"],
    "bytes": b"12",
    "dates": np.array(["2024-01-01"], "datetime64[D]"),
    "durations": np.array([3], "timedelta64[s]"),
    "structured": np.array([(1.0, 2.0)], dtype=[("a", float), ("b", float)]),
    "objects": np.array([object()]),
    "nothing": None,
    "a number": 3.0,
    "a matrix": np.zeros((2, 2)),
    "empty": [],
    "ragged": [[1.0], [2.0, 3.0]],
    "sparse": torch.eye(3).to_sparse()[0],
    "NaN": [1.0, float("nan")],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_no_vector_of_numbers_is_refused_by_name(what):
    with pytest.raises(of.InputError, match="mine"):
        as_scores("mine", REFUSED[what])


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, ">f4", ">i8"])
def test_numbers_of_any_kind_are_taken_as_they_are(kind):
    values = np.array([3, 1, 2, 100], kind)
    np.testing.assert_array_equal(as_scores("mine", values), [3.0, 1.0, 2.0, 100.0])
    np.testing.assert_array_equal(as_scores("mine", values[::-1]), [100.0, 2.0, 1.0, 3.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32, torch.bool])
def test_tensors_of_any_kind(dtype):
    values = torch.tensor([0, 1, 1], dtype=dtype)
    np.testing.assert_array_equal(as_scores("mine", values), [0.0, 1.0, 1.0])
    np.testing.assert_array_equal(as_scores("mine", torch.ones(2, requires_grad=True)), [1.0, 1.0])


def test_the_largest_exact_integers_are_taken():
    assert as_scores("mine", [2**53, -(2**53)]).tolist() == [float(2**53), -float(2**53)]


@given(st.integers(1, 999_999), st.integers(1, 10**7))
def test_a_rank_is_that_of_the_share_as_written(millionths, n):
    assert rank(millionths / 10**6, n) == -(-Fraction(millionths, 10**6) * n // 1)


def test_scores_know_their_source_until_something_is_computed_from_them():
    scores = marked(torch.zeros(3), "SSD 12ab")
    found = [of.Threshold.fit(values, keep=0.5).source for values in (scores, scores + 1, [1.0, 2.0, 3.0])]
    assert found == ["SSD 12ab", None, None]
