"""What is particular to one detector: its formula, its corner cases."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.samples import quick

import outfield as of
from outfield.detectors import base


def with_logits(logits):
    return of.FeatureSet(np.ones((len(logits), 2)), logits=logits, odin_logits=logits)


logits = st.lists(st.lists(st.floats(-50, 50), min_size=3, max_size=3), min_size=1, max_size=8).map(np.array)


@given(logits)
def test_msp_is_one_minus_the_largest_probability(values):
    expected = 1 - torch.softmax(torch.tensor(values), 1).amax(1)
    torch.testing.assert_close(
        of.MSP().fit(with_logits(values)).score(with_logits(values)).double(), expected, atol=1e-6, rtol=1e-5
    )


def test_msp_keeps_the_order_of_confident_rows():
    values = np.array([[60.0, 0, 0], [50.0, 0, 0], [40.0, 0, 0]])
    scores = of.MSP().fit(with_logits(values)).score(with_logits(values))
    assert 0 < scores[0] < scores[1] < scores[2]


@given(logits, st.sampled_from([1.0, 10.0, 1000.0]))
def test_odin_orders_rows_as_the_tempered_softmax_does(values, temperature):
    score = of.ODIN(temperature).fit(with_logits(values)).score(with_logits(values)).double()
    top = torch.softmax(torch.tensor(values) / temperature, 1).amax(1)
    expected = temperature * (-top.log() - np.log(3))
    torch.testing.assert_close(score, expected, atol=1e-4, rtol=1e-5)


def test_odin_resolves_small_differences_at_a_high_temperature():
    values = np.array([[10.0, 0, 0], [10.0 + 1e-4, 0, 0]])
    scores = of.ODIN().fit(with_logits(values)).score(with_logits(values))
    assert scores[1] < scores[0]


@given(logits, st.sampled_from([0.25, 1.0, 3.0, 1000.0]))
def test_energy_logits_is_minus_the_tempered_log_sum_exp(values, temperature):
    score = of.EnergyLogits(temperature).fit(with_logits(values)).score(with_logits(values)).double()
    expected = -temperature * torch.tensor(np.exp(values / temperature - 50 / temperature).sum(1)).log() - 50
    torch.testing.assert_close(score, expected, atol=1e-4, rtol=1e-5)


def test_temperatures_change_scores():
    """At T = 1 and T = 1000 the three detectors give these figures for l = (2, 0, 0), by hand."""
    data = with_logits(np.array([[2.0, 0.0, 0.0]]))
    e = np.exp
    for detector, expected in (
        (of.MSP(), 2 / (2 + e(2))),
        (of.ODIN(1.0), np.log((2 + e(2)) / 3) - 2),
        (of.ODIN(), 1000 * np.log((2 + e(2e-3)) / 3) - 2),
        (of.EnergyLogits(), -np.log(2 + e(2))),
        (of.EnergyLogits(1000.0), -1000 * np.log(2 + e(2e-3))),
    ):
        assert float(detector.fit(data).score(data)) == pytest.approx(expected, rel=1e-5)


def test_huge_logits_score_finite():
    values = np.array([[1e300, 0.0], [1.0, 0.0]])
    huge = of.FeatureSet(np.ones((2, 2)), logits=values, odin_logits=values)
    for name in ("MSP", "ODIN", "EnergyLogits"):
        scores = of.DETECTORS[name]().fit(huge).score(huge)
        assert torch.isfinite(scores).all()
        assert scores[0] <= scores[1]


def test_loading_needs_no_training_data(train_set, test_set, tmp_path):
    """In a fresh process, from the file alone."""
    for name in of.DETECTORS:
        quick(name).fit(train_set).save(tmp_path / f"{name}.safetensors")
    test_set.save(tmp_path / "test.safetensors")
    script = (
        "import sys, outfield as of, torch; torch.set_num_threads(1)\n"
        "test = of.FeatureSet.load(sys.argv[1] + '/test.safetensors')\n"
        "print(*[of.load(f'{sys.argv[1]}/{n}.safetensors').score(test).double().sum().item().hex() for n in of.DETECTORS])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == [
        quick(n).fit(train_set).score(test_set).double().sum().item().hex() for n in of.DETECTORS
    ]


def test_a_device_that_is_named_is_the_one(monkeypatch):
    real = base.resolve_device
    monkeypatch.setattr(
        base, "resolve_device", lambda device: torch.device("meta") if device == "auto" else real(device)
    )
    assert of.MSP().device.type == "meta"
    assert of.MSP().to("cpu").device.type == "cpu"
    assert of.MSP().to("cpu").to("auto").device.type == "meta"
