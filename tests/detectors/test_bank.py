"""Cosines to kept rows: the same whether the directions of a bank are kept or made anew."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.samples import make_set, quick
from torch.nn import functional

from outfield.detectors import bank
from outfield.energy.projection import normalise


def brute_force(features, rows):
    z, b = (functional.normalize(one.double(), dim=1) for one in (normalise(features), rows))
    return z @ b.T


@pytest.mark.parametrize(("limit", "kept"), [(60, True), (59, False)])
def test_small_banks_keep_their_directions(monkeypatch, limit, kept):
    monkeypatch.setattr(bank, "BANK_ROWS", 4)
    monkeypatch.setattr(bank, "KEPT", limit)
    rows, features = torch.rand(10, 6), torch.rand(3, 6)
    for _ in range(2):
        found = [*bank.cosines(features, rows)]
        assert [(part.start, part.stop) for part, _ in found] == [(0, 4), (4, 8), (8, 10)]
        assert torch.allclose(torch.cat([table for _, table in found], 1), brute_force(features, rows), atol=1e-12)
    assert hasattr(rows, "outfield_directions") is kept


@pytest.mark.parametrize("name", ["KDE", "NNGuide", "Relation"])
def test_another_fit_forgets_the_directions_of_the_first(name):
    test, other = make_set(n=20, seed=1), make_set(n=50, seed=5)
    model = quick(name).fit(make_set(n=60))
    model.score(test)
    assert torch.equal(model.fit(other).score(test), quick(name).fit(other).score(test))


@pytest.mark.parametrize("name", ["Fused", "Auto"])
@pytest.mark.parametrize("rows", [1, 7, 50])
def test_an_explanation_adds_up_to_the_score(name, rows):
    model, test = quick(name).fit(make_set(n=200)), make_set(n=50, seed=1)[:rows]
    why = model.explain(test)
    assert torch.equal(why.total, model.score(test))
    for i, member in enumerate(model.members_):
        assert torch.equal(why.scores[:, i].float(), member.score(test))
    assert why.p_values.shape == (rows, len(why.members))
    assert why.members == model.names
