"""Feature shapers against plain numpy, row by row, and the detector of logits behind them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors.head.react_vra_dice import percentiles

SHAPERS = (of.ReAct, of.VRA, of.ASH, of.SCALE, of.LTS, of.DICE)
every = pytest.mark.parametrize("cls", SHAPERS)
WIDTH = 20


@pytest.fixture
def train():
    return make_set(width=WIDTH)


@pytest.fixture
def test():
    """Features of which some are negative, and one row is 0."""
    data = make_set(n=40, width=WIDTH, seed=1)
    features = data.features - 0.5
    features[0] = 0
    return of.FeatureSet(**{**data.tensors(), "features": features})


def numbers(train):
    return [np.asarray(value, np.float64) for value in (train.features, train.head_weight, train.head_bias)]


def by_rows(train, test, shape, scale=lambda f: 1.0, mask=1.0):
    """−log Σ exp of scale(f) · (W shape(f) + b), in a loop."""
    _, weight, bias = numbers(train)
    rows = np.asarray(test.features, np.float64)
    logits = np.array([scale(f) * ((mask * weight) @ shape(f) + bias) for f in rows])
    top = logits.max(1)
    return -top - np.log(np.exp(logits - top[:, None]).sum(1))


def check(detector, train, test, **how):
    found = detector.fit(train).score(test)
    np.testing.assert_allclose(found, by_rows(train, test, **how), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("settings", "percent"), [({}, 90), ({"percentile": 33}, 33), ({"percentile": 100}, 100)])
def test_react(settings, percent, train, test):
    limit = np.percentile(numbers(train)[0], percent)
    check(of.ReAct(**settings), train, test, shape=lambda f: np.minimum(f, limit))


@pytest.mark.parametrize(("settings", "low", "high"), [({}, 10, 90), ({"low": 40, "high": 60.5}, 40, 60.5)])
def test_vra(settings, low, high, train, test):
    bottom, top = np.percentile(numbers(train)[0], [low, high])
    check(of.VRA(**settings), train, test, shape=lambda f: np.where(f < bottom, 0, np.minimum(f, top)))


def test_vra_at_its_limits():
    train = of.FeatureSet(np.arange(11.0)[:, None], head_weight=[[1.0]])
    fitted = of.VRA(20, 80).fit(train)
    assert fitted.thresholds_.tolist() == [2.0, 8.0]
    assert fitted.score(of.FeatureSet([[1.9], [2.0], [8.0], [8.1]])).tolist() == [0, -2, -8, -8]


def largest(f, k):
    return np.argsort(-f, kind="stable")[:k]


def ratio(f, k):
    positive = np.maximum(f, 0)
    top = np.sort(positive)[-k:].sum()
    return positive.sum() / top if top else 1.0


def ash(kind, k):
    def shape(f):
        found = np.zeros_like(f)
        for i in largest(f, k):
            found[i] = {"B": f.sum() / k, "S": f[i] * np.exp(ratio(f, k)), "P": f[i]}[kind]
        return found

    return shape


@pytest.mark.parametrize(("settings", "kind", "k"), [
    ({}, "B", 2), ({"kind": "S"}, "S", 2), ({"kind": "P"}, "P", 2), ({"percentile": 100}, "B", 1),
    ({"kind": "S", "percentile": 42.0}, "S", 12), ({"kind": "P", "percentile": 1.0}, "P", 20),
])  # fmt: skip
def test_ash(settings, kind, k, train, test):
    check(of.ASH(**settings), train, test, shape=ash(kind, k))


@pytest.mark.parametrize(("settings", "k"), [({}, 3), ({"percentile": 50.0}, 10), ({"percentile": 100}, 1)])
def test_scale(settings, k, train, test):
    check(of.SCALE(**settings), train, test, shape=lambda f: f * np.exp(ratio(f, k)))


@pytest.mark.parametrize(("settings", "k"), [({}, 1), ({"percentile": 50.0}, 10), ({"percentile": 100}, 1)])
def test_lts(settings, k, train, test):
    check(of.LTS(**settings), train, test, shape=lambda f: f, scale=lambda f: ratio(f, k) ** 2)


def test_of_equal_activations_the_first_count():
    train = of.FeatureSet(np.eye(4), head_weight=[[1.0, 10.0, 100.0, 1000.0]])
    scores = of.ASH(percentile=50).fit(train).score(of.FeatureSet([[1.0, 1, 1, 1], [0, 0, 5, 0], [2, 0, 0, 2]]))
    assert scores.tolist() == [-22.0, -252.5, -2002.0]


@pytest.mark.parametrize("cls", [of.SCALE, of.ASH, of.LTS])
def test_ratios_without_end_stay_finite(cls):
    """One of 100,000 equal activations is kept, so that the ratio is 100,000; it is cut off at 500."""
    train = of.FeatureSet(np.eye(2, 100_000), head_weight=np.full((2, 100_000), 1e-10))
    settings = {"kind": "S"} if cls is of.ASH else {}
    fitted = cls(percentile=100, **settings).fit(train)
    assert fitted.score(of.FeatureSet(np.full((1, 100_000), 3e38))).isfinite().all()
    two = torch.full((1, 100_000), 1e-200, dtype=torch.float64)
    expected = {of.SCALE: 1e-205 * np.exp(500), of.ASH: 1e-210 * np.exp(500), of.LTS: 500**2 * 1e-205}[cls]
    torch.testing.assert_close(fitted._seen(two), torch.full((1, 2), expected, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("settings", "percent"), [({}, 90), ({"percentile": 30}, 30)])
def test_dice(settings, percent, train, test):
    features, weight, _ = numbers(train)
    contributions = weight * features.mean(0)
    mask = contributions > np.percentile(contributions, percent)
    check(of.DICE(**settings), train, test, shape=lambda f: f, mask=mask)
    assert int((of.DICE(**settings).fit(train).weight_ != 0).sum()) == mask.sum()


def test_dice_leaves_out_what_is_at_the_limit():
    train = of.FeatureSet([[1.0, 1.0]], head_weight=[[1.0, 2.0], [2.0, 2.0]])
    assert of.DICE(50).fit(train).weight_.tolist() == [[0, 0], [0, 0]]
    assert of.DICE(33).fit(train).weight_.tolist() == [[0, 2], [2, 2]]


class TestTheDetectorOfLogits:
    @every
    @pytest.mark.parametrize("inner", [of.MSP(), of.EnergyLogits(2.0), of.MaxLogit()])
    def test_it_sees_the_shaped_logits(self, cls, inner, train, test):
        shaper = cls(detector=inner).fit(train)
        features = test.features.double()
        logits = shaper._shaped_logits(features)
        expected = inner.fit(train).score(of.FeatureSet(features, logits=logits))
        torch.testing.assert_close(shaper.score(test), expected)
        assert shaper.detector is inner
        assert shaper.detector_ is not inner

    @pytest.mark.parametrize("inner", [of.KLMatching(), of.OpenMax(tail=5), of.TempScale()])
    def test_it_is_fitted_on_shaped_logits(self, inner, train, test, tmp_path):
        shaper = of.SCALE(detector=inner)
        assert shaper.needs_to_fit == ("head", *(name for name in inner.needs_to_fit if name != "logits"))
        shaper.fit(of.FeatureSet(**{**train.tensors(), "logits": None}))
        logits = shaper._shaped_logits(train.features.double())
        alone = type(inner)(**shaper.detector.__dict__).fit(of.FeatureSet(**{**train.tensors(), "logits": logits}))
        for name, value in alone._state().items():
            torch.testing.assert_close(shaper._state()[f"detector.{name}"], value)
        shaper.save(tmp_path / "d.safetensors")
        loaded = of.load(tmp_path / "d.safetensors")
        assert torch.equal(loaded.score(test), shaper.score(test))
        assert repr(loaded) == repr(shaper)
        train.save(tmp_path / "f.npz")
        streamed = of.SCALE(detector=inner).fit(of.open_features(tmp_path / "f.npz"))
        torch.testing.assert_close(streamed.score(test), shaper.score(test))

    def test_what_it_lacks_is_said(self, train):
        bare = of.FeatureSet(train.features, head_weight=train.head_weight)
        with pytest.raises(of.MissingFieldError, match=r"ReAct.fit needs labels"):
            of.ReAct(detector=of.OpenMax()).fit(bare)
        of.ReAct().fit(bare)

    @every
    @pytest.mark.parametrize("wrong", [of.KNN(), of.ODIN(), of.EnergyLogits, "MSP", of.ReAct()])
    def test_what_does_not_score_logits(self, cls, wrong, train):
        with pytest.raises(of.InputError, match=r"^detector is .*; it must be a detector that scores logits"):
            cls(detector=wrong).fit(train)

    @every
    def test_its_settings_are_checked(self, cls, train):
        with pytest.raises(of.InputError, match=r"^detector is EnergyLogits\(temperature=-1\): temperature is -1; "):
            cls(detector=of.EnergyLogits(-1)).fit(train)


@pytest.mark.parametrize(("made", "said"), [
    (of.ReAct(100.1), "percentile is 100.1"),
    (of.ASH(percentile=100.1), "percentile is 100.1"),
    (of.DICE(100.1), "percentile is 100.1"),
    (of.VRA(high=100.1), "high is 100.1"),
    (of.VRA(low=100.1), "low is 100.1"),
    (of.VRA(90, 90), "low is 90; it must be below high, which is 90"),
    (of.ASH("X"), "kind is 'X'; it must be one of B, S, P"),
])  # fmt: skip
def test_settings_out_of_range(made, said, train):
    with pytest.raises(of.InputError, match=f"^{said}"):
        made.fit(train)


def test_shapers_among_several(train, test):
    fused = of.Fused([of.ReAct(), of.ViM(), of.fDBD()]).fit(make_set(n=300, width=WIDTH))
    assert fused.score(test).isfinite().all()
    with pytest.raises(of.MissingFieldError, match="head_weight"):
        of.Fused([of.ReAct()]).fit(of.FeatureSet(train.features))


def in_pieces(values, size):
    return lambda: (torch.as_tensor(values[i : i + size]) for i in range(0, len(values), size))


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30), st.floats(0, 100))
def test_any_numbers(values, percent):
    expected = np.percentile(np.array(values), percent)
    (found,) = percentiles(in_pieces(torch.tensor(values, dtype=torch.float64), 11), [percent])
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-300 + 1e-12 * max(map(abs, values)))


def test_many_equal_numbers_and_zeros_of_either_sign():
    values = np.array([0.0] * 900 + [-0.0] * 50 + [1.0] * 49 + [5.0])
    assert percentiles(in_pieces(values, 64), [50, 97, 100]) == [0.0, 1.0, 5.0]
    assert percentiles(in_pieces(-values, 64), [0, 3, 50]) == [-5.0, pytest.approx(-1.0), 0.0]


def test_exact_where_numbers_differ_in_their_last_bit():
    values = 1 + np.arange(9) * np.finfo(np.float64).eps
    assert percentiles(in_pieces(values[::-1].copy(), 2), [0, 12.5, 50, 100]) == [*values[[0, 1, 4, 8]]]
