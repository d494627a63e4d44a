"""Each predicted class keeps its share; rare classes share a pool; a batch's discoveries are false no more often than asked."""

import numpy as np
import pytest
import torch

import outfield as of
from outfield.scores import discovery_limit, share_interval

DRAWS = 1000
COUNTS = np.array([400, 300, 200, 60, 8, 6])
"""How many of 974 ID samples a network puts in each class: three frequent ones, and rare ones."""


def draw(rng, count, ties=False):
    classes = rng.choice(len(COUNTS), size=count, p=COUNTS / COUNTS.sum())
    scores = rng.standard_normal(count) * (1 + classes) + 3 * classes  # no two classes have one distribution
    return (scores.round() if ties else scores), classes


@pytest.mark.parametrize("ties", [False, True])
def test_p_values_are_valid_in_each_class_and_pool(ties):
    rng = np.random.default_rng(0)
    low, seen = np.zeros((2, 4)), np.zeros(4)
    for _ in range(DRAWS):
        rule = of.ClassThresholds.fit(*draw(rng, 300, ties), COUNTS, keep=0.9)
        new, classes = draw(rng, 200, ties)
        pools, p = rule.pool_of.numpy()[classes], rule.p_value(new, classes).numpy()
        seen += np.bincount(pools, minlength=4)
        for row, limit in enumerate((0.1, 0.3)):
            low[row] += np.bincount(pools, p <= limit, minlength=4)
    assert rule.pool_of.tolist() == [0, 1, 2, 3, 3, 3]
    for row, limit in enumerate((0.1, 0.3)):
        assert ((low[row] / seen) <= limit + 0.01).all()
        assert ties or ((low[row] / seen) >= limit - 0.06).all()


@pytest.mark.parametrize(
    ("counts", "pools"),
    [
        ([50, 50], [0, 1]),
        ([97, 1, 2], [0, 0, 0]),  # two rare ones are too few even together: the rarest of the rest joins them
        ([60, 30, 5, 5], [0, 1, 1, 1]),
        ([0, 0, 100], [0, 0, 0]),
        ([100], [0]),
    ],
)
def test_who_shares_a_pool(counts, pools):
    rng = np.random.default_rng(0)
    classes = rng.choice(len(counts), size=100, p=np.array(counts) / 100)
    rule = of.ClassThresholds.fit(rng.standard_normal(100), classes, counts, keep=0.9)
    assert rule.pool_of.tolist() == pools


def test_a_pool_with_too_few_rows_refuses_nobody():
    rule = of.ClassThresholds.fit(np.arange(100.0), np.zeros(100, int), [50, 50], keep=0.9)
    assert rule.limits.tolist()[1] == np.inf
    assert rule.is_ood([1e9, 1e9], [0, 1]).tolist() == [True, False]
    assert rule.p_value([1e9], [1]).item() == 1


def test_words_and_records():
    rng = np.random.default_rng(0)
    rule = of.ClassThresholds.fit(*draw(rng, 600), COUNTS)
    assert rule.group(0, ["a", "b", "c", "d", "e", "f"]) == "a"
    assert rule.group(0) == "class 0"
    assert rule.group(5) == "class 3, class 4, class 5"
    assert "3 of them in 1 pool" in repr(rule)
    many = of.ClassThresholds.fit(np.arange(60.0), np.arange(60) % 6, [10] * 6, 0.9, levels=[5, 0, 4, 1, 3, 2])
    assert many.pool_of.tolist() == [2, 0, 2, 0, 1, 1]  # two of low, two of middling and two of high scores
    assert of.ClassThresholds.fit(np.arange(60.0), np.arange(60) % 6, [10] * 6, 0.9).group(3) == "all 6 classes"
    again, new = of.ClassThresholds.from_record(rule.record()), draw(rng, 50)
    assert torch.equal(again.p_value(*new), rule.p_value(*new))


@pytest.mark.parametrize(
    ("counts", "levels", "message"),
    [([0, 0], None, "counts"), ([3, -1], None, "counts"), ([3, 1], [1.0], "a number for each of the 2 classes")],
)
def test_counts_and_levels_that_cannot_be_are_refused(counts, levels, message):
    with pytest.raises(of.InputError, match=message):
        of.ClassThresholds.fit(np.arange(40.0), np.zeros(40, int), counts, levels=levels)


@pytest.mark.parametrize("classes", [[0, 6], [-1, 0], [0.0, 1.0], [0]])
def test_classes_that_cannot_be_are_refused(classes):
    rule = of.ClassThresholds.fit(*draw(np.random.default_rng(0), 600), COUNTS)
    with pytest.raises(of.InputError, match="predicted class of each of the 2 scores, from 0 to 5"):
        rule.p_value([1.0, 2.0], classes)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_discoveries_are_false_no_more_often_than_asked(share):
    """Conformal p-values of one calibration set depend on each other, but Benjamini and Hochberg's rule stays valid."""
    rng, rates = np.random.default_rng(0), []
    for _ in range(DRAWS):
        threshold = of.Threshold.fit(rng.standard_normal(200))
        is_ood = rng.uniform(size=100) < share
        p = threshold.p_value(rng.standard_normal(100) + 4 * is_ood).numpy()
        found = p <= discovery_limit(p, 0.2)
        rates.append(float((found & ~is_ood).sum() / max(1, found.sum())))
        assert found.all() or p[~found].min() > p[found].max(initial=0)
    spread = np.std(rates) / np.sqrt(DRAWS)
    assert np.mean(rates) <= 0.2 * (1 - share) + 3 * spread
    assert share == 0 or np.mean(rates) > 0.05  # it finds as many as it may


@pytest.mark.parametrize("ties", [False, True])
def test_discoveries_by_class_are_false_no_more_often_than_asked(ties):
    rng, rates = np.random.default_rng(0), []
    for _ in range(DRAWS):
        rule = of.ClassThresholds.fit(*draw(rng, 600, ties), COUNTS)
        (scores, classes), is_ood = draw(rng, 100, ties), rng.uniform(size=100) < 0.2
        p = rule.p_value(scores + 60 * is_ood, classes).numpy()
        found = p <= discovery_limit(p, 0.2)
        rates.append(float((found & ~is_ood).sum() / max(1, found.sum())))
    assert np.mean(rates) <= 0.2 * 0.8 + 3 * np.std(rates) / np.sqrt(DRAWS)
    assert np.mean(rates) > 0.04


def test_discoveries_are_those_of_benjamini_and_hochberg():
    from scipy.stats import false_discovery_control

    rng = np.random.default_rng(0)
    p = np.r_[rng.uniform(size=80), rng.uniform(size=20) / 200]
    assert (p <= discovery_limit(p, 0.1)).tolist() == (false_discovery_control(p) <= 0.1).tolist()
    assert discovery_limit([0.5, 0.9], 0.1) == 0
    assert share_interval(0, 3)[0] == 0
