"""Risk and coverage against definitions row by row, closed forms, and how ties and weights count."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outfield as of


def by_definition(wrong_in_order):
    """AURC and AUGRC of answers that are already sorted."""
    n, mistakes = len(wrong_in_order), np.cumsum(wrong_in_order)
    risks = mistakes / np.arange(1, n + 1)
    generalised = (np.r_[0, mistakes[:-1]] + mistakes) / 2 / n
    return risks.mean(), generalised.mean()


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=6))
def test_ties_count_as_the_mean_over_their_orders(pairs):
    scores, wrong = (np.array(one, float) for one in zip(*pairs, strict=True))
    orders = [order for order in itertools.permutations(range(len(pairs))) if (np.diff(scores[list(order)]) >= 0).all()]
    means = np.mean([by_definition(wrong[list(order)]) for order in orders], axis=0)
    assert of.aurc(scores, wrong) == pytest.approx(means[0])
    assert of.augrc(scores, wrong) == pytest.approx(means[1])


def test_augrc_follows_from_auroc_and_accuracy():
    rng = np.random.default_rng(0)
    scores, wrong = rng.integers(0, 50, 3000).astype(float), rng.uniform(size=3000) < 0.3
    right, auroc = 1 - wrong.mean(), of.auroc(scores[~wrong], scores[wrong])
    assert of.augrc(scores, wrong) == pytest.approx((1 - auroc) * right * (1 - right) + (1 - right) ** 2 / 2)


def test_a_perfect_order_reaches_the_least_area_and_a_random_one_the_error_rate():
    wrong = np.arange(1000) >= 800
    error, rng = 0.2, np.random.default_rng(1)
    assert of.aurc(wrong.astype(float), wrong) == pytest.approx(
        error + 0.8 * np.log(0.8), abs=0.001
    )  # ∫ max(0, 1 − 0.8 / c) dc
    assert of.aurc(np.zeros(1000), wrong) == pytest.approx(error)
    assert of.aurc(rng.uniform(size=100_000), rng.uniform(size=100_000) < error) == pytest.approx(error, abs=0.01)


def test_coverage_at_risk_is_the_largest_that_holds_and_never_splits_a_tie():
    scores, wrong = [1, 2, 2, 3, 4, 5], [0, 0, 1, 0, 0, 1]
    assert of.coverage_at_risk(scores, wrong, 0.2) == pytest.approx(5 / 6)
    assert of.coverage_at_risk(scores, wrong, 0.1) == pytest.approx(1 / 6)
    assert of.coverage_at_risk([1, 2], [1, 1], 0.5) == 0
    curve = of.RiskCoverage(scores, wrong)
    assert curve.coverage.tolist() == pytest.approx([1 / 6, 1 / 2, 2 / 3, 5 / 6, 1])
    assert curve.risk_at(0.4) == pytest.approx(1 / 3)
    assert curve.risk_at(1.0) == pytest.approx(1 / 3)


def test_weights_are_repeated_rows():
    scores, wrong, times = np.array([3.0, 1.0, 2.0]), np.array([1, 0, 1]), np.array([4, 1, 2])
    weighted = of.RiskCoverage(scores, wrong, weights=times / 10)
    whole = of.RiskCoverage(scores.repeat(times), wrong.repeat(times))
    assert weighted.augrc() == pytest.approx(whole.augrc())
    assert weighted.coverage_at(0.67) == pytest.approx(whole.coverage_at(0.67)) == pytest.approx(3 / 7)


@pytest.mark.parametrize(
    ("scores", "wrong", "weights", "message"),
    [
        ([1.0, 2.0], [0, 2], None, "True or False"),
        ([1.0, 2.0], [0], None, "each of the 2 answers"),
        ([1.0, float("nan")], [0, 1], None, "NaN at position 1"),
        ([1.0, 2.0], [0, 1], [1.0, 0.0], "positive numbers"),
    ],
)
def test_bad_input_is_named(scores, wrong, weights, message):
    with pytest.raises(of.InputError, match=message):
        of.RiskCoverage(scores, wrong, weights)
