"""TempScale: the temperature is scipy's minimum of the labels' negative log-likelihood."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

import outfield as of
from outfield.detectors.logits.softmax import increasing_root
from outfield.files import Record, read_record, write_record


def made(n=400, classes=5, scale=3.0, seed=0, right=0.7):
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
    data, plain = made(scale=scale, right=right), made(scale=1.0, right=right)
    best = minimize_scalar(
        lambda x: likelihood(plain, x), bounds=(1e-3, 100), method="bounded", options={"xatol": 1e-9}
    )
    assert of.TempScale().fit(data).temperature_ == pytest.approx(scale / best.x, rel=1e-5)


def test_the_score_is_one_minus_the_largest_probability():
    train, test = made(), made(seed=1)
    detector = of.TempScale().fit(train)
    expected = 1 - softmax(test.logits.numpy() / detector.temperature_, axis=1).max(1)
    np.testing.assert_allclose(detector.score(test).numpy(), expected, rtol=1e-5)
    assert detector.temperature_ > 1.5
    sure = of.FeatureSet(
        np.ones((2, 1)), logits=detector.temperature_ * np.array([[60.0, 0, 0, 0, 0], [50.0, 0, 0, 0, 0]])
    )
    np.testing.assert_allclose(detector.score(sure).numpy(), [4 * np.exp(-60), 4 * np.exp(-50)], rtol=1e-4)


def test_it_is_kept_in_bounds():
    """Rows that are all right want T = 0; rows that are all wrong want none above 0."""
    all_right, all_wrong = made(right=1.0), made(right=1.0)
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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"temperature": torch.tensor([0.0], dtype=torch.float64)}, "temperature is 0; it must be above 0"),
        ({"temperature": torch.tensor([-1.0], dtype=torch.float64)}, "temperature is -1"),
        ({"temperature": torch.tensor([1e301], dtype=torch.float64)}, "temperature is 1e"),
        ({"classes": torch.tensor([4])}, "classes is 4, but width is 5"),
    ],
)
def test_a_file_that_no_fit_gives(wrong, said, tmp_path):
    of.TempScale().fit(made()).save(tmp_path / "d.safetensors")
    header, tensors = read_record(tmp_path / "d.safetensors", "detector")
    write_record(tmp_path / "d.safetensors", "detector", Record(header, {**tensors, **wrong}))
    with pytest.raises(of.FileFormatError, match=said):
        of.load(tmp_path / "d.safetensors")


def test_the_bounds_of_temperatures_load(tmp_path):
    small = of.FeatureSet(np.ones((2, 1)), logits=[[3e-300, 0.0]] * 2, labels=[0, 0])
    large = of.FeatureSet(np.ones((2, 1)), logits=[[1.7e308, 0.0]] * 2, labels=[1, 1])
    for data, expected in ((small, 3e-302), (large, 1e300)):
        fitted = of.TempScale().fit(data)
        assert fitted.temperature_ == pytest.approx(expected)
        fitted.save(tmp_path / "d.safetensors")
        assert of.load(tmp_path / "d.safetensors").temperature_ == fitted.temperature_


CASES = {
    "a line": (lambda x: (x - 3.0, 1.0), 3.0),
    "a logarithm": (lambda x: (float(np.log(x / 7)), 1 / x), 7.0),
    "flat far away": (
        lambda x: (float(np.tanh(40 * (x - 0.3))), float(40 / np.cosh(min(40 * (x - 0.3), 300)) ** 2)),
        0.3,
    ),
    "a high power": (lambda x: (x**9 - 1e-9, 9 * x**8), 0.1),
    "a step": (lambda x: (1.0 if x > 0.02 else -1.0, 0.0), 0.02),
    "a slope below zero": (lambda x: (x - 5.0, -1.0), 5.0),
    "at once": (lambda x: (x - 1.0, 1.0), 1.0),
    "below the bracket": (lambda x: (x, 1.0), 1e-2),
    "at its lower end": (lambda x: (x - 1e-2, 1.0), 1e-2),
    "above the bracket": (lambda x: (x - 1e6, 1.0), 1e2),
    "at its upper end": (lambda x: (x - 1e2, 1.0), 1e2),
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
