"""Some rows of a source, whatever it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import outfield as of
from outfield.features.part import Part


def a_set(n=23):
    rng = np.random.default_rng(0)
    return of.FeatureSet(
        rng.random((n, 3)), labels=np.arange(n) % 4, head_weight=np.ones((4, 3)), about={"views": "flip"}
    )


@pytest.mark.parametrize("streamed", [False, True])
def test_it_is_those_rows(streamed, tmp_path):
    data = a_set()
    data.save(tmp_path / "f.npz")
    source = of.open_features(tmp_path / "f.npz") if streamed else data
    rng = np.random.default_rng(1)
    for chosen in (rng.random(23) < 0.4, np.arange(23) == 22, np.arange(23) < 23, np.arange(23) < 5):
        part, expected = Part(source, torch.from_numpy(chosen)), data[chosen]
        assert len(part) == chosen.sum()
        assert part.shapes == expected.shapes
        assert part.about == {"views": "flip"}
        assert part.picks_rows
        assert torch.equal(part.constant("head_weight"), data.head_weight)
        assert all(torch.equal(value, expected.tensors()[name]) for name, value in part.in_memory().tensors().items())
        for size in (1, 4, 5, 100):
            pieces = list(part.batches(size))
            assert [len(piece["labels"]) for piece in pieces[:-1]] == [size] * (len(pieces) - 1)
            assert torch.equal(torch.cat([piece["features"] for piece in pieces]), expected.features)
            assert pieces[0].keys() == {"features", "labels"}
        last = len(part) - 1
        assert torch.equal(part.rows([last, 0], ["features"])["features"], expected.features[[last, 0]])
        with pytest.raises(of.InputError, match="rows go from"):
            part.rows([last + 1])


def test_what_is_no_choice():
    for bad in (torch.ones(22, dtype=torch.bool), torch.ones(23), torch.ones(23, 1, dtype=torch.bool)):
        with pytest.raises(of.InputError, match="chosen by 23 bools"):
            Part(a_set(), bad)
    with pytest.raises(of.InputError, match="no row is chosen"):
        Part(a_set(), torch.zeros(23, dtype=torch.bool))
    with pytest.raises(of.InputError, match="size is 0"):
        Part(a_set(), torch.ones(23, dtype=torch.bool)).batches(0)
