"""Rows are held out as they always were, every class keeps one, and copies stay together."""

import numpy as np
import pytest
import torch

import outfield as of
from outfield.features import copies_of, split_rows, stratified_rows

LABELS = np.array([0] * 100 + [1] * 40 + [2] * 20 + [3])


def plain_choice(count, share, seed, labels):
    """The rows held out without copies: the first ones of a random order that are not the first of their class."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    seen, rest = set(), []
    for row in order:
        label = 0 if labels is None else labels[row]
        if label in seen:
            rest.append(row)
        seen.add(label)
    return sorted(rest[: round(share * count)])


@pytest.mark.parametrize("labels", [None, LABELS])
def test_rows_without_copies(labels):
    for seed in range(5):
        expected = plain_choice(161, 0.3, seed, labels)
        for copies in (None, np.arange(161)[::-1]):
            found = split_rows(161, 0.3, seed=seed, least=1, labels=labels, copies=copies)
            assert found.dtype == torch.bool
            assert found.nonzero()[:, 0].tolist() == expected


def test_copies_stay_on_one_side_and_every_class_keeps_a_row():
    rng = np.random.default_rng(0)
    for seed in range(20):
        copies = rng.integers(0, 70, len(LABELS))  # rows of different classes among them
        for held_out in (
            split_rows(161, 0.3, seed=seed, least=10, labels=LABELS, copies=copies),
            stratified_rows(161, 48, seed=seed, labels=LABELS, copies=copies),
        ):
            out = held_out.numpy()
            assert not set(copies[out]) & set(copies[~out])
            assert set(LABELS[~out]) == {0, 1, 2, 3}
            assert 48 <= out.sum() < 48 + np.bincount(copies).max()


def test_at_least_so_many_rows_that_are_different():
    copies = np.arange(120) // 3
    out = split_rows(120, 0.1, seed=0, least=10, copies=copies).numpy()
    assert len(set(copies[out])) == 10
    assert out.sum() == 30


def test_too_few_rows():
    assert split_rows(80, 0.1, seed=0, least=40).sum() == 40
    for count, labels, copies in ((79, None, None), (80, np.arange(80), None), (80, None, np.zeros(80))):
        with pytest.raises(of.TooFewSamplesError, match=f"{count} training rows are too few to keep 40"):
            split_rows(count, 0.1, seed=0, least=40, labels=labels, copies=copies)


def test_classes_in_proportion():
    for seed in range(20):
        out = stratified_rows(161, 32, seed=seed, labels=LABELS).numpy()
        assert (np.abs(np.bincount(LABELS[out], minlength=4) - [20, 8, 4, 0]) <= 1).all()
        assert out.sum() == 32
    assert stratified_rows(161, 161, seed=0, labels=LABELS).sum() == 157


def test_numbers_of_equal_rows():
    rows = np.array([[1.0, 2], [3, 4], [1, 2], [5, 6]], dtype=np.float32)
    other = of.FeatureSet(np.array([[3.0, 4], [7, 8]], dtype=np.float16))
    assert copies_of(of.FeatureSet(rows)).tolist() == [0, 1, 0, 3]
    assert copies_of(of.FeatureSet(rows), other).tolist() == [0, 1, 0, 3, 1, 5]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_training_rows_that_come_several_times(times):
    """Held-out rows that are in the bank of neighbours have the distance 0, and every new row would be far from it."""
    rows = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    train, fresh = of.FeatureSet(np.tile(rows[:600], (times, 1))), of.FeatureSet(rows[600:])
    fused = of.Fused([of.KNN(k=1)], held_out=0.4).fit(train)
    assert (fused.p_values(fresh) <= 0.1).double().mean() < 0.15
