"""Metrics against closed forms, brute force, scikit-learn, and at every magnitude."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

import outfield as of
from outfield.scores import metrics

METRICS = ("auroc", "fpr95", "aupr_in", "aupr_out", "id_rejected_at_95_ood_recall")


def vectors(*values):
    """Lists of such values, and lists of one of them many times."""
    value = st.one_of(*values)
    return st.lists(value, min_size=1, max_size=40) | st.builds(lambda v, n: [v] * n, value, st.integers(1, 40))


few = st.integers(-5, 5).map(float)
scores = vectors(few, st.floats(-1e300, 1e300))
any_scores = vectors(few, st.floats(allow_nan=False))
singles = vectors(few, st.floats(allow_nan=False, width=32))


@pytest.fixture(params=[8192, 3])
def blocks(request, monkeypatch):
    """Scores all at once, and in blocks of three."""
    monkeypatch.setattr(metrics, "BLOCK", request.param)


def on_every_path(test):
    """The blocks are constant through a test, so that Hypothesis need not set them up for each example."""
    return pytest.mark.usefixtures("blocks")(
        settings(suppress_health_check=[HealthCheck.function_scoped_fixture])(test)
    )


def labelled(ids, oods):
    return np.r_[np.zeros(len(ids)), np.ones(len(oods))], np.r_[ids, oods]


@on_every_path
@given(any_scores, any_scores)
def test_auroc_is_the_mann_whitney_statistic(ids, oods):
    wins = sum((b > a) + 0.5 * (b == a) for a in ids for b in oods)
    assert of.auroc(ids, oods) == pytest.approx(wins / (len(ids) * len(oods)), abs=1e-15)


@on_every_path
@given(scores, scores)
def test_average_precision_is_scikit_learns(ids, oods):
    y, s = labelled(ids, oods)
    assert of.aupr_out(ids, oods) == pytest.approx(average_precision_score(y, s), abs=1e-12)
    assert of.aupr_in(ids, oods) == pytest.approx(average_precision_score(1 - y, -s), abs=1e-12)


@on_every_path
@given(scores, scores)
def test_fpr95_is_read_off_the_roc_curve(ids, oods):
    y, s = labelled(ids, oods)
    fpr, tpr, _ = roc_curve(1 - y, -s, drop_intermediate=False)
    assert of.fpr95(ids, oods) == pytest.approx(fpr[tpr >= 0.95 - 1e-12].min(), abs=1e-12)
    fpr, tpr, _ = roc_curve(y, s, drop_intermediate=False)
    assert of.id_rejected_at_95_ood_recall(ids, oods) == pytest.approx(fpr[tpr >= 0.95 - 1e-12].min(), abs=1e-12)


@on_every_path
@given(scores, scores)
def test_swapping_sides_mirrors(ids, oods):
    assert of.auroc(ids, oods) == pytest.approx(1 - of.auroc(oods, ids), abs=1e-15)
    negated = of.fpr95([-s for s in oods], [-s for s in ids])
    assert of.id_rejected_at_95_ood_recall(ids, oods) == pytest.approx(negated, abs=1e-15)


@on_every_path
@given(any_scores, any_scores)
def test_only_ranks_matter(ids, oods):
    values = np.unique(np.r_[ids, oods])
    ranks = [np.searchsorted(values, side).astype(float) * 1e-9 + 1e4 for side in (ids, oods)]
    for metric in (getattr(of, name) for name in METRICS):
        assert metric(ids, oods) == metric(*ranks)
        assert 0 <= metric(ids, oods) <= 1


@on_every_path
@given(any_scores, any_scores, st.floats(0, 1, exclude_min=True))
def test_one_look_gives_every_metric(ids, oods, keep):
    separation = of.Separation(ids, oods)
    for name in METRICS:
        assert getattr(separation, name)() == getattr(of, name)(ids, oods)
    assert separation.ood_accepted(keep) == of.ood_accepted(ids, oods, keep)


@on_every_path
@given(singles, singles)
def test_float32_and_float64_rank_alike(ids, oods):
    wide = [np.array(side, np.float64) for side in (ids, oods)]
    narrow = [side.astype(np.float32) for side in wide]
    for name in METRICS:
        metric = getattr(of, name)
        assert metric(*narrow) == metric(*wide) == metric(torch.tensor(narrow[0]), narrow[1])


def test_scores_are_left_as_they_were():
    ids, oods = np.random.default_rng(0).standard_normal((2, 2000))[:, ::2]
    before = ids.copy(), oods.copy()
    ids.flags.writeable = False
    expected = roc_auc_score(*labelled(ids, oods))
    assert of.auroc(ids, oods) == of.auroc(ids, torch.from_numpy(oods)) == pytest.approx(expected, abs=1e-12)
    for name in METRICS:
        getattr(of, name)(ids, oods)
    np.testing.assert_array_equal((ids, oods), before)


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.5])
def test_closed_forms_of_two_normals(delta):
    rng = np.random.default_rng(0)
    ids, oods = rng.standard_normal(200_000), delta + rng.standard_normal(200_000)
    assert of.auroc(ids, oods) == pytest.approx(norm.cdf(delta / np.sqrt(2)), abs=4e-3)
    assert of.fpr95(ids, oods) == pytest.approx(norm.cdf(norm.ppf(0.95) - delta), abs=6e-3)


def test_large_scores_do_not_saturate():
    ids, oods = 1e12 + np.arange(10.0), 1e12 + np.arange(10.0) + 0.5
    assert of.auroc(ids, oods) == roc_auc_score(*labelled(ids, oods)) == 0.55
    assert of.auroc([-np.inf, 1e300], [np.inf, np.inf]) == 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decimals", [3, 20])
def test_a_million_scores_agree_with_scikit_learn(dtype, decimals):
    rng = np.random.default_rng(1)
    ids, oods = (rng.normal(mean, size=500_000).round(decimals).astype(dtype) for mean in (0, 1))
    y, s = labelled(ids, oods)
    fpr, tpr, _ = roc_curve(1 - y, -s, drop_intermediate=False)
    assert of.auroc(ids, oods) == pytest.approx(roc_auc_score(y, s), abs=1e-12)
    assert of.fpr95(ids, oods) == pytest.approx(fpr[tpr >= 0.95 - 1e-12].min(), abs=1e-12)


def test_scores_of_different_types_are_compared_exactly():
    tenth = np.array([0.1])
    assert of.auroc(tenth, tenth.astype(np.float32)) == 1  # 0.1 in float32 is the larger one
    assert of.auroc(tenth.astype(np.float32), tenth.astype(np.float32)) == 0.5
    assert of.fpr95(torch.tensor([0.1]), tenth) == 1
    assert of.fpr95(tenth, torch.tensor([0.1])) == 0
    assert of.auroc(np.array([2.0**24], np.float32), [2**24 + 1]) == 1


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.1, float("nan"), None, "0.9", True])
def test_a_share_outside_of_0_to_1_is_refused(keep):
    for accepted in (of.Separation([1.0], [2.0]).ood_accepted, lambda keep: of.ood_accepted([1.0], [2.0], keep)):
        with pytest.raises(of.InputError, match="keep"):
            accepted(keep)


@pytest.mark.parametrize("bad", [[], [[1.0]], [float("nan")], "abc", None])
def test_bad_scores_are_named(bad):
    with pytest.raises(of.InputError, match="scores_ood"):
        of.auroc([1.0], bad)
