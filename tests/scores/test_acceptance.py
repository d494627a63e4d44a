"""The promise on accepted answers is broken at most as often as stated, and the rule says what it needs."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

import outfield as of
from outfield.scores import share_interval
from outfield.scores.acceptance import Acceptance, _falling, _p_value, fewest_right

DRAWS = 1000


def draw(rng, count, classes):
    """Scores, and answers that are wrong the more often the higher the score; guessing among few classes is right at times."""
    scores = rng.beta(1, 3, size=count)
    return scores, rng.uniform(size=count) < np.clip(2.5 * scores**2, 0, 1) * (1 - 1 / classes)


@pytest.mark.parametrize(("count", "classes"), [(120, 2), (300, 10), (300, 1000)])
def test_the_promise_is_broken_no_more_often_than_stated(count, classes):
    rng = np.random.default_rng(0)
    scores, wrong = draw(rng, 200_000, classes)
    order = np.argsort(scores)
    ranked, risk = scores[order], np.cumsum(wrong[order]) / np.arange(1, len(scores) + 1)
    broken, made = 0, 0
    for _ in range(DRAWS):
        (own, bad), (first, first_bad) = draw(rng, 2 * count // 3, classes), draw(rng, count // 3, classes)
        try:
            rule = Acceptance.fit(own, bad, first, first_bad, 0.9, 0.9)
        except of.TooFewSamplesError:
            continue
        made += 1
        broken += risk[np.searchsorted(ranked, rule.limit, side="right") - 1] > 0.1
    assert made > DRAWS / 10
    assert share_interval(broken, DRAWS)[0] <= 0.1


@pytest.mark.parametrize(("classes", "count"), [(2, 150), (10, 450), (1000, 450)])
def test_the_promise_holds_together_with_the_threshold_and_by_class(classes, count):
    """Accepted: not OOD by the threshold of its class, and safe by a score that p-values take part in, chosen by other rows."""
    rng, broken, made = np.random.default_rng(classes), 0, 0

    def rows(count):
        own = rng.integers(0, classes, count)
        doubt = rng.beta(1, 3, count).round(2)  # with ties
        wrong = rng.uniform(size=count) < np.clip(2.5 * doubt**2 + 0.1 * own / classes, 0, 1) * (1 - 1 / classes)
        return rng.standard_normal(count) * (1 + own / classes) + 2 * doubt, doubt, own, wrong

    whole = rows(50_000)
    for _ in range(DRAWS):
        first, tests = rows(count // 3), rows(2 * count // 3)
        known = of.ClassThresholds.fit(first[0], first[2], np.ones(classes), 0.9, np.arange(classes))
        refused = [known.is_ood(score, own).numpy() for score, _, own, _ in (first, tests, whole)]
        ranks = [
            (doubt, np.log(doubt + 0.01) - known.p_value(score, own).log().numpy())
            for score, doubt, own, _ in (first, tests, whole)
        ]
        best = int(np.argmin([of.aurc(one[~refused[0]], first[3][~refused[0]]) for one in ranks[0]]))
        limited = [np.where(no, np.inf, both[best]) for no, both in zip(refused, ranks, strict=True)]
        try:
            rule = Acceptance.fit(limited[1], tests[3], limited[0], first[3], 0.9)
        except of.TooFewSamplesError:
            continue
        made += 1
        broken += whole[3][rule.accepts(limited[2]).numpy()].mean() > 0.1
    assert made > DRAWS / 10
    assert share_interval(broken, DRAWS)[0] <= 0.05


@pytest.mark.parametrize(("n", "k"), [(299, 0), (500, 2), (40, 40), (0, 0)])
def test_the_p_value_is_the_binomial_tail(n, k):
    assert _p_value(n, k, 0.99) == pytest.approx(binom.cdf(k, n, 0.01), abs=1e-12)
    assert binom.cdf(0, fewest_right(0.99), 0.01) <= 0.05 < binom.cdf(0, fewest_right(0.99) - 1, 0.01)


@pytest.mark.parametrize(
    ("count", "quality", "accuracy", "message"),
    [
        (90, 0.1, 0.99, r"but 9\d.* %. Pass a lower accuracy, or about \d+0 such rows"),
        (3000, 30.0, 0.999, "or a better network: of those that look safest it is right on"),
    ],
)
def test_what_cannot_be_promised_is_told(count, quality, accuracy, message):
    rng = np.random.default_rng(0)
    scores = rng.uniform(size=count)
    wrong = rng.uniform(size=count) < np.minimum(0.02 * quality, 0.9)
    with pytest.raises(of.TooFewSamplesError, match=message):
        Acceptance.fit(scores[: count // 2], wrong[: count // 2], scores[count // 2 :], wrong[count // 2 :], accuracy)


def test_one_wrong_answer_of_few_asks_for_more_rows():
    scores, wrong = np.linspace(0, 1, 60), np.arange(60) == 0
    with pytest.raises(of.TooFewSamplesError, match=r"but 9.* %. Pass a lower accuracy, or about"):
        Acceptance.fit(scores, wrong, scores, wrong, 0.95)


def test_so_many_rows_as_it_asks_for_do():
    rng = np.random.default_rng(0)
    scores = rng.uniform(size=60)
    with pytest.raises(of.TooFewSamplesError, match="about") as refused:
        Acceptance.fit(scores, np.zeros(60), scores, np.zeros(60), 0.99)
    needed = int(str(refused.value).split("about ")[1].split(" ")[0].replace(",", ""))
    more = rng.uniform(size=needed)
    assert Acceptance.fit(more, np.zeros(needed), scores, np.zeros(60), 0.99).tested[2] == 0


def test_rows_that_are_refused_for_another_reason_count_as_not_accepted():
    rng = np.random.default_rng(0)
    scores = rng.uniform(size=900)
    wrong = scores > 0.7
    wrong[::3], scores[::3] = True, np.inf
    rule = Acceptance.fit(scores[:600], wrong[:600], scores[600:], wrong[600:], 0.95)
    assert 0.6 < rule.limit < 0.75
    assert rule.tested[0] == 600
    assert rule.tested[1] < 400
    assert not rule.accepts([np.inf]).any()


def test_chances_fall_and_are_the_least_squares_fit():
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(0)
    scores, wrong = draw(rng, 3000, 10)
    edges, chances = _falling(scores, 1.0 - wrong)
    assert (chances.diff() <= 0).all()
    assert (edges.diff() > 0).all()
    fitted = IsotonicRegression(increasing=False).fit(scores, ~wrong).predict(scores)
    own = chances[np.searchsorted(edges.numpy(), scores, side="right")].numpy()
    assert np.abs(own - fitted).mean() < 0.02  # beside one answer of each kind in each step
    assert 0 < float(chances.min()) < float(chances.max()) < 1


def test_a_few_right_answers_at_the_top_do_not_lower_all_others():
    """Three of three is 0.8 with one of each kind more; the 97 of 100 below are no worse for that."""
    wrong = np.zeros(103)
    wrong[3:6] = 1
    edges, chances = _falling(np.arange(103.0), 1 - wrong)
    assert len(edges) == 0
    assert chances.tolist() == [101 / 105]


def test_it_comes_back_from_its_record():
    rng = np.random.default_rng(0)
    rule = Acceptance.fit(*draw(rng, 600, 10), *draw(rng, 300, 10), 0.9, source="MSP")
    again = Acceptance.from_record(rule.record())
    assert repr(again) == repr(rule)
    assert again.source == "MSP"
    assert torch.equal(again.p_right([0.0, 0.2, 0.9]), rule.p_right([0.0, 0.2, 0.9]))


@pytest.mark.parametrize("accuracy", [0, 1, 1.5, True, "0.9", float("nan")])
def test_an_accuracy_that_cannot_be_is_refused(accuracy):
    with pytest.raises(of.InputError, match="accuracy"):
        Acceptance.fit([0.1], [0], [0.1], [0], accuracy)
