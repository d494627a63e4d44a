"""KNN with an index of faiss: never nearer than the truth, mostly the truth, whatever offset the features share."""

from __future__ import annotations

import copy
import sys

import pytest
import torch

import outfield as of
from outfield.detectors.distance.neighbours import ApproximateNeighbours
from outfield.energy import normalise

kinds = pytest.mark.parametrize("kind", ["ivf", "hnsw"])


def rows(n, seed, by=0.0, width=24):
    source = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, width, generator=torch.Generator().manual_seed(99))
    chosen = torch.randint(12, (n,), generator=source)
    return centres[chosen] + 0.5 * torch.randn(n, width, generator=source) + by


def brute_force(z, bank, k):
    distances = torch.cdist(z.double(), bank.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return distances.sort(1).values[:, :k]


@kinds
@pytest.mark.parametrize("by", [0.0, 1e4])
def test_distances_are_those_of_rows_and_most_are_the_nearest(kind, by):
    bank, z = normalise(rows(2000, 0, by)), normalise(rows(200, 1, by))
    exact = brute_force(z, bank, 10)
    known = ApproximateNeighbours(bank, kind)
    found = known.distances(z, 10)[:, :10]
    assert bool((found >= exact - 1e-12).all())
    assert float((found <= exact[:, -1:]).double().mean()) > 0.9
    torch.testing.assert_close(known.kth_distance(z, 10), found[:, -1].float(), rtol=0, atol=0)


@pytest.mark.parametrize("spread", [1e-3, 1e-6])
def test_rounding_does_not_choose_the_row(spread):
    """Among rows that all but coincide float32 cannot say which is the k-th; the differences in float64 can."""
    centre = normalise(torch.randn(1, 24, generator=torch.Generator().manual_seed(3)))
    bank, z = (centre + spread * torch.randn(n, 24, generator=torch.Generator().manual_seed(n)) for n in (400, 60))
    z = torch.cat([z, z + 5])
    known = ApproximateNeighbours(bank, "ivf", probes=20)
    squares = (z[:, None].double() - bank.double()).square().sum(2).sort(1).values
    for k in (1, 7):
        torch.testing.assert_close(known.kth_distance(z, k), squares[:, k - 1].sqrt().float(), rtol=2e-7, atol=0)


@pytest.mark.parametrize(("kind", "all_of_them"), [("ivf", 44), ("hnsw", 2000)])
@pytest.mark.parametrize("by", [0.0, 1e4])
def test_looking_at_everything_is_exact(kind, all_of_them, by):
    train, test = of.FeatureSet(rows(2000, 0, by)), of.FeatureSet(rows(200, 1, by))
    detector = of.KNN(10, index=kind, probes=all_of_them).fit(train)
    expected = brute_force(normalise(test.features), normalise(train.features), 10)[:, -1].float()
    torch.testing.assert_close(detector.score(test), expected, rtol=2e-7, atol=0)
    assert detector.recall(test) == 1.0


def test_recall_is_the_share_of_the_nearest_rows_that_are_found():
    train, test = of.FeatureSet(rows(2000, 0)), of.FeatureSet(rows(4100, 1))
    detector = of.KNN(10, index="ivf", probes=1).fit(train)
    bank, z = normalise(train.features), normalise(test.features)
    limit = brute_force(z, bank, 10)[:, -1:] + 1e-9  # the tenth itself, rounded otherwise, counts
    expected = (detector._neighbours.distances(z, 10)[:, :10] <= limit).double().mean()
    assert detector.recall(test) == pytest.approx(float(expected), abs=1e-5)
    assert 0.2 < float(expected) < 0.99
    assert of.KNN(10).fit(train).recall(test) == 1.0
    with pytest.raises(of.NotFittedError):
        of.KNN(10, index="ivf").recall(test)


def test_a_point_with_too_few_rows_in_its_lists_is_compared_with_all():
    bank = normalise(torch.cat([rows(1990, 0), 50 + rows(10, 1)]))
    z = bank[-10:]
    known = ApproximateNeighbours(bank, "ivf", probes=1)
    assert bool(known.distances(z, 1900)[:, 1899].isinf().all())
    expected = brute_force(z, bank, 1900)[:, -1].float()
    torch.testing.assert_close(known.kth_distance(z, 1900), expected, rtol=2e-7, atol=0)


@kinds
def test_saved_loaded_and_copied(kind, tmp_path):
    train, test = of.FeatureSet(rows(500, 0)), of.FeatureSet(rows(100, 1))
    detector = of.KNN(5, index=kind, probes=500).fit(train)
    expected = detector.score(test)
    detector.save(tmp_path / "knn.safetensors")
    loaded = of.load(tmp_path / "knn.safetensors")
    assert (loaded.index, loaded.probes) == (kind, 500)
    assert torch.equal(loaded.score(test), expected)
    assert torch.equal(copy.deepcopy(detector).score(test), expected)
    assert repr(loaded) == f"KNN(k=5, on='features', index='{kind}', probes=500)"


def test_settings(monkeypatch):
    train = of.FeatureSet(rows(100, 0))
    assert (of.KNN().index, of.KNN().probes, of.KNN().k) == ("exact", 0, 50)
    with pytest.raises(of.InputError, match=r"index is 'flat'; it must be one of exact, ivf, hnsw"):
        of.KNN(index="flat").fit(train)
    with pytest.raises(of.InputError, match="probes"):
        of.KNN(index="ivf", probes=-1).fit(train)
    with pytest.raises(of.InputError, match=r"probes is 3, but an exact index"):
        of.KNN(probes=3).fit(train)
    monkeypatch.setitem(sys.modules, "faiss", None)
    of.KNN().fit(train)
    with pytest.raises(of.MissingExtraError, match=r"outfield\[faiss\]"):
        of.KNN(index="hnsw").fit(train)
