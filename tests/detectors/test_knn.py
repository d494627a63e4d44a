"""KNN is exact: what all differences in float64 give, to the last bit of a float32, with faiss and without."""

import copy
import pickle
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors import Neighbours
from outfield.detectors.distance import knn, neighbours
from outfield.detectors.distance.neighbours import ApproximateNeighbours
from outfield.features import normalise

EPS = torch.finfo(torch.float32).eps


def rows(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def classes(n, d, spread, seed=0):
    centres = rows(5, d, 99)
    return normalise(centres[torch.arange(n) % 5] + spread * rows(n, d, seed))


def smallest(z, bank, k):
    distances = torch.cdist(z.double(), bank.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return distances.sort(1).values[:, :k]


def brute_force(z, bank, k):
    return smallest(z, bank, k)[:, -1].float()


def offset(by):
    return normalise(rows(300, 64) + by), torch.cat([normalise(rows(60, 64, 1) + by), normalise(rows(20, 64, 2))])


REGIMES = {
    "plain": lambda: offset(0),
    "offset 1e2": lambda: offset(1e2),
    "offset 1e4": lambda: offset(1e4),
    "offset 1e6": lambda: offset(1e6),
    "tight classes": lambda: (classes(300, 64, 1e-3), classes(60, 64, 1e-3, 1)),
    "collapsed classes": lambda: (classes(300, 64, 1e-6), classes(60, 64, 1e-6, 1)),
    "every row thirty times": lambda: (normalise(rows(10, 16)).repeat(30, 1), normalise(rows(40, 16, 1))),
    "one row only, again and again": lambda: (normalise(rows(1, 16)).repeat(300, 1), normalise(rows(40, 16))),
    "rows that are training rows": lambda: (classes(300, 64, 1e-5), classes(300, 64, 1e-5)),
    "one dimension": lambda: (normalise(rows(300, 1)), normalise(rows(40, 1, 1))),
    "a grid with ties": lambda: (rows(300, 3).round(), rows(40, 3, 1).round()),
    "zeros": lambda: (torch.cat([torch.zeros(30, 8), normalise(rows(270, 8))]), torch.zeros(3, 8)),
    "hardly apart": lambda: (
        torch.cat([torch.ones(300, 1), 1e-30 * rows(300, 4)], 1),
        torch.cat([torch.ones(40, 1), 1e-30 * rows(40, 4, 1)], 1),
    ),
    "a shell": lambda: (
        normalise(torch.eye(300) + 3e-6 * rows(300, 300)),
        normalise(1 + 0.1 * rows(40, 300, 1).round()),
    ),
    "an outlier": lambda: (torch.cat([-normalise(rows(1, 64) + 1e3), offset(1e3)[0][1:]]), offset(1e3)[1]),
}
regimes = pytest.mark.parametrize("make", REGIMES.values(), ids=REGIMES.keys())


@pytest.fixture(params=["faiss", "torch"])
def with_faiss(request, monkeypatch):
    if request.param == "faiss":
        pytest.importorskip("faiss")
    monkeypatch.setattr(knn, "_has_faiss", lambda: request.param == "faiss")
    return request.param == "faiss"


@regimes
def test_the_distance_is_brute_force_in_float64(make, with_faiss):
    bank, z = make()
    for k in (1, 2, 50, 299, 300):
        found = Neighbours(bank, faiss=with_faiss).kth_distance(z, k)
        torch.testing.assert_close(found, brute_force(z, bank, k), rtol=EPS, atol=0)


@regimes
def test_a_training_row_scores_zero_at_k_one(make, with_faiss):
    train = of.FeatureSet(make()[0])
    assert float(of.KNN(1).fit(train).score(train).max()) == 0


def test_the_fast_way_is_sure_of_features_as_they_come():
    """On rows without many ties nothing slower is ever asked: no float64 product, no table of differences."""
    for bank, z in (offset(0), offset(1e4), (classes(300, 64, 0.3), classes(60, 64, 0.3, 1))):
        assert bool(Neighbours(bank)._kth_square(z, 50, torch.float32)[1].all())


@settings(max_examples=50)
@given(
    n=st.integers(1, 60), m=st.integers(1, 30), d=st.integers(1, 8), k=st.integers(1, 60), seed=st.integers(0, 99),
    at_once=st.sampled_from([1, 7, 64]), by=st.sampled_from([0.0, 3.0, 1e5]), digits=st.sampled_from([0, 1, 8]),
)  # fmt: skip
def test_pieces_of_the_bank_do_not_show(n, m, d, k, seed, at_once, by, digits):
    bank, z = (normalise(rows(size, d, seed + size).round(decimals=digits) + by) for size in (n, m))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "BANK_ROWS", at_once)
        patch.setattr(neighbours, "TABLE_BYTES", {"cpu": 256})
        patch.setattr(neighbours, "NUMBERS_AT_ONCE", 16)
        patch.setattr(neighbours, "SPARE", 3)
        found = Neighbours(bank).kth_distance(z, min(k, n))
    torch.testing.assert_close(found, brute_force(z, bank, min(k, n)), rtol=EPS, atol=0)


def test_reduced_products_do_not_show(monkeypatch):
    for make in REGIMES.values():
        bank, z = make()
        expected = Neighbours(bank).kth_distance(z, 7)
        before = torch.get_float32_matmul_precision()
        try:
            torch.set_float32_matmul_precision("medium")
            assert torch.equal(Neighbours(bank).kth_distance(z, 7), expected)
        finally:
            torch.set_float32_matmul_precision(before)


def test_both_ways_agree_to_the_bit():
    pytest.importorskip("faiss")
    for make in REGIMES.values():
        bank, z = make()
        assert torch.equal(Neighbours(bank, faiss=True).kth_distance(z, 7), Neighbours(bank).kth_distance(z, 7))


def test_it_works_where_faiss_is_not_installed(monkeypatch, train_set, test_set):
    expected = of.KNN(5).fit(train_set).score(test_set)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert torch.equal(of.KNN(5).fit(train_set).score(test_set), expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_a_copy_scores_the_same(with_faiss, copied, train_set, test_set):
    detector = of.KNN(5).fit(train_set)
    expected = detector.score(test_set)
    assert torch.equal(copied(detector).score(test_set), expected)


def test_more_neighbours_than_samples(train_set):
    with pytest.raises(of.TooFewSamplesError, match="only 120"):
        of.KNN(121).fit(train_set)


def test_a_k_above_the_smallest_class_warns():
    train = make_set(n=120)
    with pytest.warns(of.OutfieldWarning, match=r"smallest class \(40 samples\)"):
        of.KNN(41).fit(train)
    of.KNN(40).fit(train)
    of.KNN(41).fit(of.FeatureSet(train.features))


kinds = pytest.mark.parametrize("kind", ["ivf", "hnsw"])


def clustered_rows(n, seed, by=0.0, width=24):
    source = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, width, generator=torch.Generator().manual_seed(99))
    chosen = torch.randint(12, (n,), generator=source)
    return centres[chosen] + 0.5 * torch.randn(n, width, generator=source) + by


@kinds
@pytest.mark.parametrize("by", [0.0, 1e4])
def test_distances_are_those_of_rows_and_most_are_the_nearest(kind, by):
    bank, z = normalise(clustered_rows(2000, 0, by)), normalise(clustered_rows(200, 1, by))
    exact = smallest(z, bank, 10)
    known = ApproximateNeighbours(bank, kind)
    found = known.distances(z, 10)[:, :10]
    assert bool((found >= exact - 1e-12).all())
    assert float((found <= exact[:, -1:]).double().mean()) > 0.9
    torch.testing.assert_close(known.kth_distance(z, 10), found[:, -1].float(), rtol=0, atol=0)


@pytest.mark.parametrize("spread", [1e-3, 1e-6])
def test_rounding_does_not_choose_the_row(spread):
    """Among clustered_rows that all but coincide float32 cannot say which is the k-th; the differences in float64 can."""
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
    train, test = of.FeatureSet(clustered_rows(2000, 0, by)), of.FeatureSet(clustered_rows(200, 1, by))
    detector = of.KNN(10, index=kind, probes=all_of_them).fit(train)
    expected = brute_force(normalise(test.features), normalise(train.features), 10)
    torch.testing.assert_close(detector.score(test), expected, rtol=2e-7, atol=0)
    assert detector.recall(test) == 1.0


def test_recall_is_the_share_of_the_nearest_rows_that_are_found():
    train, test = of.FeatureSet(clustered_rows(2000, 0)), of.FeatureSet(clustered_rows(4100, 1))
    detector = of.KNN(10, index="ivf", probes=1).fit(train)
    bank, z = normalise(train.features), normalise(test.features)
    limit = smallest(z, bank, 10)[:, -1:] + 1e-9  # the tenth itself, rounded otherwise, counts
    expected = (detector._neighbours.distances(z, 10)[:, :10] <= limit).double().mean()
    assert detector.recall(test) == pytest.approx(float(expected), abs=1e-5)
    assert 0.2 < float(expected) < 0.99
    assert of.KNN(10).fit(train).recall(test) == 1.0
    with pytest.raises(of.NotFittedError):
        of.KNN(10, index="ivf").recall(test)


def test_a_point_with_too_few_rows_in_its_lists_is_compared_with_all():
    bank = normalise(torch.cat([clustered_rows(1990, 0), 50 + clustered_rows(10, 1)]))
    z = bank[-10:]
    known = ApproximateNeighbours(bank, "ivf", probes=1)
    assert bool(known.distances(z, 1900)[:, 1899].isinf().all())
    expected = brute_force(z, bank, 1900)
    torch.testing.assert_close(known.kth_distance(z, 1900), expected, rtol=2e-7, atol=0)


def test_settings(monkeypatch):
    train = of.FeatureSet(clustered_rows(100, 0))
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
