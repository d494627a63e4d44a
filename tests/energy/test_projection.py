"""Where points may live: lengths of 1, zero rows, and features of any magnitude."""

from __future__ import annotations

import pytest
import torch

import outfield as of
from outfield.energy import PROJECTIONS, identity, normalise, projection_for

sphere, relu_sphere = PROJECTIONS["sphere"], PROJECTIONS["relu_sphere"]
Z = torch.tensor([[3.0, -4.0], [0.0, 0.0], [-1.0, -2.0]])


def test_each_projection_is_its_formula():
    assert identity(Z) is Z
    torch.testing.assert_close(sphere(Z), torch.tensor([[0.6, -0.8], [0.0, 0.0], [-(5**-0.5), -2 * 5**-0.5]]))
    torch.testing.assert_close(relu_sphere(Z), torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    for project in PROJECTIONS.values():
        torch.testing.assert_close(project(project(Z)), project(Z))
        torch.testing.assert_close(project(Z.expand(2, 3, 2)), project(Z).expand(2, 3, 2))


def test_auto_looks_for_negative_entries():
    for z, expected in ((Z, "sphere"), (Z.abs(), "relu_sphere"), (torch.zeros(2, 2), "relu_sphere")):
        assert projection_for("auto", z) == expected
    for name in PROJECTIONS:
        assert projection_for(name, Z) == name
    with pytest.raises(of.UnknownNameError, match="'cube'; it must be one of auto, none, sphere, relu_sphere"):
        projection_for("cube", Z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_features_of_any_type_become_float32_rows_of_length_one(dtype):
    features = torch.tensor([[3.0, -4.0], [0.0, 0.0]], dtype=dtype)
    found = normalise(features)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[0.6, -0.8], [0.0, 0.0]]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e30, torch.float32), (1e-30, torch.float32), (1e300, torch.float64), (1e-300, torch.float64)]
)
def test_neither_large_nor_small_features_are_lost(scale, dtype):
    features = torch.tensor([[3.0, -4.0]], dtype=dtype) * scale
    torch.testing.assert_close(normalise(features), torch.tensor([[0.6, -0.8]]), rtol=1e-6, atol=0)
