"""Thresholds keep what they promise, agree with their p-values, and say how they were chosen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import outfield as of


@given(st.integers(19, 400), st.sampled_from([0.5, 0.9, 0.95]), st.integers(0, 10**6))
def test_decision_and_p_value_are_one_rule(n, keep, seed):
    rng = np.random.default_rng(seed)
    held_out = rng.integers(0, 30, n).astype(float) if seed % 2 else rng.standard_normal(n)
    threshold = of.Threshold.fit(held_out, keep=keep)
    new = np.r_[held_out, rng.standard_normal(50) * 10, threshold.value]
    assert torch.equal(threshold.is_ood(new), threshold.p_value(new) <= threshold.p_limit)
    assert 1 - keep - 1 / (n + 1) - 1e-12 < threshold.p_limit <= 1 - keep + 1e-12
    assert float((~threshold.is_ood(held_out)).float().mean()) >= keep - 1e-9


def test_new_id_samples_are_kept_as_promised():
    rng = np.random.default_rng(0)
    kept = [
        1 - of.Threshold.fit(rng.standard_normal(99), keep=0.9).is_ood(rng.standard_normal(99)).float().mean()
        for _ in range(2000)
    ]
    assert float(np.mean(kept)) == pytest.approx(0.9, abs=0.004)


def test_p_values_of_id_samples_are_uniform():
    rng = np.random.default_rng(0)
    p = of.Threshold.fit(rng.standard_normal(20_000)).p_value(rng.standard_normal(20_000)).numpy()
    assert np.abs(np.quantile(p, np.linspace(0.1, 0.9, 9)) - np.linspace(0.1, 0.9, 9)).max() < 0.02
    assert p.min() > 0


def test_the_interval_covers():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(500):
        threshold = of.Threshold.fit(rng.uniform(size=100))
        low, high = threshold.kept_interval(0.9)
        inside += low <= threshold.value <= high  # for uniform scores the kept share is the threshold itself
    assert inside / 500 == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize(("n", "keep"), [(18, 0.95), (98, 0.99), (1, 0.95)])
def test_too_few_samples_are_refused(n, keep):
    with pytest.raises(of.TooFewSamplesError, match=f"at least {19 if keep == 0.95 else 99}"):
        of.Threshold.fit(np.arange(n), keep=keep)
    of.Threshold.fit(np.arange(19 if keep == 0.95 else 99), keep=keep)


@pytest.mark.parametrize("keep", [0, 1, -1, 95])
def test_keep_is_a_share(keep):
    with pytest.raises(of.InputError, match="keep"):
        of.Threshold.fit(np.arange(100), keep=keep)


def test_bad_scores_are_refused():
    for bad in ([1.0, float("nan")] * 30, [float("inf")] * 30):
        with pytest.raises(of.InputError, match="held_out"):
            of.Threshold.fit(bad)
    with pytest.raises(of.InputError, match="scores"):
        of.Threshold.fit(np.arange(100)).is_ood([float("nan")])


def test_confidence_is_a_share():
    with pytest.raises(of.InputError, match="confidence"):
        of.Threshold.fit(np.arange(100)).kept_interval(2.0)


def test_saved_with_how_it_was_chosen(tmp_path):
    threshold = of.Threshold.fit(np.random.default_rng(0).standard_normal(321), keep=0.9, source="SSD 12ab")
    threshold.save(tmp_path / "t.safetensors")
    loaded = of.Threshold.load(tmp_path / "t.safetensors")
    assert (loaded.value, loaded.keep, len(loaded.reference)) == (threshold.value, 0.9, 321)
    assert "0.9" in repr(loaded)
    assert "321" in repr(loaded)
    assert loaded.source == "SSD 12ab"
    new = np.linspace(-3, 3, 50)
    assert torch.equal(loaded.p_value(new), threshold.p_value(new))
