"""Devices by name: those that compute, and a clear error for all others."""

import pytest
import torch

import outfield as of
from outfield.modes import resolve_device


@pytest.mark.parametrize("name", ["cpu", "cpu:0", "cpu:5", torch.device("cpu")])
def test_the_cpu_is_one_device(name):
    assert resolve_device(name) == torch.device("cpu")


def test_auto_is_a_device_that_computes():
    assert resolve_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize(
    "name", ["meta", "xla", "", "warp", "CPU", "cuda:99", "cuda:-1", "hpu", None, 5, torch.device("meta")]
)
def test_all_others_are_refused_by_name(name):
    with pytest.raises(of.InputError, match="device") as caught:
        of.SSD().to(name)
    assert repr(str(name) if isinstance(name, torch.device) else name) in str(caught.value)
    assert "cpu" in str(caught.value)
    assert "\n" not in str(caught.value)
