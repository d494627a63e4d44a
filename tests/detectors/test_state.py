"""What a file says was learned is taken only as what it must be."""

from __future__ import annotations

import pytest
import torch

import outfield as of
from outfield.detectors.state import take

STATE = {
    "half": torch.ones(2, 3, dtype=torch.float16),
    "whole": torch.arange(4),
    "small": torch.arange(4, dtype=torch.int32),
    "nan": torch.tensor([1.0, float("nan")]),
    "empty": torch.ones(0, 3),
}


def test_what_is_right_is_given_in_its_type():
    assert take(STATE, "half", (2, 3)).dtype == torch.float32
    assert take(STATE, "half", (None, 3), torch.float64).dtype == torch.float64
    assert take(STATE, "half", (2, None)).tolist() == [[1.0] * 3] * 2
    assert torch.equal(take(STATE, "whole", (4,), torch.int64), torch.arange(4))


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "said"),
    [
        ("other", (2,), torch.float32, "other is missing"),
        (
            "half",
            (3, 3),
            torch.float32,
            r"half is torch.float16 of shape \(2, 3\); it must be torch.float32 of \(3, 3\)",
        ),
        ("half", (2,), torch.float32, r"of \(2\)"),
        ("half", (None, None, None), torch.float32, r"of \(any, any, any\)"),
        ("empty", (None, 3), torch.float32, r"of \(any, 3\)"),
        ("whole", (4,), torch.float32, "whole is torch.int64"),
        ("half", (2, 3), torch.int64, "half is torch.float16"),
        ("small", (4,), torch.int64, "small is torch.int32"),
        ("nan", (2,), torch.float32, "nan has entries that are not finite"),
    ],
)
def test_what_is_wrong_is_named(name, shape, dtype, said):
    with pytest.raises(of.FileFormatError, match=said):
        take(STATE, name, shape, dtype)
