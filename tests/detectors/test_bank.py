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


def weighted(features, rows, weights, k):
    return (brute_force(features, rows) * weights).sort(1, descending=True).values[:, :k]


class TestLargestWeighted:
    """The k largest of all, however they are found."""

    rows = normalise(torch.randn(300, 16, generator=torch.Generator().manual_seed(0)))
    features = 9 * torch.randn(20, 16, generator=torch.Generator().manual_seed(1))
    weights = torch.linspace(-2, 5, 300, dtype=torch.float64)

    def looked_at(self, monkeypatch):
        """How many rows of features were compared with all rows in float64."""
        seen = []
        whole = bank._largest_of_all
        monkeypatch.setattr(
            bank, "_largest_of_all", lambda features, *rest: seen.append(len(features)) or whole(features, *rest)
        )
        return seen

    @pytest.mark.parametrize("k", [1, 10, 289, 290, 300])
    @pytest.mark.parametrize(("pieces", "table"), [(4096, 2**24), (7, 1), (7, 20 * 50), (100, 1)])
    def test_they_are_those_of_float64(self, k, pieces, table, monkeypatch):
        monkeypatch.setattr(bank, "BANK_ROWS", pieces)
        monkeypatch.setattr(bank, "TABLE", table)
        monkeypatch.setattr(bank, "NUMBERS", 2 * 24 * 16)
        seen = self.looked_at(monkeypatch)
        found = bank.largest_weighted(self.features, self.rows, self.weights, k)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, weighted(self.features, self.rows, self.weights, k), rtol=1e-13, atol=1e-14)
        assert sum(seen) == (20 if k + bank.SPARE >= 300 else 0)

    def test_where_rounding_might_decide_all_are_looked_at(self, monkeypatch):
        same = self.rows.clone()
        same[:40] = normalise(self.features[:1])  # more than can be told apart
        ones = torch.ones(300, dtype=torch.float64)
        seen = self.looked_at(monkeypatch)
        found = bank.largest_weighted(self.features, same, ones, 10)
        assert seen == [1]
        torch.testing.assert_close(found, weighted(self.features, same, ones, 10), rtol=1e-13, atol=1e-14)
        assert torch.equal(found[0], found[0, :1].expand(10))

    def test_how_far_rounding_reaches(self, monkeypatch):
        """Two rows apart by less than 2 · 2 (D + 8) u are not told apart, and by more they are."""
        reach = 4 * (16 + 8) * 2.0**-24
        for share, expected in ((0.9, [1]), (1.1, [])):
            z = torch.zeros(1, 16)
            z[0, 0] = 1.0
            weights = torch.zeros(300, dtype=torch.float64)
            weights[0], weights[1:100] = 1.0, 1.0 - share * reach
            rows = z.repeat(300, 1)
            seen = self.looked_at(monkeypatch)
            found = bank.largest_weighted(z, rows, weights, 1)
            assert (seen, float(found)) == (expected, 1.0)

    def test_weights_that_float32_cannot_hold(self, monkeypatch):
        seen = self.looked_at(monkeypatch)
        weights = 1e300 * self.weights
        found = bank.largest_weighted(self.features, self.rows, weights, 3)
        assert seen == [20]
        torch.testing.assert_close(found, weighted(self.features, self.rows, weights, 3), rtol=1e-13, atol=1e-14)

    def test_products_that_the_process_lets_round(self, monkeypatch):
        monkeypatch.setattr(bank, "rounded_products", lambda device: True)
        seen = self.looked_at(monkeypatch)
        bank.largest_weighted(self.features, self.rows, self.weights, 3)
        assert seen == [20]
