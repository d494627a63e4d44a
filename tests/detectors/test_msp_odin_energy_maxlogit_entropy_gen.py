"""What is particular to one detector: its formula, its corner cases."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

import outfield as of
from outfield.detectors import base
from outfield.detectors.logits.msp_odin_energy_maxlogit_entropy_gen import below_top, log_shares


def with_logits(logits):
    return of.FeatureSet(np.ones((len(logits), 2)), logits=logits, odin_logits=logits)


logits = st.lists(st.lists(st.floats(-50, 50), min_size=3, max_size=3), min_size=1, max_size=8).map(np.array)


@given(logits)
def test_msp_is_one_minus_the_largest_probability(values):
    expected = 1 - torch.softmax(torch.tensor(values), 1).amax(1)
    torch.testing.assert_close(
        of.MSP().fit(with_logits(values)).score(with_logits(values)).double(), expected, atol=1e-6, rtol=1e-5
    )


def test_msp_keeps_the_order_of_confident_rows():
    values = np.array([[60.0, 0, 0], [50.0, 0, 0], [40.0, 0, 0]])
    scores = of.MSP().fit(with_logits(values)).score(with_logits(values))
    assert 0 < scores[0] < scores[1] < scores[2]


@given(logits, st.sampled_from([1.0, 10.0, 1000.0]))
def test_odin_orders_rows_as_the_tempered_softmax_does(values, temperature):
    score = of.ODIN(temperature).fit(with_logits(values)).score(with_logits(values)).double()
    top = torch.softmax(torch.tensor(values) / temperature, 1).amax(1)
    expected = temperature * (-top.log() - np.log(3))
    torch.testing.assert_close(score, expected, atol=1e-4, rtol=1e-5)


def test_odin_resolves_small_differences_at_a_high_temperature():
    values = np.array([[10.0, 0, 0], [10.0 + 1e-4, 0, 0]])
    scores = of.ODIN().fit(with_logits(values)).score(with_logits(values))
    assert scores[1] < scores[0]


@given(logits, st.sampled_from([0.25, 1.0, 3.0, 1000.0]))
def test_energy_logits_is_minus_the_tempered_log_sum_exp(values, temperature):
    score = of.EnergyLogits(temperature).fit(with_logits(values)).score(with_logits(values)).double()
    expected = -temperature * torch.tensor(np.exp(values / temperature - 50 / temperature).sum(1)).log() - 50
    torch.testing.assert_close(score, expected, atol=1e-4, rtol=1e-5)


def test_a_device_that_is_named_is_the_one(monkeypatch):
    real = base.resolve_device
    monkeypatch.setattr(base, "resolve_device", lambda d: torch.device("meta") if d == "auto" else real(d))
    assert of.MSP().device.type == "meta"
    assert of.MSP().to("cpu").device.type == "cpu"
    assert of.MSP().to("cpu").to("auto").device.type == "meta"


rows = st.lists(st.lists(st.floats(-50, 50), min_size=4, max_size=4), min_size=1, max_size=8).map(np.array)


def scored(detector, logits):
    data = of.FeatureSet(np.ones((len(logits), 2)), logits=np.asarray(logits))
    return detector.fit(data).score(data).double().numpy()


def shares(row, digits=60):
    """Softmax and one minus it, by Python's decimals."""
    with localcontext() as context:
        context.prec = digits
        terms = [(Decimal(float(value)) - Decimal(float(max(row)))).exp() for value in row]
        return [t / sum(terms) for t in terms], [(sum(terms) - t) / sum(terms) for t in terms]


def powers(row, gamma, classes):
    with localcontext() as context:
        context.prec = 60
        found = sorted(zip(*shares(row), strict=True), reverse=True)[:classes]
        return float(sum((p * q) ** Decimal(gamma) for p, q in found))


@given(rows)
def test_max_logit(logits):
    np.testing.assert_allclose(scored(of.MaxLogit(), logits), [-max(row) for row in logits], rtol=1e-6, atol=1e-30)


@given(rows)
def test_entropy_is_that_of_scipy(logits):
    p = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(scored(of.Entropy(), logits), entropy(p, axis=1), rtol=1e-6, atol=1e-14)


@given(rows, st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.sampled_from([1, 2, 3, 4, 5, 100]))
def test_gen_is_the_sum_of_powers(logits, gamma, classes):
    expected = [powers(row, gamma, classes) for row in logits]
    np.testing.assert_allclose(scored(of.GEN(gamma, classes), logits), expected, rtol=1e-6, atol=1e-30)


def test_gen_s_settings():
    assert (of.GEN().gamma, of.GEN().classes) == (0.1, 100)
    logits = np.linspace(0, 3, 130)[None]
    assert scored(of.GEN(), logits) == pytest.approx(powers(logits[0], 0.1, 100))
    for wrong in ({"gamma": 1.001}, {"gamma": 0.0}, {"classes": 0}):
        with pytest.raises(of.InputError, match=f"^{next(iter(wrong))} is "):
            scored(of.GEN(**wrong), logits)
    scored(of.GEN(gamma=1), logits)


@pytest.mark.parametrize("name", ["Entropy", "GEN"])
def test_confident_rows_keep_their_order(name):
    """Their largest probability rounds to 1 from a margin of 37 on."""
    scores = scored(of.DETECTORS[name](), [[margin, 0.0, 0.0] for margin in (80.0, 60.0, 50.0, 40.0, 38.0)])
    assert (np.diff(scores) > 0).all()
    assert scores[0] > 0


def test_entropy_of_a_confident_row_is_exact():
    rest = 2 * math.exp(-60)
    assert scored(of.Entropy(), [[60.0, 0.0, 0.0]])[0] == pytest.approx(rest + 60 * rest, rel=1e-6)


@pytest.mark.parametrize(
    "name", ["MSP", "ODIN", "EnergyLogits", "MaxLogit", "Entropy", "GEN", "KLMatching", "TempScale", "OpenMax"]
)
@pytest.mark.parametrize("logits", [[[1e308, -1e308, 0.0]], [[-1e308, -1.7e308, -1e308]], [[1e300, 1e300, 0.0]]])
def test_huge_logits_score_finite(name, logits, train_set):
    data = with_logits(np.array(logits))
    assert torch.isfinite(of.DETECTORS[name]().fit(train_set).score(data)).all()


def test_a_single_class():
    with pytest.warns(of.OutfieldWarning, match=r"score: logits has one column.*the logits 0 and s"):
        assert scored(of.Entropy(), [[3.0]]) == scored(of.GEN(), [[3.0]]) == 0


class TestShares:
    def test_both_sum_up(self):
        logits = torch.tensor([[0.0, 1.0, 1.0], [800.0, 0.0, -900.0]], dtype=torch.float32)
        for scale in (1.0, 0.25):
            log_p, log_rest = log_shares(logits, scale)
            assert log_p.dtype == torch.float64
            torch.testing.assert_close(log_p, torch.log_softmax(scale * logits.double(), 1))
            for row, found in zip(scale * logits.double(), log_rest, strict=True):
                expected = [float(q.ln()) for q in shares(row.tolist(), digits=800)[1]]
                torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-300)

    def test_the_distance_below_the_top_stays_finite(self):
        logits = torch.tensor([[1.7e308, -1.7e308]], dtype=torch.float64)
        lowest = torch.finfo(torch.float64).min
        assert below_top(logits).tolist() == below_top(logits, 10.0).tolist() == [[0.0, lowest]]
        assert below_top(logits, 0.5).tolist() == [[0.0, lowest / 2]]
