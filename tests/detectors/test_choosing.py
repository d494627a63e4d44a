"""Choosing a fused detector by stand-ins: the sums are those of Fused, the best is found, and nothing else decides."""

from __future__ import annotations

import contextlib
import itertools
import math

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors import choosing, trials
from outfield.detectors.calibration import Calibration
from outfield.detectors.candidates import default_candidates
from outfield.detectors.choosing import _voted
from outfield.detectors.held_out import split_off
from outfield.stand_in import StandIns

TRAIN, HELD_OUT = make_set(300, seed=1), make_set(120, seed=2)
STAND_INS = {
    "near": {"turned": make_set(80, seed=3, shift=0.1), "mixed": make_set(70, seed=4, shift=0.15)},
    "far": {"jigsaw": make_set(60, seed=5, shift=0.5)},
}
REAL = {"svhn": make_set(90, seed=6, shift=0.2)}
CANDIDATES = [of.MSP(), of.KNN(k=5), of.SSD(), of.SSD(on="spread")]
NAMES = ("MSP", "KNN", "SSD", "SSD on spread")


@pytest.fixture(scope="module")
def choice():
    return of.choose(TRAIN, HELD_OUT, STAND_INS, CANDIDATES, most_members=3, real=REAL, seed=7)


def test_every_sum_is_tried_once(choice):
    expected = {names for size in (1, 2, 3) for names in itertools.combinations(NAMES, size)}
    assert len(choice.trials) == len(expected) == 14
    assert {trial.members for trial in choice.trials} == expected
    assert [trial.members for trial in choice.singles] == [t.members for t in choice.trials if len(t.members) == 1]


def naive_shares(members, weights, calibrating, judged, rows):
    """The share of rows that is accepted where 90, 93, 95 and 97 % of the judged ID rows are."""
    parts = [(weight, member, Calibration.of(member.score(calibrating))) for weight, member in zip(weights, members)]

    def total(data):
        return sum(weight * one.surprise(member.score(data)) for weight, member, one in parts)

    ids, scores = total(judged).sort().values, total(rows)
    return [float((scores <= ids[math.ceil(kept * len(ids)) - 1]).double().mean()) for kept in (0.90, 0.93, 0.95, 0.97)]


def naive_trial(members, weights, sets):
    """Both halves calibrate in turn, and the others are the ID rows."""
    order = torch.randperm(120, generator=torch.Generator().manual_seed(7))
    halves = HELD_OUT[order[:60]], HELD_OUT[order[60:]]
    found = {}
    for name, rows in sets.items():
        sides = [naive_shares(members, weights, *two, rows) for two in (halves, halves[::-1])]
        found[name] = np.mean(sides, axis=0)
    return found


def check_trial(trial, members, weights):
    found = naive_trial(members, weights, STAND_INS["near"] | STAND_INS["far"])
    assert trial.fpr95 == pytest.approx({name: shares[2] for name, shares in found.items()})
    assert trial.real == pytest.approx({"svhn": naive_trial(members, weights, REAL)["svhn"][2]})
    assert trial.near == pytest.approx((found["turned"][2] + found["mixed"][2]) / 2)
    assert trial.far == pytest.approx(found["jigsaw"][2])
    assert trial.mean == pytest.approx((trial.near + trial.far) / 2)
    loss = ((found["turned"].mean() + found["mixed"].mean()) / 2 + found["jigsaw"].mean()) / 2
    assert trial.loss == pytest.approx(loss)


def test_a_trial_is_what_a_naive_computation_gives(choice):
    fitted = {name: of.Fused([one]).fit(TRAIN, HELD_OUT).members_[0] for name, one in zip(NAMES, CANDIDATES)}
    for trial in (*choice.trials, choice.chosen):
        check_trial(trial, [fitted[name] for name in trial.members], [1.0] * len(trial.members))


def test_the_best_one_is_chosen_and_fitted(choice):
    losses = [trial.loss for trial in choice.trials]
    assert losses == sorted(losses)
    assert losses[0] < losses[-1]
    assert choice.best is choice.trials[0]
    assert choice.detector.names == choice.best.members == choice.chosen.members
    assert choice.detector.weights is None
    assert choice.weights == dict.fromkeys(choice.best.members, 1.0)
    by_name = dict(zip(NAMES, CANDIDATES, strict=True))
    again = of.Fused([by_name[name] for name in choice.best.members], seed=7).fit(TRAIN, HELD_OUT)
    assert torch.equal(choice.detector.score(REAL["svhn"]), again.score(REAL["svhn"]))


class TestVotes:
    def test_one_in_fifty_of_the_sums_votes(self):
        best_first = [(0, 1), (1, 2), (1,), *[(3,)] * 145]
        assert _voted(best_first[:99], 4) == [1.0, 1.0, 0.0, 0.0]
        assert _voted(best_first[:100], 4) == [0.5, 1.0, 0.5, 0.0]
        assert _voted(best_first[:148], 4) == [0.5, 1.0, 0.5, 0.0]
        assert _voted([*best_first, (3,), (3,)], 4) == [pytest.approx(1 / 3), 1.0, pytest.approx(1 / 3), 0.0]

    def test_a_hundred_at_most(self):
        best_first = [*[(0,)] * 60, *[(1,)] * 40, *[(2,)] * 9900]
        assert _voted(best_first, 3) == [1.0, pytest.approx(2 / 3), 0.0]

    def test_what_hardly_any_sum_has_is_left_out(self):
        best_first = [*[(0, 1)] * 9, *[(0, 2)] * 10, *[(0,)] * 81, *[(3,)] * 4900]
        assert _voted(best_first, 4) == [1.0, 0.0, pytest.approx(0.1), 0.0]

    def test_the_votes_are_the_weights(self, monkeypatch):
        monkeypatch.setattr(choosing, "ONE_IN", 2)
        choice = of.choose(TRAIN, HELD_OUT, STAND_INS, CANDIDATES, most_members=3, real=REAL, seed=7)
        votes = {name: sum(name in trial.members for trial in choice.trials[:7]) for name in NAMES}
        expected = {name: count / max(votes.values()) for name, count in votes.items() if count}
        assert len({*expected.values()}) > 1
        assert choice.weights == pytest.approx(expected)
        assert choice.chosen.members == choice.detector.names == tuple(expected)
        again = of.Fused(
            [dict(zip(NAMES, CANDIDATES))[name] for name in expected], seed=7, weights=[*expected.values()]
        )
        again.fit(TRAIN, HELD_OUT)
        assert torch.equal(choice.detector.score(REAL["svhn"]), again.score(REAL["svhn"]))
        check_trial(choice.chosen, again.members_, again.weights)


def test_of_equal_sums_the_smaller_is_taken():
    far = {"far": {"away": make_set(60, seed=8, shift=40.0)}}
    choice = of.choose(TRAIN, HELD_OUT, far, [of.SSD(), of.SSD(floor=1e-5)])
    assert len({trial.loss for trial in choice.trials}) == 1
    assert choice.best.members in [("SSD floor=1e-06",), ("SSD floor=1e-05",)]
    assert choice.best.near == choice.best.far == choice.best.fpr95["away"]


def test_members_of_one_kind_are_told_apart():
    choice = of.choose(TRAIN, HELD_OUT, STAND_INS, [of.KNN(k=k) for k in (1, 5, 20)], most_members=2)
    assert repr(choice.detector.members) == repr(tuple(of.KNN(k=int(name[6:])) for name in choice.best.members))


def test_real_sets_decide_nothing(choice):
    for real in (None, {"other": STAND_INS["far"]["jigsaw"]}):
        other = of.choose(TRAIN, HELD_OUT, STAND_INS, CANDIDATES, most_members=3, real=real, seed=7)
        assert [trial.members for trial in other.trials] == [trial.members for trial in choice.trials]
        assert other.detector.fingerprint() == choice.detector.fingerprint()
    assert other.trials[0].real != choice.trials[0].real


def test_the_seed_splits_the_held_out_rows(choice):
    other = of.choose(TRAIN, HELD_OUT, STAND_INS, CANDIDATES, most_members=3, seed=8)
    assert {t.members: t.mean for t in other.trials} != {t.members: t.mean for t in choice.trials}


def test_candidates_that_lack_a_field_are_left_out_and_named():
    choice = of.choose(TRAIN, HELD_OUT, STAND_INS, [of.KNN(k=5), of.SSD(on="stage2")])
    assert choice.best.members == ("KNN",)
    assert list(choice.skipped) == ["SSD(floor=1e-06, on='stage2', ridge=0.0)"]
    assert "needs stage2" in choice.skipped["SSD(floor=1e-06, on='stage2', ridge=0.0)"]
    choice = of.choose(TRAIN, HELD_OUT, STAND_INS, [of.KNN(k=5), of.KNN(k=301)])
    name = "KNN(k=301, on='features', index='exact', probes=0)"
    assert choice.skipped == {name: "k is 301 but there are only 300 training samples; lower k"}
    with pytest.raises(of.InputError, match="no candidate could be fitted: SSD"):
        of.choose(TRAIN, HELD_OUT, STAND_INS, [of.SSD(on="stage2")])


def test_candidates_that_this_data_does_not_allow_are_left_out_and_named():
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 8, generator=rng)

    def plane(n):
        """Rows in four of eight dimensions."""
        features = torch.rand(n, 4, generator=rng) @ torch.eye(4, 8)
        head = {"head_weight": weight, "head_bias": torch.zeros(5)}
        return of.FeatureSet(features, labels=torch.arange(n) % 5, logits=features @ weight.T, **head)

    narrow, other = plane(300), plane(200)
    with pytest.raises(of.InputError, match="nothing to match the logits with"):
        of.ViM(dimension=6).fit(narrow)
    choice = of.choose(narrow, other, {"near": {"far away": other}}, [of.KNN(k=5), of.ViM(dimension=6)])
    assert choice.best.members == ("KNN",)
    (reason,) = choice.skipped.values()
    assert "nothing to match the logits with" in reason


def test_settings_are_looked_at_before_anything_is_fitted(monkeypatch):
    monkeypatch.setattr(of.KNN, "_fit", lambda self, train: pytest.fail("was fitted"))
    with pytest.raises(of.InputError, match="k is 0"):
        of.choose(TRAIN, HELD_OUT, STAND_INS, [of.KNN(k=5), of.KNN(k=0)])


def test_four_members_at_most_unless_one_says_otherwise(monkeypatch):
    candidates = [of.KNN(k=k) for k in range(1, 7)]
    choice = of.choose(TRAIN, HELD_OUT, STAND_INS, candidates)
    assert max(len(trial.members) for trial in choice.trials) == 4
    assert len(choice.trials) == 6 + 15 + 20 + 15
    monkeypatch.setattr(choosing, "MOST_SUMS", 62)
    with pytest.raises(of.InputError, match="6 candidates have more than 62 sums of up to 6"):
        of.choose(TRAIN, HELD_OUT, STAND_INS, candidates, most_members=6)
    monkeypatch.setattr(choosing, "MOST_SUMS", 63)
    assert len(of.choose(TRAIN, HELD_OUT, STAND_INS, candidates, most_members=6).trials) == 63


def test_only_sums_that_will_be_tried_are_counted(monkeypatch):
    candidates = [of.KNN(k=k) for k in range(1, 7)]
    monkeypatch.setattr(choosing, "MOST_SUMS", 21)
    assert len(of.choose(TRAIN, HELD_OUT, STAND_INS, candidates, most_members=2).trials) == 21
    monkeypatch.setattr(choosing, "MOST_SUMS", 20)
    with pytest.raises(of.InputError, match="6 candidates have more than 20 sums of up to 2"):
        of.choose(TRAIN, HELD_OUT, STAND_INS, candidates, most_members=2)


def test_how_many_sums_are_too_many():
    with pytest.raises(of.InputError, match=r"60 candidates have more than 200,000 sums of up to 4"):
        of.choose(TRAIN, HELD_OUT, STAND_INS, [of.KNN()] * 60)


@pytest.mark.parametrize("seed", [-1, 0.5, "a", None])
def test_seeds(seed):
    with pytest.raises(of.InputError, match=f"seed is {seed!r}; it must be a whole number at least 0"):
        of.choose(TRAIN, HELD_OUT, STAND_INS, CANDIDATES, seed=seed)


def test_the_seed_is_0_unless_one_says_otherwise():
    found, expected = (of.choose(TRAIN, HELD_OUT, STAND_INS, CANDIDATES, **more) for more in ({}, {"seed": 0}))
    assert [trial.fpr95 for trial in found.trials] == [trial.fpr95 for trial in expected.trials]
    assert found.detector.fingerprint() == expected.detector.fingerprint()


def test_progress_is_told(monkeypatch):
    told = []

    @contextlib.contextmanager
    def bar(text, total, unit):
        told.append((text, total, unit))
        yield told.append

    for room in (choosing, trials):
        monkeypatch.setattr(room, "bar", bar)
    of.choose(TRAIN, HELD_OUT, STAND_INS, [of.MSP(), of.SSD()], most_members=1)
    expected = [("fitting candidates", 2, "detectors"), 1, 2, ("scoring candidates", 2, "detectors"), 1, 2]
    assert told == [*expected, ("trying sums", 2, "sums"), 2]


def test_stand_ins_by_the_name_of_their_kind(choice):
    made = StandIns(STAND_INS["near"] | STAND_INS["far"], {"turned": "near", "mixed": "near", "jigsaw": "far"})
    other = of.choose(TRAIN, HELD_OUT, made, CANDIDATES, most_members=3, seed=7)
    assert [trial.members for trial in other.trials] == [trial.members for trial in choice.trials]


def test_rows_alone_will_do():
    choice = of.choose(TRAIN, HELD_OUT, None, CANDIDATES, seed=3)
    again = of.choose(TRAIN, HELD_OUT, of.feature_stand_ins(HELD_OUT, seed=3), CANDIDATES, seed=3)
    assert [trial.fpr95 for trial in choice.trials] == [trial.fpr95 for trial in again.trials]
    assert set(choice.best.fpr95) == {"mixed", "swapped"}
    kept, apart = split_off(TRAIN, 0.1, 3, 40)
    alone = of.choose(TRAIN, candidates=CANDIDATES, seed=3)
    again = of.choose(kept, apart, candidates=CANDIDATES, seed=3)
    assert [trial.fpr95 for trial in alone.trials] == [trial.fpr95 for trial in again.trials]
    assert alone.detector.fingerprint() == again.detector.fingerprint()


class TestDefaultCandidates:
    def test_what_can_be_fitted_is_tried(self):
        found = default_candidates(TRAIN)
        names = of.Fused(found).names
        assert {
            "EnergyLogits",
            "KNN k=1",
            "KNN k=5",
            "KNN k=50",
            "SSD ridge=0.0",
            "SSD ridge=0.3",
            "SSD ridge=1.0",
            "SSD on spread",
            "ViM",
            "fDBD",
        } <= set(names)
        assert [one.k for one in found if isinstance(one, of.KNN)] == [1, 5, 50]
        for one in found:
            type(one)(**vars(one)).fit(TRAIN)

    def test_it_depends_on_the_fields(self):
        bare = of.FeatureSet(TRAIN.features)
        kinds = {type(one).__name__ for one in default_candidates(bare)}
        assert "KNN" in kinds
        assert not {"SSD", "EnergyLogits"} & kinds
        assert [one.k for one in default_candidates(bare[:50]) if isinstance(one, of.KNN)] == [1, 5, 50]
        assert [one.k for one in default_candidates(bare[:49]) if isinstance(one, of.KNN)] == [1, 5]

    def test_neighbours_fit_into_the_smallest_class(self):
        rows = of.FeatureSet(TRAIN.features, labels=[0] * 290 + [1] * 10)
        found = default_candidates(rows)
        assert [one.k for one in found if isinstance(one, of.KNN)] == [1, 5]
        assert len({repr(one) for one in found}) == len(found)

    def test_a_class_of_one_row_leaves_those_without_neighbours(self):
        found = default_candidates(of.FeatureSet(TRAIN.features, labels=[0] * 299 + [1]))
        assert [one.k for one in found if isinstance(one, of.KNN)] == [1]
        assert any(isinstance(one, of.SSD) for one in found)

    def test_they_are_what_choose_tries(self):
        choice = of.choose(TRAIN, HELD_OUT, {"near": STAND_INS["near"]}, most_members=1)
        assert {trial.members[0] for trial in choice.trials} == set(of.Fused(default_candidates(TRAIN)).names)


class TestMistakes:
    @pytest.mark.parametrize("bad", [[], 3, {"mid": {}}, {"near": [3]}, {"near": HELD_OUT}, {}, {"near": {}},
                                     {"near": {"a": HELD_OUT}, "far": [3]}])  # fmt: skip
    def test_stand_ins(self, bad):
        with pytest.raises(of.InputError, match="stand_ins is"):
            of.choose(TRAIN, HELD_OUT, bad, CANDIDATES)

    def test_candidates(self):
        with pytest.raises(of.InputError, match="candidates is"):
            of.choose(TRAIN, HELD_OUT, STAND_INS, [])
        with pytest.raises(
            of.InputError, match=r"KNN\(k=0, on='features', index='exact', probes=0\) cannot be fitted: k is 0"
        ):
            of.choose(TRAIN, HELD_OUT, STAND_INS, [of.KNN(k=0)])
        for bad in (0, 2.5, None):
            with pytest.raises(of.InputError, match="most_members is"):
                of.choose(TRAIN, HELD_OUT, STAND_INS, CANDIDATES, most_members=bad)

    def test_held_out_rows(self):
        with pytest.raises(of.InputError, match="are training rows"):
            of.choose(TRAIN, TRAIN[:100], STAND_INS, CANDIDATES)
        with pytest.raises(of.TooFewSamplesError, match="held_out has 39 rows"):
            of.choose(TRAIN, HELD_OUT[:39], STAND_INS, CANDIDATES)

    def test_held_out_rows_need_no_labels(self):
        bare = of.FeatureSet(HELD_OUT.features, logits=HELD_OUT.logits, spread=HELD_OUT.spread)
        choice = of.choose(TRAIN, bare, STAND_INS, CANDIDATES, most_members=3, seed=7)
        assert choice.detector.names == choice.best.members
        with pytest.raises(of.MissingFieldError, match=r"MSP.score needs logits"):
            of.choose(TRAIN, of.FeatureSet(HELD_OUT.features), STAND_INS, CANDIDATES)
        with pytest.raises(of.MissingFieldError, match=r"Fused.of_fitted needs logits"):
            of.Fused.of_fitted([of.MSP().fit(TRAIN)], of.FeatureSet(HELD_OUT.features))

    def test_of_fitted(self):
        with pytest.raises(
            of.NotFittedError, match=r"KNN\(k=50, on='features', index='exact', probes=0\) is not fitted"
        ):
            of.Fused.of_fitted([of.KNN()], HELD_OUT)
        with pytest.raises(of.TooFewSamplesError, match="39 rows"):
            of.Fused.of_fitted([of.KNN().fit(TRAIN)], HELD_OUT[:39])
        fitted = of.Fused.of_fitted([of.KNN().fit(TRAIN)], HELD_OUT, rule="z", seed=3)
        again = of.Fused([of.KNN()], rule="z", seed=3).fit(TRAIN, HELD_OUT)
        assert torch.equal(fitted.score(TRAIN), again.score(TRAIN))
        assert fitted.fingerprint() == again.fingerprint()


class TestLearnedCandidates:
    @staticmethod
    def names(rows: int) -> list[str]:
        rng = np.random.default_rng(0)
        train = of.FeatureSet(rng.random((rows, 3), np.float32), labels=np.arange(rows) % 2)
        return [repr(one) for one in default_candidates(train)]

    def test_a_corrected_mixture_is_tried_where_there_are_rows_to_learn_from(self):
        expected = [repr(of.EnergyCorrected.quick(temperature)) for temperature in (1000.0, 8000.0)]
        assert [name for name in self.names(5000) if "EnergyCorrected" in name] == expected
        assert not any("EnergyCorrected" in name for name in self.names(4999))
