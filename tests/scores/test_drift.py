"""Drift: false alarms are as rare as promised, real drift is found, and what was seen survives a restart."""

import json
import math
import pickle
import threading

import numpy as np
import pytest
import torch

import outfield as of
from outfield.scores import drift as module
from outfield.scores.betting import BETS, anytime_interval, play


def threshold(n=200, seed=0, source=None):
    return of.Threshold.fit(np.random.default_rng(seed).standard_normal(n), source=source)


def mixed(rng, count, share, shift=3.0):
    scores = rng.standard_normal(count)
    scores[rng.random(count) < share] += shift
    return scores


@pytest.mark.parametrize("n", [200, 1000])
def test_false_alarms_are_as_rare_as_promised(n):
    """Over calibration draws and long streams; 0.1, so that so few can refute it: 29 of 200 or more have probability 0.02."""
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng([n, seed])
        drift = of.Drift(of.Threshold.fit(rng.standard_normal(n)), alpha=0.1, seed=seed)
        alarms += drift.update(rng.standard_normal(4000))
    assert alarms <= 28


@pytest.mark.parametrize(("n", "quiet", "most"), [(1000, 0, 250), (1000, 20_000, 500), (200, 2000, 800)])
def test_ten_per_cent_of_ood_samples_are_found(n, quiet, most):
    """OOD scores three standard deviations higher; ``most`` samples after the change in nine of ten streams."""
    late = 0
    for seed in range(10):
        rng = np.random.default_rng([n, seed])
        drift = of.Drift(of.Threshold.fit(rng.standard_normal(n)), seed=seed)
        assert not (quiet and drift.update(rng.standard_normal(quiet)))
        late += not drift.update(mixed(rng, most, 0.1))
    assert late <= 1


def test_scores_that_are_too_low_are_drift_too():
    rng = np.random.default_rng(0)
    drift = of.Drift(threshold(1000))
    assert drift.update(rng.standard_normal(1000) - 0.5)
    assert drift.summary()["share_ood"] < 0.03


def test_what_it_tells():
    rule = threshold(99)
    scores = mixed(np.random.default_rng(1), 300, 0.2)
    drift = of.Drift(rule, window=50, bins=10)
    drift.update(scores)
    told = drift.summary()
    p = rule.p_value(scores).numpy()
    verdicts = rule.is_ood(scores).numpy()
    assert (told["samples"], told["ood"]) == (300, verdicts.sum())
    assert told["share_ood"] == pytest.approx(verdicts.mean())
    assert (told["share_low"], told["share_high"]) == drift.share_interval(0.95) == drift.share_interval()
    assert told["confidence"] == 0.95
    assert (told["recent_samples"], told["recent_share"]) == (50, pytest.approx(verdicts[-50:].mean()))
    assert told["expected"] == drift.p_limit == rule.p_limit == pytest.approx(0.05)
    assert told["histogram"] == [int(((p > b / 10 + 1e-9) & (p <= (b + 1) / 10 + 1e-9)).sum()) for b in range(10)]
    assert told["limit"] == pytest.approx(math.log(100))
    assert told["largest_log_wealth"] >= told["log_wealth"]
    assert told["alpha"] == 0.01
    assert told["alarm"] is drift.alarm is True
    json.dumps(told)


def test_the_alarm_is_where_the_wealth_first_reaches_one_over_alpha():
    p = np.full(40, 0.01)
    _, wealth = play(np.full(BETS, -np.inf), 0, p)
    first = int((wealth >= math.log(100)).argmax())
    drift = of.Drift()
    assert not drift.update_p_values(p[:first])
    assert drift.update_p_values(p[first])
    assert drift.summary()["alarm_at"] == first + 1
    assert drift.summary()["log_wealth"] == pytest.approx(wealth[first])
    drift.update_p_values(1 - np.random.default_rng(0).random(500))
    told = drift.summary()
    assert drift.alarm
    assert told["alarm_at"] == first + 1
    assert told["log_wealth"] < told["largest_log_wealth"] == pytest.approx(wealth[first])


def test_an_alarm_at_exactly_the_limit():
    _, wealth = play(np.full(BETS, -np.inf), 0, np.full(5, 0.01))
    assert of.Drift(alpha=math.exp(-wealth[-1]) * (1 + 1e-12)).update_p_values(np.full(5, 0.01))
    assert not of.Drift(alpha=math.exp(-wealth[-1]) * (1 - 1e-9)).update_p_values(np.full(5, 0.01))
    assert of.Drift(alpha=1.0).update_p_values(0.5) == (play(np.full(BETS, -np.inf), 0, np.array([0.5]))[1][0] >= 0)


def test_one_at_a_time_is_all_at_once(monkeypatch):
    scores = mixed(np.random.default_rng(2), 60, 0.1)
    one, many, pieces = (of.Drift(threshold(), window=7) for _ in range(3))
    for score in scores:
        one.update(float(score))
    many.update(scores)
    monkeypatch.setattr(module, "AT_ONCE", 16)
    pieces.update(torch.from_numpy(scores))
    for other in (many, pieces):
        for key, value in one.summary().items():
            assert other.summary()[key] == pytest.approx(value), key


def test_scores_and_their_p_values_say_the_same():
    rule = threshold(500)
    scores = mixed(np.random.default_rng(3), 400, 0.1)
    by_scores, by_p = of.Drift(rule), of.Drift(rule)
    by_scores.update(scores)
    by_p.update_p_values(rule.p_value(scores).float())  # as float32 has them
    assert by_p.summary() == by_scores.summary()
    alone = of.Drift(calibration=500)
    alone.update_p_values(rule.p_value(scores))
    assert alone.summary() == by_scores.summary()


def test_equal_scores_are_ordered_by_lot():
    """Scores of three values: the false-alarm rate holds; the seed decides, and decides the same each time."""
    alarms, wealth = 0, set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        drift = of.Drift(of.Threshold.fit(rng.integers(0, 3, 100)), alpha=0.1, seed=seed)
        alarms += drift.update(rng.integers(0, 3, 3000))
    assert alarms <= 11
    for seed in (0, 0, 1):
        drift = of.Drift(of.Threshold.fit(np.arange(60) % 3), seed=seed)
        drift.update(np.arange(50) % 3)
        wealth.add(drift.summary()["log_wealth"])
    assert len(wealth) == 2


def test_settings():
    drift = of.Drift()
    assert (drift.calibration, drift.keep, drift.alpha, drift.window, drift.bins, drift.seed) == (
        None, 0.95, 0.01, 1000, 20, 0,
    )  # fmt: skip
    assert drift.p_limit == pytest.approx(0.05)
    assert of.Drift(calibration=19).p_limit == 1 / 20
    assert of.Drift(calibration=18).p_limit == 0
    assert of.Drift(threshold(), calibration=200, keep=0.95).calibration == 200
    of.Drift(window=1, bins=1, alpha=1, calibration=1)


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"alpha": 0}, "alpha"), ({"alpha": 1.1}, "alpha"), ({"window": 0}, "window"), ({"bins": 0}, "bins"),
     ({"bins": 2.5}, "bins"), ({"seed": -1}, "seed"), ({"calibration": 0}, "calibration"), ({"keep": 1}, "keep"),
     ({"threshold": 0.5}, "threshold"), ({"threshold": threshold(), "calibration": 201}, "calibration"),
     ({"threshold": threshold(), "keep": 0.9}, "keep"), ({"window": 10**6 + 1}, "window")],
)  # fmt: skip
def test_bad_settings_are_refused(settings, name):
    with pytest.raises(of.InputError, match=name):
        of.Drift(**settings)


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.0001, float("nan"), [0.5, 0.0], [], "x", [[0.5]], None])
def test_bad_p_values_are_refused(bad):
    drift = of.Drift(calibration=9)
    with pytest.raises(of.InputError, match="p_values"):
        drift.update_p_values(bad)
    assert drift.summary()["samples"] == 0


def test_p_values_of_another_calibration_are_refused():
    with pytest.raises(of.InputError, match=r"p_values\[1\] is 0\.25, which 9 calibration scores cannot give"):
        of.Drift(calibration=9).update_p_values([0.5, 0.25])
    with pytest.raises(of.InputError, match="multiples of 1 / 10"):
        of.Drift(calibration=9).update_p_values([1e-9])


def test_scores_of_another_detector_are_refused():
    with pytest.raises(of.InputError, match="no threshold"):
        of.Drift(calibration=9).update([0.5])
    drift = of.Drift(threshold(source="SSD 1"))
    scores = torch.zeros(3)
    scores.outfield_source = "KNN 2"
    with pytest.raises(of.InputError, match="scores of KNN 2"):
        drift.update(scores)
    with pytest.raises(of.InputError, match="NaN"):
        drift.update([1.0, float("nan")])
    assert drift.summary()["samples"] == 0
    scores.outfield_source = "SSD 1"
    drift.update(scores)
    drift.update(torch.tensor(1.0))
    drift.update([float("inf")])
    assert drift.summary()["samples"] == 5


def same(one, other):
    assert one.summary() == other.summary()
    for (name, left), (_, right) in zip(one.state().items(), other.state().items(), strict=True):
        assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right, name


@pytest.mark.parametrize("make", [lambda: of.Drift(threshold(source="SSD 1"), window=30, seed=4), lambda: of.Drift()])
def test_a_restart_goes_on_as_if_nothing_had_happened(make, tmp_path):
    rng = np.random.default_rng(6)
    kept = make()
    feed = kept.update if kept.threshold is not None else kept.update_p_values
    feed(rng.random(100))
    kept.save(tmp_path / "drift.safetensors")
    loaded = of.Drift.load(tmp_path / "drift.safetensors", kept.threshold)
    copies = [loaded, of.Drift.of_state(kept.state()), pickle.loads(pickle.dumps(kept))]
    more = rng.random(80)
    feed(more)
    for copy in copies:
        (copy.update if copy.threshold is not None else copy.update_p_values)(more)
        same(copy, kept)


def test_a_new_drift_can_be_kept_and_a_state_is_a_copy(tmp_path):
    drift = of.Drift(threshold())
    drift.save(tmp_path / "drift.safetensors")
    same(of.Drift.load(tmp_path / "drift.safetensors"), drift)
    state = drift.state()
    drift.update([0.1])
    assert state["seen"] == int(state["counts"].sum()) == 0


def test_another_threshold_s_state_is_refused(tmp_path):
    drift, path = of.Drift(threshold()), tmp_path / "drift.safetensors"
    drift.save(path)
    others = [
        threshold(seed=1),
        threshold(source="KNN 2"),
        of.Threshold.fit(np.r_[threshold().reference.numpy()], keep=0.9),
    ]
    for other in others:
        with pytest.raises(of.InputError, match="another threshold"):
            of.Drift.load(path, other)
        with pytest.raises(of.InputError, match="another threshold"):
            of.Drift.of_state(drift.state(), other)
    with pytest.raises(of.InputError, match="another threshold"):
        of.Drift.of_state(of.Drift(calibration=200).state(), threshold())
    assert of.Drift.load(path, threshold()).threshold is not None


def test_reset_begins_anew():
    drift = of.Drift(threshold())
    drift.update(np.full(100, 9.0))
    assert drift.alarm
    drift.reset()
    same(drift, of.Drift(threshold()))
    assert not drift.alarm


def test_in_words():
    drift = of.Drift(threshold(), alpha=0.05)
    assert repr(drift) == "Drift(no samples yet; false alarms with probability 0.05 at most)"
    assert drift.summary()["share_ood"] is drift.summary()["recent_share"] is None
    drift.update(np.r_[np.zeros(15), np.full(5, 9.0)])
    told = repr(drift)
    assert told.startswith("Drift(20 samples, 25.0 % OOD (95 % interval ")
    assert "5.0 expected), 25.0 % of the last 20;" in told
    assert ("DRIFT since about sample" in told) is drift.alarm
    assert told.endswith("an alarm needs 20 to 1 (a false alarm, ever, has probability 0.05 at most))")


@pytest.mark.parametrize("confidence", [0, 1, "x"])
def test_confidence_is_a_share(confidence):
    with pytest.raises(of.InputError, match="confidence"):
        of.Drift().share_interval(confidence)


def test_many_threads_lose_nothing():
    drift = of.Drift(threshold())
    rng = np.random.default_rng(0)
    work = [rng.standard_normal(20) for _ in range(80)]
    threads = [
        threading.Thread(target=lambda part=part: [drift.update(scores) for scores in part])
        for part in (work[:20], work[20:40], work[40:60], work[60:])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = drift.state()
    assert state["seen"] == int(state["counts"].sum()) == int(state["histogram"].sum()) == 1600
    assert state["ood"] == sum(int(drift.threshold.is_ood(scores).sum()) for scores in work)


def test_equal_scores_one_at_a_time_are_all_at_once():
    rule = of.Threshold.fit(np.arange(60) % 3)
    one, many = of.Drift(rule), of.Drift(rule)
    for score in np.arange(50) % 3:
        one.update(score)
    many.update(np.arange(50) % 3)
    assert torch.equal(one.state()["counts"], many.state()["counts"])
    assert one.summary()["log_wealth"] == pytest.approx(many.summary()["log_wealth"])


def evidence(q, k, t):
    """ln of the mixture's likelihood over q's."""
    return math.lgamma(k + 1) + math.lgamma(t - k + 1) - math.lgamma(t + 2) - k * math.log(q) - (t - k) * math.log1p(-q)


@pytest.mark.parametrize(("k", "t"), [(1, 1000), (50, 1000), (999, 1000), (3, 7)])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_ends_are_where_the_evidence_is_enough(k, t, confidence):
    for end in anytime_interval(k, t, confidence):
        assert evidence(end, k, t) == pytest.approx(-math.log(1 - confidence), rel=1e-6)


def test_edges():
    assert anytime_interval(0, 0, 0.95) == (0.0, 1.0)
    low, high = anytime_interval(0, 100, 0.95)
    assert low == 0
    assert (1 - high) ** 100 == pytest.approx(0.05 / 101)
    low, high = anytime_interval(100, 100, 0.95)
    assert high == 1
    assert low**100 == pytest.approx(0.05 / 101)


def test_it_holds_the_truth_at_every_look():
    missed = 0
    for seed in range(300):
        hits = np.cumsum(np.random.default_rng(seed).random(500) < 0.05)
        looks = [anytime_interval(int(hits[t - 1]), t, 0.9) for t in (1, 5, 20, 50, 100, 200, 300, 400, 500)]
        missed += not all(low <= 0.05 <= high for low, high in looks)
    assert 0 < missed <= 0.1 * 300
