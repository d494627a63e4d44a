"""Relation against a loop over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors.distance import kde_nnguide_relation as bank
from outfield.files import Record, read_record, write_record


def signed(n, seed):
    """Rows whose cosines have either sign."""
    rng = np.random.default_rng(seed)
    return of.FeatureSet(rng.standard_normal((n, 3)), logits=2 * rng.standard_normal((n, 4)))


def naive(train, test, threshold):
    scores = []
    for f, p in zip(test.features.numpy(), softmax(test.logits.numpy(), axis=1), strict=True):
        total = 0.0
        for g, q in zip(train.features.numpy(), softmax(train.logits.numpy(), axis=1), strict=True):
            related = max(f @ g / np.linalg.norm(f) / np.linalg.norm(g), 0) * (p @ q)
            total += related if related > threshold else 0.0
        scores.append(-total)
    return scores


@pytest.mark.parametrize("threshold", [1e-9, 0.03, 0.5, 1])
@pytest.mark.parametrize("pieces", [4096, 30])
def test_it_is_the_loop_s(threshold, pieces, monkeypatch):
    monkeypatch.setattr(bank, "BANK_ROWS", pieces)
    monkeypatch.setattr(of.Relation, "rows_at_once", 16)
    train, test = signed(80, 0), signed(30, 1)
    found = of.Relation(threshold).fit(train).score(test).numpy()
    np.testing.assert_allclose(found, naive(train, test, threshold), rtol=1e-5)


def test_the_default_threshold():
    assert of.Relation().threshold == 0.03
    for wrong in (0.0, 1.001):
        with pytest.raises(of.InputError, match=r"^threshold is .*at most 1"):
            of.Relation(wrong).fit(make_set())


def test_what_is_at_the_threshold_does_not_count():
    """Two rows of the same direction, each certain to be of one of two classes or of both alike: relations 1 and ½."""
    train = of.FeatureSet([[1.0, 0.0], [2.0, 0.0]], logits=[[5000.0, 0.0], [0.0, 0.0]])
    test = of.FeatureSet([[3.0, 0.0]], logits=[[5000.0, 0.0]])
    for threshold, expected in ((0.4999, -1.5), (0.5, -1.0), (0.9999, -1.0), (1.0, 0.0)):
        assert float(of.Relation(threshold).fit(train).score(test)) == expected


def test_a_file_that_no_fit_gives(tmp_path):
    of.Relation().fit(make_set()).save(tmp_path / "d.safetensors")
    header, tensors = read_record(tmp_path / "d.safetensors", "detector")
    p = tensors["probabilities"]
    for wrong in (0.97 * p, 1.03 * p, p * torch.tensor([1.0, -1.0, 1.0]), p + torch.tensor([1.0, -1.0, 0.0])):
        write_record(tmp_path / "w.safetensors", "detector", Record(header, {**tensors, "probabilities": wrong}))
        with pytest.raises(of.FileFormatError, match="probabilities must be at least 0 and sum to 1"):
            of.load(tmp_path / "w.safetensors")
    write_record(tmp_path / "w.safetensors", "detector", Record(header, {**tensors, "probabilities": p[:50]}))
    with pytest.raises(of.FileFormatError, match="probabilities is"):
        of.load(tmp_path / "w.safetensors")
