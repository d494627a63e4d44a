"""Clusters in the place of classes: how many, and that nothing but ID rows decides it."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors.combined import auto as unlabelled
from outfield.detectors.combined.auto import is_one_class, with_clusters


def blobs(count, rows=300, seed=0, width=6, spread=0.05):
    """Rows around so many far directions, each Gaussian."""
    generator = torch.Generator().manual_seed(seed)
    centres = 5 * torch.eye(max(count, width))[:count, :]
    z = centres[torch.arange(rows) % count] + spread * torch.randn(rows, centres.shape[1], generator=generator)
    return of.FeatureSet(z, about={"network": "n"})


@pytest.mark.parametrize("count", [1, 5, 10])
def test_as_many_clusters_as_there_are(count):
    rows = blobs(count)
    found = with_clusters(rows, 0)
    sizes = torch.bincount(found.labels)
    assert len(sizes) == count
    assert sizes.min() >= 300 // count - 1
    for label in range(count):  # each cluster is one of the groups
        assert len(torch.unique(torch.arange(300)[found.labels == label] % count)) == 1
    assert torch.equal(found.features, rows.features)
    assert found.about == rows.about
    assert torch.equal(with_clusters(rows, 0).labels, found.labels)


def test_the_likelihood_of_rows_that_were_left_out_decides(monkeypatch):
    seen = {}

    class Spy(unlabelled.MixturePrior):
        def fit(self, z, labels):
            self.count, self.rows = len(labels.unique()), len(z)
            return super().fit(z, labels)

        def log_prob(self, z):
            seen[self.count] = (self.rows, len(z))
            return torch.full((len(z),), {1: 0.0, 2: 3.0, 5: 3.0, 10: 2.0, 20: -1.0}[self.count])

    monkeypatch.setattr(unlabelled, "MixturePrior", Spy)
    assert len(with_clusters(blobs(3), 0).labels.unique()) == 2  # of equal ones the smallest
    assert seen == dict.fromkeys((1, 2, 5, 10, 20), (240, 60))


def test_few_rows_are_not_cut_into_many():
    assert with_clusters(blobs(10, rows=124), 0).labels.max() == 9  # 100 rows are left: just enough for ten
    assert with_clusters(blobs(10, rows=123), 0).labels.max() < 5
    assert with_clusters(blobs(5, rows=61), 0).labels.max() < 5
    assert with_clusters(blobs(2, rows=24), 0).labels.max() == 1  # 20 rows are just enough for two
    assert with_clusters(blobs(2, rows=23), 0).labels.max() == 0
    assert with_clusters(of.FeatureSet(torch.ones(1, 3)), 0).labels.tolist() == [0]


def test_equal_rows():
    assert with_clusters(of.FeatureSet(torch.ones(80, 3)), 0).labels.tolist() == [0] * 80


def test_many_rows_are_drawn_from(monkeypatch):
    monkeypatch.setattr(unlabelled, "MOST", 100)
    rows = blobs(2)
    found = with_clusters(rows, 0)
    assert len(found) == 100
    assert all((one == rows.features).all(1).any() for one in found.features)


def test_what_is_one_class():
    known = make_set(n=20)
    fields = known.tensors()
    assert not is_one_class(known)
    assert not is_one_class(of.FeatureSet(known.features, labels=known.labels))
    assert not is_one_class(of.FeatureSet(known.features, labels=known.labels, logits=fields["logits"]))
    assert not is_one_class(of.FeatureSet(known.features, logits=fields["logits"]))
    assert is_one_class(of.FeatureSet(known.features))
    assert is_one_class(of.FeatureSet(known.features, labels=torch.full((20,), 3)))


def test_auto_without_classes_is_a_sum_over_clusters():
    train, held = blobs(5), blobs(5, rows=100, seed=1)
    auto = of.Auto(seed=2).fit(train, held_out=held)
    expected = of.Fused((of.KNN(k=5), of.SSD()), seed=2).fit(with_clusters(train, 2), held_out=held)
    assert auto.names == expected.names
    assert torch.equal(auto.score(held), expected.score(held))
    zeros = torch.zeros(300, dtype=torch.int64)
    one = of.Auto(seed=2).fit(of.FeatureSet(train.features, labels=zeros, about=train.about), held_out=held)
    assert torch.equal(one.score(held), expected.score(held))
    middle = of.FeatureSet(train.features.mean(0, keepdim=True), about=train.about)
    assert auto.score(middle)[0] > auto.score(held).max()


def test_rows_on_disk_are_not_all_loaded(tmp_path, monkeypatch):
    rows = make_set(n=200)
    few = of.FeatureSet(rows.features, stage2=rows.features * 2, about={"network": "n"})
    few.save(tmp_path / "rows.safetensors")
    stream = of.open_features(tmp_path / "rows.safetensors")
    whole = with_clusters(few, 0)
    monkeypatch.setattr(type(stream), "in_memory", lambda self: pytest.fail("all rows were loaded"))
    found = with_clusters(stream, 0)
    assert torch.equal(found.labels, whole.labels)
    assert torch.equal(found.tensors()["stage2"], few.tensors()["stage2"])
    monkeypatch.setattr(unlabelled, "MOST", 50)
    assert len(with_clusters(stream, 0)) == 50


def test_wide_rows_are_projected_for_the_comparison(monkeypatch):
    widths = []

    class Spy(unlabelled.MixturePrior):
        def fit(self, z, labels):
            widths.append(z.shape[1])
            return super().fit(z, labels)

    monkeypatch.setattr(unlabelled, "MixturePrior", Spy)
    rows = blobs(5, width=12)
    monkeypatch.setattr(unlabelled, "WIDEST", 12)
    exact = with_clusters(rows, 0)
    monkeypatch.setattr(unlabelled, "WIDEST", 8)
    assert torch.equal(with_clusters(rows, 0).labels, exact.labels)
    assert set(widths) == {12, 8}
    assert len(exact.labels.unique()) == 5
