"""OpenMax against a loop in numpy with scipy's Weibull fit."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax
from scipy.stats import entropy, weibull_min

import outfield as of
from outfield.detectors.logits.openmax_tempscale_kl_matching import fit_weibull, increasing_root


def made(n=200, classes=4, seed=0, signal=4.0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    logits = signal * np.eye(classes)[labels] + rng.standard_normal((n, classes))
    return of.FeatureSet(np.ones((n, 1)), logits=logits, labels=labels)


def by_loops(train, test, tail=20, alpha=10):
    logits, labels = train.logits.numpy(), train.labels.numpy()
    right = logits.argmax(1) == labels
    means, laws, everything = {}, {}, []
    for c in range(logits.shape[1]):
        rows = logits[right & (labels == c)]
        if len(rows):
            means[c] = rows.mean(0)
            everything.append(np.linalg.norm(rows - means[c], axis=1))
            laws[c] = np.sort(everything[-1])[-tail:]
    pooled = np.sort(np.concatenate(everything))[-tail:]
    for c, values in laws.items():
        values = values if len(values) > 1 and np.ptp(values) > 0 else pooled
        shape, _, scale = weibull_min.fit(values, floc=0)
        laws[c] = weibull_min(shape, scale=scale)
    scores = []
    for row in test.logits.numpy():
        alpha_here, known, unknown = min(alpha, len(row)), row.copy(), 0.0
        for rank, c in enumerate(np.argsort(-row)[:alpha_here]):
            w = (alpha_here - rank) / alpha_here * laws[c].cdf(np.linalg.norm(row - means[c])) if c in laws else 0.0
            known[c] -= row[c] * w
            unknown += row[c] * w
        e = np.exp(np.array([unknown, *known]))
        scores.append(e[0] / e.sum())
    return scores


@pytest.mark.parametrize(
    "settings", [{}, {"tail": 5}, {"tail": 2}, {"tail": 10**6}, {"alpha": 1}, {"alpha": 3}, {"alpha": 4}]
)
@pytest.mark.parametrize("pieces", [4096, 33])
def test_it_is_the_loop_s(settings, pieces, monkeypatch):
    monkeypatch.setattr(of.OpenMax, "rows_at_once", pieces)
    train, test = made(), made(50, seed=1, signal=2.0)
    found = of.OpenMax(**settings).fit(train).score(test).numpy()
    np.testing.assert_allclose(found, by_loops(train, test, **settings), rtol=2e-3)


def test_defaults():
    assert (of.OpenMax().tail, of.OpenMax().alpha) == (20, 10)
    for wrong in ({"tail": 1}, {"alpha": 0}):
        with pytest.raises(of.InputError, match=f"^{next(iter(wrong))} is "):
            of.OpenMax(**wrong).fit(made())
    train = made(300, classes=12)
    test = made(20, classes=12, seed=1, signal=1.0)
    np.testing.assert_allclose(of.OpenMax().fit(train).score(test).numpy(), by_loops(train, test), rtol=2e-3)


def test_classes_with_few_rows_or_none():
    """Class 1 has one row that is right, class 2 none, class 3 two that are the same."""
    train = made(120)
    labels, logits = train.labels.clone(), train.logits.clone()
    right = logits.argmax(1) == labels
    keep = torch.ones(len(labels), dtype=torch.bool)
    keep[((labels == 1) & right).nonzero()[1:, 0]] = False
    keep[((labels == 2) & right).nonzero()[:, 0]] = False
    same = ((labels == 3) & right).nonzero()[:, 0]
    keep[same[2:]] = False
    logits[same[1]] = logits[same[0]]
    train = of.FeatureSet(train.features, logits=logits, labels=labels)[keep]
    test = made(60, seed=1, signal=2.0)
    detector = of.OpenMax().fit(train)
    assert detector.classes_.tolist() == [0, 1, 3]
    np.testing.assert_allclose(detector.score(test).numpy(), by_loops(train, test), rtol=2e-3)


def test_what_cannot_be_fitted_is_said():
    none_right = of.FeatureSet(np.ones((3, 1)), logits=np.eye(3), labels=[1, 2, 0])
    same = of.FeatureSet(np.ones((3, 1)), logits=[[1.0, 0.0]] * 3, labels=[0, 0, 0])
    for data in (none_right, same, made(1)):
        with pytest.raises(of.TooFewSamplesError, match="OpenMax needs rows that are classified right"):
            of.OpenMax().fit(data)
    for size in (1e200, 1.7e308):
        huge = of.FeatureSet(np.ones((4, 1)), logits=[[size, -size], [size / 2, 0.0]] * 2, labels=[0] * 4)
        with pytest.raises(of.InputError, match="squares are not finite"):
            of.OpenMax().fit(huge)


class TestWeibull:
    def test_values_that_have_no_finite_shape(self):
        assert fit_weibull(torch.full((5,), 3.0, dtype=torch.float64)) == pytest.approx((3.0, 1e4))
        scale, shape = fit_weibull(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
        assert fit_weibull(torch.tensor([1e-12, 1e-13, 1.0], dtype=torch.float64)) == (scale, shape)
        assert shape > 0.01
        few = torch.tensor([0.0] * 5000 + [1.0], dtype=torch.float64)
        assert 0.1 < fit_weibull(few)[1] < 0.3


def tempscale_made(n=400, classes=5, scale=3.0, seed=0, right=0.7):
    """Logits and labels of which a share follows the largest logit."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.standard_normal((n, classes))
    labels = np.where(rng.random(n) < right, logits.argmax(1), rng.integers(0, classes, n))
    return of.FeatureSet(np.ones((n, 1)), logits=logits, labels=labels)


def likelihood(data, inverse):
    logits, labels = inverse * data.logits.double().numpy(), data.labels.numpy()
    return (logsumexp(logits, axis=1) - logits[np.arange(len(labels)), labels]).mean()


def unit(data):
    logits = data.logits.double().numpy()
    return (logits.max(1) - logits.mean(1)).mean()


@pytest.mark.parametrize("scale", [1e-200, 1e-6, 0.1, 3.0, 50.0, 1e200])
@pytest.mark.parametrize("right", [0.3, 0.7, 0.99])
def test_the_temperature_is_scipy_s(scale, right, monkeypatch):
    monkeypatch.setattr(of.TempScale, "rows_at_once", 150)
    data, plain = tempscale_made(scale=scale, right=right), tempscale_made(scale=1.0, right=right)
    best = minimize_scalar(lambda x: likelihood(plain, x), bounds=(1e-3, 100), options={"xatol": 1e-9})
    assert of.TempScale().fit(data).temperature_ == pytest.approx(scale / best.x, rel=1e-5)


def test_the_score_is_one_minus_the_largest_probability():
    train, test = tempscale_made(), tempscale_made(seed=1)
    detector = of.TempScale().fit(train)
    expected = 1 - softmax(test.logits.numpy() / detector.temperature_, axis=1).max(1)
    np.testing.assert_allclose(detector.score(test).numpy(), expected, rtol=1e-5)
    assert detector.temperature_ > 1.5
    sure = of.FeatureSet(np.ones((2, 1)), logits=detector.temperature_ * np.array([[60, 0, 0, 0, 0], [50, 0, 0, 0, 0]]))
    np.testing.assert_allclose(detector.score(sure).numpy(), [4 * np.exp(-60), 4 * np.exp(-50)], rtol=1e-4)


def test_it_is_kept_in_bounds():
    """Rows that are all right want T = 0; rows that are all wrong want none above 0."""
    all_right, all_wrong = tempscale_made(right=1.0), tempscale_made(right=1.0)
    wrong = (all_wrong.logits.argmax(1) + 1) % 5
    all_wrong = of.FeatureSet(all_wrong.features, logits=all_wrong.logits, labels=wrong)
    assert of.TempScale().fit(all_right).temperature_ == pytest.approx(unit(all_right) / 50)
    assert of.TempScale().fit(all_wrong).temperature_ == pytest.approx(unit(all_wrong) * 50)


@pytest.mark.filterwarnings("ignore:TempScale.fit. logits has one column")
@pytest.mark.parametrize("logits", [np.full((4, 3), 7.0), np.arange(4.0)[:, None], 1e-305 * np.eye(4)])
def test_logits_that_do_not_differ_keep_temperature_one(logits):
    data = of.FeatureSet(np.ones((4, 1)), logits=logits, labels=[0, 0, 0, 0])
    assert of.TempScale().fit(data).temperature_ == 1.0


def test_huge_logits_have_a_finite_temperature():
    data = of.FeatureSet(np.ones((2, 1)), logits=[[1.7e308, -1.7e308], [1.7e308, -1.7e308]], labels=[1, 1])
    assert of.TempScale().fit(data).temperature_ == 1e300


CASES = {
    "a line": (lambda x: (x - 3.0, 1.0), 3.0),
    "flat far away": (
        lambda x: (float(np.tanh(40 * (x - 0.3))), float(40 / np.cosh(min(40 * (x - 0.3), 300)) ** 2)),
        0.3,
    ),
    "a step": (lambda x: (1.0 if x > 0.02 else -1.0, 0.0), 0.02),
    "a slope below zero": (lambda x: (x - 5.0, -1.0), 5.0),
    "below the bracket": (lambda x: (x, 1.0), 1e-2),
    "above the bracket": (lambda x: (x - 1e6, 1.0), 1e2),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_found(name):
    function, expected = CASES[name]
    asked = []

    def counting(x):
        asked.append(x)
        return function(x)

    assert increasing_root(counting, 1e-2, 1e2) == pytest.approx(expected, rel=1e-11)
    assert len(asked) <= 62
    assert all(1e-2 <= x <= 1e2 for x in asked)


def kl_matching_made(n, classes=4, seed=0, scale=2.0):
    logits = scale * np.random.default_rng(seed).standard_normal((n, classes))
    return of.FeatureSet(np.ones((n, 1)), logits=logits)


def expected(train, test):
    p, new = softmax(train.logits.numpy(), axis=1), softmax(test.logits.numpy(), axis=1)
    templates = [p[p.argmax(1) == c].mean(0) for c in range(p.shape[1]) if (p.argmax(1) == c).any()]
    return [min(entropy(row, template) for template in templates) for row in new]


@pytest.mark.parametrize("pieces", [4096, 7])
def test_it_is_the_smallest_divergence(pieces, monkeypatch):
    monkeypatch.setattr(of.KLMatching, "rows_at_once", pieces)
    train, test = kl_matching_made(100), kl_matching_made(30, seed=1)
    np.testing.assert_allclose(of.KLMatching().fit(train).score(test).numpy(), expected(train, test), rtol=1e-5)


def test_a_class_that_nothing_is_classified_as_has_no_template():
    train = kl_matching_made(100)
    train = train[train.logits.argmax(1) != 2]
    detector = of.KLMatching().fit(train)
    assert detector.log_templates_.shape == (3, 4)
    np.testing.assert_allclose(
        detector.score(kl_matching_made(30, seed=1)).numpy(), expected(train, kl_matching_made(30, seed=1)), rtol=1e-5
    )


def test_a_template_itself_scores_zero():
    one = kl_matching_made(1)
    assert float(of.KLMatching().fit(one).score(one)) == pytest.approx(0, abs=1e-15)


def test_probabilities_that_round_to_zero_leave_a_finite_template():
    train = of.FeatureSet(np.ones((2, 1)), logits=[[2000.0, 0.0], [2000.0, 0.0]])
    detector = of.KLMatching().fit(train)
    tiny = np.log(np.finfo(float).tiny)
    np.testing.assert_allclose(detector.log_templates_.numpy(), [[0.0, tiny]])
    other = of.FeatureSet(np.ones((1, 1)), logits=[[0.0, 2000.0]])
    assert float(detector.score(other)) == pytest.approx(-tiny)
    assert torch.equal(detector.score(train), torch.zeros(2))
