"""NNGuide against a loop over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors import bank
from outfield.files import storage


def naive(train, test, k):
    def unit(rows):
        rows = rows.double().numpy()
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    energies, new = (logsumexp(one.logits.double().numpy(), axis=1) for one in (train, test))
    guided = unit(test.features) @ unit(train.features).T * energies
    return -new * np.sort(guided, axis=1)[:, -k:].mean(1)


@pytest.mark.parametrize("k", [1, 10, 120])
@pytest.mark.parametrize("pieces", [4096, 50, 7])
def test_it_is_the_loop_s(k, pieces, monkeypatch):
    monkeypatch.setattr(bank, "BANK_ROWS", pieces)
    monkeypatch.setattr(of.NNGuide, "rows_at_once", 32)
    train, test = make_set(), make_set(50, seed=1)
    np.testing.assert_allclose(of.NNGuide(k).fit(train).score(test).numpy(), naive(train, test, k), rtol=1e-5)


def test_energies_of_either_sign():
    """Where log-sums of training logits are below 0, the farthest of them guide most."""
    train, test = make_set(), make_set(50, seed=1)
    train = of.FeatureSet(train.features, logits=train.logits - 5)
    np.testing.assert_allclose(of.NNGuide().fit(train).score(test).numpy(), naive(train, test, 10), rtol=1e-5)


def test_how_many(tmp_path):
    assert of.NNGuide().k == 10
    assert of.NNGuide(120).fit(make_set()).energies_.dtype == torch.float64
    with pytest.raises(of.TooFewSamplesError, match="k is 121 but there are only 120"):
        of.NNGuide(121).fit(make_set())
    with pytest.raises(of.InputError, match=r"^k is 0"):
        of.NNGuide(0).fit(make_set())


def test_a_file_that_no_fit_gives(tmp_path):
    of.NNGuide(3).fit(make_set()).save(tmp_path / "d.safetensors")
    header, tensors = storage.read(tmp_path / "d.safetensors", "detector")

    def said(k=3, **more):
        changed = {**header, "settings": {"k": k}}
        storage.write(tmp_path / "w.safetensors", "detector", changed, {**tensors, **more})
        with pytest.raises(of.FileFormatError) as error:
            of.load(tmp_path / "w.safetensors")
        return str(error.value)

    assert "k is 121, but bank has 120 rows" in said(k=121)
    assert "classes is 0; it must be at least 1" in said(classes=0 * tensors["classes"])
    assert "energies is" in said(energies=tensors["energies"][:50])
    changed = {**header, "settings": {"k": 120}}
    storage.write(tmp_path / "w.safetensors", "detector", changed, {**tensors, "classes": 0 * tensors["classes"] + 1})
    of.load(tmp_path / "w.safetensors")
