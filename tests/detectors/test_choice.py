"""Choosing a fused detector by stand-ins: weights are fitted on half of the held-out rows, and nothing else decides."""

import math

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors import CHOICES, Calibration, Rows, choose_views
from outfield.detectors.combined import choice as home
from outfield.detectors.combined.choice import default_candidates
from outfield.detectors.combined.fused import apart
from outfield.detectors.combined.weights import L2, Regression, Terms, best_setting, left_out, loss, weight_path
from outfield.partners import StandIns

TRAIN, HELD_OUT = make_set(300, seed=1), make_set(120, seed=2)
STAND_INS = {
    "near": {"turned": make_set(80, seed=3, shift=0.1), "mixed": make_set(70, seed=4, shift=0.15)},
    "far": {"jigsaw": make_set(60, seed=5, shift=0.5)},
}
REAL = {"svhn": make_set(90, seed=6, shift=0.2)}
CANDIDATES = [of.MSP(), of.KNN(k=5), of.SSD(), of.SSD(field="spread")]
NAMES = ("MSP", "KNN", "SSD", "SSD on spread")
CHOOSES = torch.randperm(120, generator=torch.Generator().manual_seed(7))[:60]


@pytest.fixture(scope="module")
def choice():
    return of.choose(TRAIN, HELD_OUT, STAND_INS, CANDIDATES, most_members=3, real=REAL, seed=7)


@pytest.fixture(scope="module")
def terms():
    """What each candidate adds to a row, row by row: calibrated on the ID rows that choose and are not in the same tenth."""
    fitted = [type(one)(**vars(one)).fit(TRAIN) for one in CANDIDATES]
    known = [one.score(HELD_OUT)[CHOOSES].double() for one in fitted]

    def added(scores):
        found = torch.empty(len(scores[0]), 4, dtype=torch.float64)
        for row in range(len(found)):
            others = [i for i in range(60) if i % 10 != row % 10]
            for column, (h, s) in enumerate(zip(known, scores)):
                found[row, column] = Calibration.of(h[others]).surprise(s[row : row + 1])[0]
        return found

    sets = {(level, name): rows for level, found in STAND_INS.items() for name, rows in found.items()}
    sets["real", "svhn"] = REAL["svhn"]
    return Terms(added(known), {kind: added([one.score(rows) for one in fitted]) for kind, rows in sets.items()})


def test_equal_scores_tell_nothing_apart():
    """However many rows calibrate: ID rows and others have the same terms."""
    zeros = torch.zeros(70, 1, dtype=torch.float64)
    found = home.folded(zeros[:45], {("near", "a"): zeros})
    assert {*found.ids[:, 0].tolist()} == {*found.others["near", "a"][:, 0].tolist()}
    assert float(found.accepted(torch.ones(1, 1, dtype=torch.float64))["near", "a"].min()) > 0.4


def test_the_settings_are_those_of_the_kinds_left_out(choice, terms):
    losses = left_out(terms, 3)
    l2, count = best_setting(losses, 3)
    means = {setting: (found["near", "turned"] + found["near", "mixed"]) / 2 for setting, found in losses.items()}
    assert (choice.l2, len(choice.chosen.members)) == (l2, count)
    assert choice.chosen.left_out == pytest.approx(means[l2, count])
    assert [trial.left_out for trial in choice.trials] == pytest.approx([means[l2, n] for n in (1, 2, 3)])


def test_the_weights_are_those_of_the_regression(choice, terms):
    path = weight_path(terms, choice.l2, 3)
    assert [len(trial.members) for trial in choice.trials] == sorted(path) == [1, 2, 3]
    for trial in choice.trials:
        weights = path[len(trial.members)]
        expected = {name: float(weight) for name, weight in zip(NAMES, weights) if weight}
        assert trial.weights == pytest.approx(expected)
        assert max(trial.weights.values()) == 1.0


def check_trial(trial, terms):
    counts = torch.tensor([trial.weights.get(name, 0.0) for name in NAMES], dtype=torch.float64)
    ids = (terms.ids @ counts).sort().values
    limits = [ids[math.ceil(kept * 60) - 1] for kept in (0.90, 0.93, 0.95, 0.97)]
    found = {
        name: [float((rows @ counts <= limit).double().mean()) for limit in limits]
        for (_, name), rows in terms.others.items()
    }
    assert trial.fpr95 == pytest.approx({name: found[name][2] for name in ("turned", "mixed", "jigsaw")})
    assert trial.real == pytest.approx({"svhn": found["svhn"][2]})
    assert trial.near == pytest.approx((found["turned"][2] + found["mixed"][2]) / 2)
    assert trial.far == pytest.approx(found["jigsaw"][2])
    assert trial.mean == pytest.approx((trial.near + trial.far) / 2)
    near = (np.mean(found["turned"]) + np.mean(found["mixed"])) / 2
    assert trial.loss == pytest.approx((near + np.mean(found["jigsaw"])) / 2)


def test_a_trial_is_what_a_naive_computation_gives(choice, terms):
    for trial in (*choice.trials, *choice.singles, choice.chosen):
        check_trial(trial, terms)


def test_every_candidate_alone(choice):
    assert {trial.members for trial in choice.singles} == {(name,) for name in NAMES}
    losses = [trial.loss for trial in choice.singles]
    assert losses == sorted(losses)
    assert choice.trials[0].weights == choice.singles[0].weights


def test_the_chosen_one_is_fitted(choice):
    assert choice.chosen in choice.trials
    assert choice.detector.names == choice.chosen.members
    assert choice.weights == choice.chosen.weights
    by_name, weights = dict(zip(NAMES, CANDIDATES, strict=True)), [*choice.weights.values()]
    again = of.Fused([by_name[name] for name in choice.weights], seed=7, weights=weights).fit(TRAIN, held_out=HELD_OUT)
    assert torch.equal(choice.detector.score(REAL["svhn"]), again.score(REAL["svhn"]))


def test_rows_that_calibrate_the_sum_choose_nothing(choice):
    """Whatever the other half of the held-out rows is, members and weights stay."""
    rest = torch.ones(120, dtype=torch.bool).index_fill(0, CHOOSES, False)
    fields = {name: value.clone() for name, value in HELD_OUT.tensors().items()}
    for name in ("features", "logits", "spread"):
        fields[name][rest] = 0.1 * fields[name][rest].roll(1, 0) + 0.3
    other = of.choose(TRAIN, of.FeatureSet(**fields), STAND_INS, CANDIDATES, most_members=3, seed=7)
    assert other.weights == choice.weights
    for one, two in zip(other.detector.calibrations_, choice.detector.calibrations_, strict=True):
        assert torch.equal(one.scores, two.scores)
    assert not torch.equal(other.detector.sum_.scores, choice.detector.sum_.scores)


@pytest.mark.parametrize(("rows", "repetitions"), [(40, 40), (200, 20), (1000, 8)])
@pytest.mark.parametrize("made_of_them", [False, True])
def test_p_values_are_valid_after_the_choice(rows, repetitions, made_of_them):
    """Of fresh ID rows a tenth has a p-value of at most 0.1, also where stand-ins are made of the held-out rows."""
    candidates = [of.MSP(), of.EnergyLogits(), of.GEN(), of.CosineMean(), of.SSD(), of.SSD(field="spread")]
    shares = []
    for i in range(repetitions):
        held_out, fresh = make_set(rows, seed=5000 + i), make_set(1000, seed=9000 + i)
        choice = of.choose(TRAIN, held_out, None if made_of_them else STAND_INS, candidates, device="cpu")
        shares.append(float((choice.detector.p_values(fresh) <= 0.1).double().mean()))
    error = np.std(shares, ddof=1) / math.sqrt(repetitions)
    assert np.mean(shares) <= 0.1 + 3 * error
    assert np.mean(shares) >= 0.07


def test_members_of_one_kind_are_told_apart():
    choice = of.choose(TRAIN, HELD_OUT, STAND_INS, [of.KNN(k=k) for k in (1, 5, 20)], most_members=2)
    assert repr(choice.detector.members) == repr(tuple(of.KNN(k=int(name[6:])) for name in choice.chosen.members))


def test_one_kind_alone_is_chosen_by_with_the_usual_settings():
    choice = of.choose(TRAIN, HELD_OUT, {"far": STAND_INS["far"]}, CANDIDATES)
    assert choice.l2 == 0.01
    assert choice.chosen is choice.trials[-1]
    assert choice.chosen.near == choice.chosen.far == choice.chosen.fpr95["jigsaw"]
    assert choice.chosen.left_out is None


def test_real_sets_decide_nothing(choice):
    for real in (None, {"other": STAND_INS["far"]["jigsaw"]}):
        other = of.choose(TRAIN, HELD_OUT, STAND_INS, CANDIDATES, most_members=3, real=real, seed=7)
        assert [trial.weights for trial in other.trials] == [trial.weights for trial in choice.trials]
        assert other.detector.fingerprint() == choice.detector.fingerprint()
    assert other.trials[0].real != choice.trials[0].real


def test_candidates_that_lack_a_field_are_left_out_and_named():
    choice = of.choose(TRAIN, HELD_OUT, STAND_INS, [of.KNN(k=5), of.SSD(field="stage2")])
    assert choice.chosen.members == ("KNN",)
    assert list(choice.skipped) == ["SSD(floor=1e-06, field='stage2', ridge=0.0)"]
    assert "needs stage2" in choice.skipped["SSD(floor=1e-06, field='stage2', ridge=0.0)"]
    choice = of.choose(TRAIN, HELD_OUT, STAND_INS, [of.KNN(k=5), of.KNN(k=301)])
    name = "KNN(k=301, field='features', index='exact', probes=0)"
    assert choice.skipped == {name: "k is 301 but there are only 300 training samples; lower k"}
    with pytest.raises(of.InputError, match="no candidate could be fitted: SSD"):
        of.choose(TRAIN, HELD_OUT, STAND_INS, [of.SSD(field="stage2")])


def test_settings_are_looked_at_before_anything_is_fitted(monkeypatch):
    monkeypatch.setattr(of.KNN, "_fit", lambda self, train: pytest.fail("was fitted"))
    with pytest.raises(of.InputError, match=r"KNN\(k=0, field='features', .*\) cannot be fitted: k is 0"):
        of.choose(TRAIN, HELD_OUT, STAND_INS, [of.KNN(k=5), of.KNN(k=0)])


def test_eight_members_at_most_unless_one_says_otherwise():
    candidates = [of.KNN(k=k) for k in range(1, 40)]
    choice = of.choose(TRAIN, HELD_OUT, STAND_INS, candidates)
    assert len(choice.singles) == 39
    assert max(len(trial.members) for trial in choice.trials) <= 8
    assert len(of.choose(TRAIN, HELD_OUT, STAND_INS, CANDIDATES, most_members=1).chosen.members) == 1


def test_stand_ins_by_the_name_of_their_kind(choice):
    made = StandIns(STAND_INS["near"] | STAND_INS["far"], {"turned": "near", "mixed": "near", "jigsaw": "far"})
    other = of.choose(TRAIN, HELD_OUT, made, CANDIDATES, most_members=3, seed=7)
    assert other.weights == choice.weights


def test_rows_alone_will_do():
    choice = of.choose(TRAIN, HELD_OUT, None, CANDIDATES, seed=7)
    made = of.feature_stand_ins(HELD_OUT[CHOOSES.sort().values], seed=7)
    again = of.choose(TRAIN, HELD_OUT, made, CANDIDATES, seed=7)
    assert [trial.fpr95 for trial in choice.singles] == [trial.fpr95 for trial in again.singles]
    assert set(choice.chosen.fpr95) == {"mixed", "swapped"}
    kept, others = apart(TRAIN, None, 0.1, 3)
    alone = of.choose(TRAIN, candidates=CANDIDATES, seed=3)
    again = of.choose(kept, others, candidates=CANDIDATES, seed=3)
    assert [trial.fpr95 for trial in alone.trials] == [trial.fpr95 for trial in again.trials]
    assert alone.detector.fingerprint() == again.detector.fingerprint()


class TestDefaultCandidates:
    def test_what_can_be_fitted_is_tried(self):
        found = default_candidates(TRAIN)
        names = of.Fused(found).names
        known = (
            "EnergyLogits, KNN k=1, KNN k=5, KNN k=50, SSD ridge=0.0, SSD ridge=0.3, SSD ridge=1.0, SSD on spread, ViM"
        )
        assert {*known.split(", ")} <= set(names)
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

    def test_they_are_what_choose_tries(self):
        choice = of.choose(TRAIN, HELD_OUT, {"near": STAND_INS["near"]}, most_members=1)
        assert {trial.members[0] for trial in choice.singles} == set(of.Fused(default_candidates(TRAIN)).names)

    @pytest.mark.parametrize(("rows", "temperatures"), [(5000, (1000.0, 8000.0)), (4999, ())])
    def test_a_corrected_mixture_is_tried_where_there_are_rows_to_learn_from(self, rows, temperatures):
        train = of.FeatureSet(torch.rand(rows, 3), labels=torch.arange(rows) % 2)
        found = [repr(one) for one in default_candidates(train) if isinstance(one, of.EnergyCorrected)]
        assert found == [repr(of.EnergyCorrected.quick(temperature)) for temperature in temperatures]


class TestMistakes:
    @pytest.mark.parametrize("bad", [[], 3, {"mid": {}}, {"near": [3]}, {"near": HELD_OUT}, {}, {"near": {}},
                                     {"near": {"a": HELD_OUT}, "far": [3]}])  # fmt: skip
    def test_stand_ins(self, bad):
        with pytest.raises(of.InputError, match="stand_ins is"):
            of.choose(TRAIN, HELD_OUT, bad, CANDIDATES)

    def test_held_out_rows_need_no_labels(self):
        bare = of.FeatureSet(HELD_OUT.features, logits=HELD_OUT.logits, spread=HELD_OUT.spread)
        choice = of.choose(TRAIN, bare, STAND_INS, CANDIDATES, most_members=3, seed=7)
        assert choice.detector.names == choice.chosen.members
        with pytest.raises(of.MissingFieldError, match=r"MSP.score needs logits"):
            of.choose(TRAIN, of.FeatureSet(HELD_OUT.features), STAND_INS, CANDIDATES)
        with pytest.raises(of.MissingFieldError, match=r"Fused.of_fitted needs logits"):
            of.Fused.of_fitted([of.MSP().fit(TRAIN)], of.FeatureSet(HELD_OUT.features))

    def test_of_fitted(self):
        with pytest.raises(of.NotFittedError, match=r"KNN\(k=50, .* is not fitted"):
            of.Fused.of_fitted([of.KNN()], HELD_OUT)
        with pytest.raises(of.TooFewSamplesError, match="39 rows"):
            of.Fused.of_fitted([of.KNN().fit(TRAIN)], HELD_OUT[:39])
        fitted = of.Fused.of_fitted([of.KNN().fit(TRAIN)], HELD_OUT, rule="z", seed=3)
        again = of.Fused([of.KNN()], rule="z", seed=3).fit(TRAIN, held_out=HELD_OUT)
        assert torch.equal(fitted.score(TRAIN), again.score(TRAIN))
        assert fitted.fingerprint() == again.fingerprint()


class TestViews:
    """Views are chosen by stand-ins, as members are."""

    @staticmethod
    def rows(shift: float) -> Rows:
        made = {"turned": make_set(60, seed=3, shift=shift), "jigsaw": make_set(60, seed=4, shift=2 * shift)}
        return Rows(TRAIN[:200], HELD_OUT[:100], StandIns(made, {"turned": "near", "jigsaw": "far"}))

    def test_the_views_that_tell_stand_ins_best_are_taken(self):
        asked = []

        def rows_of(views):
            asked.append(views)
            return self.rows({"one": 0.3, "flip": 0.9, "six": 0.5}[views])

        found = choose_views(rows_of, "cpu")
        assert asked == ["one", "flip", "six"] == [*CHOICES]
        assert found.views == "flip"
        for views, shift in (("one", 0.3), ("flip", 0.9), ("six", 0.5)):
            assert found.losses[views] == of.choose(*self.rows(shift), device="cpu").chosen.loss
        assert found.losses["flip"] < found.losses["six"] < found.losses["one"]

    def test_of_equal_views_the_cheaper_are_taken(self):
        same = self.rows(0.4)
        assert choose_views(lambda views: same, "cpu", ["flip", "six"]).views == "flip"


def made(seed=0, members=6, useless=2, ids=80, rows=60):
    """Terms of ID rows, and of two near and two far kinds that every member but the last few finds higher."""
    source = torch.Generator().manual_seed(seed)

    def draw(count, shift):
        found = torch.empty(count, members, dtype=torch.float64).exponential_(generator=source)
        useful = torch.arange(members) < members - useless
        common = shift * torch.rand(count, 1, generator=source, dtype=torch.float64)
        return found + common * useful * torch.linspace(0.3, 1, members, dtype=torch.float64)

    shifts = {("near", "a"): 1.0, ("near", "b"): 1.5, ("far", "c"): 4.0, ("far", "d"): 8.0}
    return Terms(draw(ids, 0.0), {kind: draw(rows + 7 * i, shift) for i, (kind, shift) in enumerate(shifts.items())})


def naive(terms, x, l2):
    """F(w, b), row by row."""
    total = l2 / 2 * float(x[:-1].square().sum())
    for row in terms.ids:
        total += 0.5 / len(terms.ids) * math.log1p(math.exp(float(row @ x[:-1] + x[-1])))
    levels = [level for level, _ in terms.others]
    for (level, _), rows in terms.others.items():
        for row in rows:
            share = 0.5 / len({*levels}) / levels.count(level) / len(rows)
            total += share * math.log1p(math.exp(-float(row @ x[:-1] + x[-1])))
    return total


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("l2", L2)
def test_the_conditions_of_a_minimum_hold(seed, l2):
    """The gradient is 0 where a weight is above 0, and not negative where it is 0 (Karush, Kuhn & Tucker)."""
    terms = made(seed, members=12, useless=5)
    x = Regression(terms).weights(l2)
    base = naive(terms, x, l2)
    slope = torch.empty_like(x)
    for i in range(len(x)):
        moved = x.clone()
        moved[i] += 1e-5
        slope[i] = (naive(terms, moved, l2) - base) / 1e-5
    assert bool((slope[:-1][x[:-1] == 0] > -1e-5).all())
    assert bool((slope[:-1][x[:-1] > 0].abs() < 2e-5).all())
    assert abs(float(slope[-1])) < 2e-5
    assert 0 < int((x[:-1] > 0).sum()) < 12


def test_huge_terms_and_terms_that_tell_all():
    terms = made()
    others = {kind: rows.clone() for kind, rows in terms.others.items()}
    for rows in others.values():
        rows[:, 0] = 1e30
    found = Regression(Terms(terms.ids, others)).weights(0.01)
    assert bool(torch.isfinite(found).all())
    assert found[0] > 0
    apart = Terms(terms.ids, {kind: rows + 100 for kind, rows in terms.others.items()})
    found = Regression(apart).weights(0.01)
    assert bool(torch.isfinite(found).all())
    assert loss(apart.accepted(found[:-1, None])) == 0


class TestPath:
    def test_one_of_each_number_of_members(self):
        terms = made(members=10, useless=3)
        path = weight_path(terms, 0.01, 5)
        assert [*sorted(path)] == [1, 2, 3, 4, 5]
        for count, weights in path.items():
            assert int((weights > 0).sum()) == count
            assert float(weights.max()) == 1.0
            assert float(weights[weights > 0].min()) >= 1 / 50
            if count > 1:
                again = Regression(terms).weights(0.01, weights > 0)[:-1]
                torch.testing.assert_close(weights, again / again.max(), rtol=1e-6, atol=1e-8)

    def test_one_member_is_the_best_alone(self):
        terms = made(members=10, useless=3)
        each = torch.eye(10, dtype=torch.float64)
        losses = [loss(terms.accepted(one[:, None])) for one in each]
        assert weight_path(terms, 0.01, 1).keys() == {1}
        assert int(weight_path(terms, 0.01, 8)[1].argmax()) == losses.index(min(losses))

    def test_where_nothing_tells_one_is_taken(self):
        terms = made(members=3, useless=3)
        worse = Terms(terms.ids, {kind: rows * 0 for kind, rows in terms.others.items()})
        path = weight_path(worse, 0.01, 8)
        assert path.keys() == {1}
        assert int((path[1] > 0).sum()) == 1


def test_the_share_that_is_accepted():
    ids = torch.arange(1.0, 101, dtype=torch.float64)[:, None]
    others = {("near", "a"): torch.tensor([[90.0], [90.5], [93.5], [95.0], [97.0], [200.0]], dtype=torch.float64)}
    found = Terms(ids, others).accepted(torch.ones(1, 1, dtype=torch.float64))
    assert found["near", "a"][0].tolist() == pytest.approx([1 / 6, 2 / 6, 4 / 6, 5 / 6])
    assert loss({("near", "a"): found["near", "a"][0]}) == pytest.approx(3 / 6)


class TestLeftOut:
    def test_it_is_judged_by_the_kind_that_took_no_part(self):
        terms = made()
        found = left_out(terms, 3)
        assert found.keys() == {(l2, count) for l2 in L2 for count in (1, 2, 3)}
        judged = {}
        for kind, rows in terms.others.items():
            others = {other: found for other, found in terms.others.items() if other != kind}
            weights = weight_path(Terms(terms.ids, others), 0.01, 3)[2]
            judged[kind] = loss(Terms(terms.ids, {kind: rows}).accepted(weights[:, None]))
        assert found[0.01, 2] == pytest.approx(judged)

    def test_a_kind_that_stands_alone_for_its_level_is_not_left_out(self):
        terms = made()
        near = {kind: rows for kind, rows in terms.others.items() if kind != ("far", "d")}
        several = left_out(Terms(terms.ids, near), 2)
        assert several.keys() == {(l2, count) for l2 in L2 for count in (1, 2)}
        one = {kind: near[kind] for kind in (("near", "a"), ("far", "c"))}
        assert left_out(Terms(terms.ids, one), 2) == {}

    def test_real_sets_take_no_part(self):
        terms = made()
        real = Terms(terms.ids, {**terms.others, ("real", "x"): terms.ids - 9})
        assert left_out(real, 2) == left_out(terms, 2)
        assert torch.equal(Regression(real).weights(0.01), Regression(terms).weights(0.01))


class TestBestSetting:
    KINDS = (("near", "a"), ("near", "b"), ("far", "c"), ("far", "d"))

    def best(self, **gains):
        """The setting that is taken where others lose less than the usual one by these amounts, kind by kind."""
        settings = {"usual": (0.01, 3), "fewer": (0.01, 2), "free": (0.001, 3), "one": (0.01, 1)}
        losses = {
            settings[name]: {kind: 0.5 - gain for kind, gain in zip(self.KINDS, gains.get(name, (0, 0, 0, 0)))}
            for name in settings
        }
        return {at: name for name, at in settings.items()}[best_setting(losses, 3)]

    def test_the_usual_one_stays_where_others_are_better_by_chance(self):
        assert self.best() == "usual"
        assert self.best(fewer=(0.2, -0.1, 0.1, 0.0)) == "usual"
        assert self.best(fewer=(-0.1, -0.1, -0.1, -0.1)) == "usual"

    @pytest.mark.parametrize(("spread", "taken"), [(0.19, "fewer"), (0.21, "usual")])
    def test_two_standard_errors_count(self, spread, taken):
        # four kinds, each a quarter of the mean: the standard error is half of the spread
        gains = [0.2 + sign * spread for sign in (1, -1, 1, -1)]
        assert self.best(fewer=gains) == taken

    def test_the_best_of_those_that_are_better_and_of_equal_ones_the_fewest_members(self):
        assert self.best(fewer=(0.1,) * 4, free=(0.2,) * 4) == "free"
        assert self.best(fewer=(0.2,) * 4, free=(0.2,) * 4) == "fewer"
        assert self.best(one=(0.2,) * 4, fewer=(0.2,) * 4) == "one"

    def test_near_and_far_count_equally(self):
        losses = {
            (0.01, 3): dict.fromkeys((("near", "a"), ("far", "c"), ("far", "d"), ("far", "e")), 0.5),
            (0.1, 3): {("near", "a"): 0.5, ("far", "c"): 0.4, ("far", "d"): 0.4, ("far", "e"): 0.4},
        }
        # gain 0.05; errors ½·0.05 of near and three times ⅙·0.05 of far: √(0.025² + 3·0.0083²) = 0.0289
        assert best_setting(losses, 3) == (0.01, 3)
        losses[0.1, 3]["near", "a"] = 0.45
        assert best_setting(losses, 3) == (0.1, 3)

    def test_without_kinds_left_out_the_usual_one(self):
        assert best_setting({}, 5) == (0.01, 5)
