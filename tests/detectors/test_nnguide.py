"""NNGuide against a loop over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from tests.helpers.samples import make_set
from torch.nn import functional

import outfield as of
from outfield.detectors.distance import kde_nnguide_relation as bank
from outfield.energy import normalise
from outfield.files import Record, read_record, write_record


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
    header, tensors = read_record(tmp_path / "d.safetensors", "detector")

    def said(k=3, **more):
        changed = {**header, "settings": {"k": k}}
        write_record(tmp_path / "w.safetensors", "detector", Record(changed, {**tensors, **more}))
        with pytest.raises(of.FileFormatError) as error:
            of.load(tmp_path / "w.safetensors")
        return str(error.value)

    assert "k is 121, but bank has 120 rows" in said(k=121)
    assert "classes is 0; it must be at least 1" in said(classes=0 * tensors["classes"])
    assert "energies is" in said(energies=tensors["energies"][:50])
    changed = {**header, "settings": {"k": 120}}
    write_record(
        tmp_path / "w.safetensors", "detector", Record(changed, {**tensors, "classes": 0 * tensors["classes"] + 1})
    )
    of.load(tmp_path / "w.safetensors")


def brute_force(features, rows):
    z, b = (functional.normalize(one.double(), dim=1) for one in (normalise(features), rows))
    return z @ b.T


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
