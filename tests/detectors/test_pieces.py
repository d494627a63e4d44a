"""Detectors that need not hold all data read a file in pieces, and never the whole of it."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of

NAMES = ["MaxLogit", "Entropy", "GEN", "TempScale", "KLMatching", "OpenMax", "RMDS", "CosineMean", "KDE", "PCA"]
NAMES += ["SHE", "NNGuide", "Relation"]


@pytest.mark.parametrize("name", NAMES)
def test_no_fit_asks_for_the_whole(name, tmp_path, monkeypatch):
    make_set().save(tmp_path / "train.npz")
    expected = quick(name).fit(make_set()).score(make_set(seed=1))

    def refuse(self):
        raise AssertionError("the whole was asked for")

    monkeypatch.setattr(of.FeatureStream, "in_memory", refuse)
    streamed = quick(name).fit(of.open_features(tmp_path / "train.npz"))
    torch.testing.assert_close(streamed.score(make_set(seed=1)), expected)
