"""KLMatching against a loop over rows and templates with scipy's divergence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

import outfield as of


def made(n, classes=4, seed=0, scale=2.0):
    logits = scale * np.random.default_rng(seed).standard_normal((n, classes))
    return of.FeatureSet(np.ones((n, 1)), logits=logits)


def expected(train, test):
    p, new = softmax(train.logits.numpy(), axis=1), softmax(test.logits.numpy(), axis=1)
    templates = [p[p.argmax(1) == c].mean(0) for c in range(p.shape[1]) if (p.argmax(1) == c).any()]
    return [min(entropy(row, template) for template in templates) for row in new]


@pytest.mark.parametrize("pieces", [4096, 7])
def test_it_is_the_smallest_divergence(pieces, monkeypatch):
    monkeypatch.setattr(of.KLMatching, "rows_at_once", pieces)
    train, test = made(100), made(30, seed=1)
    np.testing.assert_allclose(of.KLMatching().fit(train).score(test).numpy(), expected(train, test), rtol=1e-5)


def test_a_class_that_nothing_is_classified_as_has_no_template():
    train = made(100)
    train = train[train.logits.argmax(1) != 2]
    detector = of.KLMatching().fit(train)
    assert detector.log_templates_.shape == (3, 4)
    np.testing.assert_allclose(detector.score(made(30, seed=1)).numpy(), expected(train, made(30, seed=1)), rtol=1e-5)


def test_a_template_itself_scores_zero():
    one = made(1)
    assert float(of.KLMatching().fit(one).score(one)) == pytest.approx(0, abs=1e-15)


def test_probabilities_that_round_to_zero_leave_a_finite_template():
    train = of.FeatureSet(np.ones((2, 1)), logits=[[2000.0, 0.0], [2000.0, 0.0]])
    detector = of.KLMatching().fit(train)
    tiny = np.log(np.finfo(float).tiny)
    np.testing.assert_allclose(detector.log_templates_.numpy(), [[0.0, tiny]])
    other = of.FeatureSet(np.ones((1, 1)), logits=[[0.0, 2000.0]])
    assert float(detector.score(other)) == pytest.approx(-tiny)
    assert torch.equal(detector.score(train), torch.zeros(2))
