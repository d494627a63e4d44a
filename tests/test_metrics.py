"""Metrics against closed forms, brute force, scikit-learn, and at every magnitude."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

import outfield as of

scores = st.lists(st.integers(-5, 5).map(float) | st.floats(-1e300, 1e300), min_size=1, max_size=40)


def labelled(ids, oods):
    return np.r_[np.zeros(len(ids)), np.ones(len(oods))], np.r_[ids, oods]


@given(scores, scores)
def test_auroc_is_the_mann_whitney_statistic(ids, oods):
    wins = sum((b > a) + 0.5 * (b == a) for a in ids for b in oods)
    assert of.auroc(ids, oods) == pytest.approx(wins / (len(ids) * len(oods)), abs=1e-15)


@given(scores, scores)
def test_average_precision_is_scikit_learns(ids, oods):
    y, s = labelled(ids, oods)
    assert of.aupr_out(ids, oods) == pytest.approx(average_precision_score(y, s), abs=1e-12)
    assert of.aupr_in(ids, oods) == pytest.approx(average_precision_score(1 - y, -s), abs=1e-12)


@given(scores, scores)
def test_fpr95_is_read_off_the_roc_curve(ids, oods):
    y, s = labelled(ids, oods)
    fpr, tpr, _ = roc_curve(1 - y, -s, drop_intermediate=False)
    assert of.fpr95(ids, oods) == pytest.approx(fpr[tpr >= 0.95 - 1e-12].min(), abs=1e-12)
    fpr, tpr, _ = roc_curve(y, s, drop_intermediate=False)
    assert of.id_rejected_at_95_ood_recall(ids, oods) == pytest.approx(fpr[tpr >= 0.95 - 1e-12].min(), abs=1e-12)


@given(scores, scores)
def test_swapping_sides_mirrors(ids, oods):
    assert of.auroc(ids, oods) == pytest.approx(1 - of.auroc(oods, ids), abs=1e-15)
    negated = of.fpr95([-s for s in oods], [-s for s in ids])
    assert of.id_rejected_at_95_ood_recall(ids, oods) == pytest.approx(negated, abs=1e-15)


@given(scores, scores)
def test_only_ranks_matter(ids, oods):
    values = np.unique(np.r_[ids, oods])
    ranks = [np.searchsorted(values, side).astype(float) * 1e-9 + 1e4 for side in (ids, oods)]
    for metric in (of.auroc, of.fpr95, of.aupr_in, of.aupr_out, of.id_rejected_at_95_ood_recall):
        assert metric(ids, oods) == metric(*ranks)
        assert 0 <= metric(ids, oods) <= 1


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.5])
def test_closed_forms_of_two_normals(delta):
    rng = np.random.default_rng(0)
    ids, oods = rng.standard_normal(200_000), delta + rng.standard_normal(200_000)
    assert of.auroc(ids, oods) == pytest.approx(norm.cdf(delta / np.sqrt(2)), abs=4e-3)
    assert of.fpr95(ids, oods) == pytest.approx(norm.cdf(norm.ppf(0.95) - delta), abs=6e-3)


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_perfect_separation_is_exactly_one(n):
    ids, oods = np.arange(n), np.arange(n) + n
    assert of.auroc(ids, oods) == of.aupr_in(ids, oods) == of.aupr_out(ids, oods) == 1
    assert of.fpr95(ids, oods) == of.id_rejected_at_95_ood_recall(ids, oods) == 0


def test_large_scores_do_not_saturate():
    ids, oods = 1e12 + np.arange(10.0), 1e12 + np.arange(10.0) + 0.5
    assert of.auroc(ids, oods) == roc_auc_score(*labelled(ids, oods)) == 0.55
    assert of.auroc([-np.inf, 1e300], [np.inf, np.inf]) == 1.0


def test_a_million_scores_agree_with_scikit_learn():
    rng = np.random.default_rng(1)
    ids, oods = rng.standard_normal(500_000).round(3), rng.standard_normal(500_000).round(3) + 1
    assert of.auroc(ids, oods) == pytest.approx(roc_auc_score(*labelled(ids, oods)), abs=1e-12)


def test_types_do_not_matter():
    ids, oods = [0.0, 1.0, 2.0], [1.5, 3.0]
    expected = of.auroc(ids, oods)
    assert of.auroc(torch.tensor(ids), np.array(oods, np.float32)) == expected
    assert isinstance(expected, float)


@pytest.mark.parametrize("bad", [[], [[1.0]], [float("nan")], "abc", None])
def test_bad_scores_are_named(bad):
    with pytest.raises(of.InputError, match="scores_ood"):
        of.auroc([1.0], bad)
