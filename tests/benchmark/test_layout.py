"""Points for a picture, where there are few rows or few numbers in a row."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tests.helpers.fake_benchmark import PROTOCOL, detectors, feature_sets

import outfield as of
from outfield.benchmark import benchmark_features
from outfield.benchmark.fits import choose_rows, embed, lay_out


@pytest.mark.parametrize("shape", [(4, 1), (30, 1), (4, 2), (5, 80), (70, 3)])
def test_every_row_has_a_place(shape):
    z = np.random.default_rng(0).random(shape).astype(np.float32)
    points = embed(z, seed=0)
    assert points.shape == (shape[0], 2)
    assert points.dtype == np.float32
    assert np.isfinite(points).all()
    assert np.ptp(points, axis=0).any()


@pytest.mark.parametrize(("sets", "share"), [(1, None), (2, 1400), (3, 700), (4, 466)])
def test_points_are_shared_out(sets, share):
    rows = of.FeatureSet(np.arange(3000.0)[:, None])
    chosen = choose_rows({str(i): rows for i in range(sets)}, seed=0)
    assert [len(index) for index in chosen.values()] == [600] + [share] * (sets - 1)
    assert all(bool((np.diff(index) > 0).all()) for index in chosen.values())
    few = choose_rows({"a": rows[:7], "b": rows[:5]}, seed=0)
    assert (few["a"].tolist(), few["b"].tolist()) == (list(range(7)), list(range(5)))


@pytest.mark.parametrize(("rows", "perplexity"), [(4, 1.0), (10, 3.0), (91, 30.0), (200, 30.0)])
def test_neighbours_in_proportion_to_the_rows(rows, perplexity, monkeypatch):
    import sklearn.manifold

    class Recorded(sklearn.manifold.TSNE):
        def fit_transform(self, components):
            assert (self.perplexity, self.init, self.random_state) == (pytest.approx(perplexity), "pca", 5)
            return components[:, :2]

    monkeypatch.setattr(sklearn.manifold, "TSNE", Recorded)
    assert embed(np.random.default_rng(0).random((rows, 3)), seed=5).shape == (rows, 2)


def test_its_library_is_missed_before_any_work(monkeypatch, count):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    settings = {"detectors": detectors("SSD"), "seeds": 1}
    with pytest.raises(of.MissingExtraError, match=r"outfield\[report\]"):
        benchmark_features(PROTOCOL, {"a": feature_sets()}, **settings)
    assert not count
    assert benchmark_features(PROTOCOL, {"a": feature_sets()}, **settings, layout=False).records
    with pytest.warns(DeprecationWarning, match="view is called layout now"):
        assert benchmark_features(PROTOCOL, {"a": feature_sets()}, **settings, view=False).layouts == []


def test_clusters_stay_apart_and_equal_seeds_give_equal_layouts():
    rng = np.random.default_rng(0)
    near, far = (of.FeatureSet(np.abs(centre + 0.01 * rng.standard_normal((40, 8)))) for centre in np.eye(8)[:2] + 0.1)
    found = lay_out("net", {"id": near, "ood": far})
    assert np.array_equal(found.points, lay_out("net", {"id": near, "ood": far}).points)
    one, two = (found.points[np.array(found.sets) == name] for name in ("id", "ood"))
    assert np.linalg.norm(one.mean(0) - two.mean(0)) > 2 * max(one.std(), two.std())


def test_what_cannot_be_laid_out_lies_at_the_origin():
    same = of.FeatureSet(np.ones((9, 4)))
    assert not lay_out("net", {"id": same, "ood": same}).points.any()
    assert not embed(np.random.default_rng(0).random((3, 5)), seed=0).any()
    line = of.FeatureSet(np.linspace(1, 2, 9)[:, None])
    assert lay_out("net", {"id": line, "ood": line}).points.shape == (18, 2)
