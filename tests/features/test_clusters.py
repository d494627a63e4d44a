"""Clusters as labels: they find groups that are there, and repeat."""

import pytest
import torch
from torch.nn import functional

import outfield as of


def groups(n=60, width=6, classes=4, spread=0.15, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.eye(width)[:classes] * 5
    labels = torch.arange(n * classes) % classes
    rows = centres[labels] * (1 + torch.rand(len(labels), 1, generator=generator))
    return rows + spread * torch.randn(rows.shape, generator=generator), labels


def test_groups_are_found_whatever_the_rows_length():
    rows, truth = groups()
    found = of.clustered(of.FeatureSet(rows), 4).labels
    pairs = set(zip(truth.tolist(), found.tolist(), strict=True))
    assert len(pairs) == 4
    longer = of.clustered(of.FeatureSet(rows * 100), 4).labels
    assert torch.equal(found, longer)


def test_they_are_the_end_of_k_means():
    """Every row is with the centre that is nearest, and every centre is the direction of its rows' mean."""
    rows = torch.randn(300, 5, generator=torch.Generator().manual_seed(3))
    labels = of.clustered(of.FeatureSet(rows), 6, seed=1).labels
    z = functional.normalize(rows, dim=1)
    centres = functional.normalize(torch.stack([z[labels == k].double().sum(0) for k in range(6)]), dim=1).float()
    assert torch.equal((z @ centres.T).argmax(1), labels)
    sizes = torch.bincount(labels)
    assert (sizes[:-1] >= sizes[1:]).all()
    assert len(sizes) == 6
    assert torch.equal(labels, of.clustered(of.FeatureSet(rows), 6, seed=1).labels)


def test_other_fields_stay_and_labels_are_replaced():
    rows, truth = groups()
    both = of.FeatureSet(rows, labels=truth + 2, logits=rows, stage1=rows[:, :3], names=[*map(str, range(len(rows)))])
    made = of.clustered(both, 3, field="stage1")
    with pytest.warns(DeprecationWarning, match="on= is now field="):
        assert torch.equal(of.clustered(both, 3, on="stage1").labels, made.labels)
    assert torch.equal(made.logits, both.logits)
    assert made.names == both.names
    assert made.labels.unique().tolist() == [0, 1, 2]
    assert of.clustered(both, 1).labels.unique().tolist() == [0]


def test_equal_rows_and_as_many_clusters_as_rows():
    same = of.FeatureSet(torch.ones(5, 3))
    assert len(of.clustered(same, 3)) == 5
    apart = of.FeatureSet(torch.eye(4))
    assert sorted(of.clustered(apart, 4).labels.tolist()) == [0, 1, 2, 3]


def test_one_gaussian_without_labels_is_that_of_all_rows():
    rows, _ = groups()
    one = of.SSD().fit(of.clustered(of.FeatureSet(rows), 1))
    zeros = of.SSD().fit(of.FeatureSet(rows, labels=torch.zeros(len(rows), dtype=torch.int64)))
    torch.testing.assert_close(one.score(of.FeatureSet(rows)), zeros.score(of.FeatureSet(rows)))


def test_what_cannot_be_is_refused():
    rows = of.FeatureSet(torch.ones(5, 3))
    for given, clusters, field, words in [
        (rows, 6, "features", "only 5 rows"),
        (rows, 0, "features", "clusters"),
        (rows, 2, "stage2", "called stage2; there are features"),
        (torch.ones(5, 3), 2, "features", "FeatureSet"),
    ]:
        with pytest.raises(of.InputError, match=words):
            of.clustered(given, clusters, field=field)
