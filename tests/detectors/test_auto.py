"""Auto: the sum that stand-ins choose, as one detector."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors.combined.choice import default_members
from outfield.detectors.combined.fused import apart
from outfield.features import FIELDS
from outfield.files import Record, read_record, write_record


@pytest.fixture(scope="module")
def train():
    return make_set(n=200, seed=0)


@pytest.fixture(scope="module")
def held_out():
    return make_set(n=100, seed=1)


@pytest.fixture(scope="module")
def stand_ins():
    return {"near": {"shifted": make_set(n=60, seed=2, shift=0.4)}, "far": {"far": make_set(n=60, seed=3, shift=2.0)}}


def test_it_is_the_sum_that_choose_picks(train, held_out, stand_ins):
    auto = of.Auto(most_members=2, seed=3).fit(train, held_out=held_out, stand_ins=stand_ins)
    choice = of.choose(train, held_out, stand_ins, most_members=2, seed=3)
    test = make_set(n=40, seed=5)
    assert auto.names == choice.chosen.members == auto.choice_.chosen.members
    assert auto.weights_ == tuple(choice.weights.values())
    assert len({*auto.weights_}) > 1
    assert len(auto.choice_.trials) == len(choice.trials)
    assert torch.equal(auto.score(test), choice.detector.score(test))
    assert torch.equal(auto.p_values(test), choice.detector.p_values(test))


def test_most_members_and_seed_reach_the_choice(train, held_out, stand_ins):
    assert len(of.Auto(most_members=1).fit(train, held_out=held_out, stand_ins=stand_ins).names) == 1
    first, second = (of.Auto(1, seed=seed).fit(train, held_out=held_out, stand_ins=stand_ins) for seed in (0, 1))
    assert not torch.equal(first.sum_.scores, second.sum_.scores)


def test_its_defaults():
    assert vars(of.Auto()) == {"most_members": 8, "held_out": 0.1, "seed": 0}


@pytest.mark.parametrize(
    ("setting", "good", "bad"),
    [
        ("most_members", (1, 50), (0, -1, 1.5, "2", None)),
        ("held_out", (1e-9, 0.5), (0, -0.1, 0.500001, 1, float("nan"), "a")),
        ("seed", (0, 2**40), (-1, 0.5, "a", None)),
    ],
)
def test_its_settings(setting, good, bad):
    for value in good:
        of.Auto(**{setting: value}).check_settings()
    for value in bad:
        with pytest.raises(of.InputError, match=f"{setting} is"):
            of.Auto(**{setting: value}).check_settings()


def test_without_held_out_rows_a_share_of_the_training_rows_is_kept(train):
    auto = of.Auto(most_members=1, held_out=0.3, seed=1).fit(train)
    rest, kept = apart(train, None, 0.3, 1)
    assert len(auto.sum_.scores) + len(auto.calibrations_[0].scores) == 60
    expected = of.Fused(default_members(rest), seed=1).fit(rest, held_out=kept)
    assert auto.names == expected.names
    assert torch.equal(auto.score(train), expected.score(train))


@pytest.mark.parametrize(
    ("fields", "members"),
    [
        (("labels", "logits", "stage2", "stage1"), ("EnergyLogits", "KNN k=5", "SSD", "SSD on stage2")),
        (("labels", "logits"), ("EnergyLogits", "KNN", "SSD")),
        (("labels",), ("KNN", "SSD")),
        (("logits",), ("EnergyLogits", "KNN")),
        ((), ("KNN", "SSD")),
    ],
)
def test_without_stand_ins_nothing_is_chosen(train, held_out, fields, members):
    def part(data):
        stages = {name: data.features[:, :3] for name in ("stage1", "stage2") if name in fields}
        return of.FeatureSet(
            data.features, **{name: data.tensors()[name] for name in fields if name not in stages}, **stages
        )

    auto = of.Auto().fit(part(train), held_out=part(held_out))
    assert [name.split(" k=")[0] for name in auto.names] == [name.split(" k=")[0] for name in members]
    assert [member.k for member in auto.members_ if isinstance(member, of.KNN)] == [5]
    assert auto.choice_ is None


def test_a_rare_class_costs_neighbours_and_no_member():
    features = make_set(n=60).features
    for rare, k in ((1, 1), (4, 4), (5, 5), (6, 5)):
        few = of.FeatureSet(features, labels=[1] * rare + [0] * (60 - rare))
        assert [repr(one) for one in default_members(few)] == [repr(of.KNN(k=k)), repr(of.SSD())]
    alone = of.FeatureSet(features[:4])
    assert [repr(one) for one in default_members(alone)] == [repr(of.KNN(k=4))]


def test_the_fewest_rows_that_are_split_off(train):
    auto = of.Auto(most_members=1, held_out=0.01).fit(train)
    assert (len(auto.calibrations_[0].scores), len(auto.sum_.scores)) == (20, 20)


def test_training_rows_are_no_held_out_rows(train):
    with pytest.raises(of.InputError, match="held-out rows are training rows"):
        of.Auto().fit(train, held_out=train)
    with pytest.raises(of.InputError, match=r"held_out takes an outfield\.FeatureSet, not list"):
        of.Auto().fit(train, held_out=[1])  # type: ignore[arg-type]
    with pytest.raises(of.TooFewSamplesError, match="held_out has 39 rows; at least 40"):
        of.Auto().fit(train, held_out=make_set(n=39, seed=1))


def test_what_it_uses_is_known_and_not_needed(train):
    assert set(of.Auto.uses) == set(FIELDS) - {"features", "odin_logits"}
    assert of.Auto().needs_to_fit == ()
    assert of.Auto().needs_to_score == ("features",)
    bare = of.FeatureSet(train.features)
    auto = of.Auto(most_members=1).fit(bare)
    assert auto.needs_to_score == ("features",)
    assert torch.isfinite(auto.score(bare)).all()


def test_what_it_scores_is_what_its_members_score(train, held_out, stand_ins):
    auto = of.Auto(most_members=3).fit(train, held_out=held_out, stand_ins=stand_ins)
    assert set(auto.needs_to_score) == {name for member in auto.members_ for name in member.needs_to_score}
    explanation = auto.explain(held_out)
    assert explanation.members == auto.names
    torch.testing.assert_close(explanation.terms.sum(1).float(), auto.score(held_out).as_subclass(torch.Tensor))


def test_a_second_fit_forgets_the_first(train, held_out, stand_ins):
    auto = of.Auto(most_members=2).fit(train, held_out=held_out, stand_ins=stand_ins)
    auto.fit(of.FeatureSet(train.features))
    again = of.Auto(most_members=2).fit(of.FeatureSet(train.features))
    assert auto.names == again.names
    assert torch.equal(auto.score(held_out), again.score(held_out))


def test_a_fit_that_fails_leaves_the_last_one(train, held_out, stand_ins):
    auto = of.Auto(most_members=1).fit(train, held_out=held_out, stand_ins=stand_ins)
    before = auto.score(held_out)
    with pytest.raises(of.InputError):
        auto.fit(train, held_out=train)
    assert torch.equal(auto.score(held_out), before)


class TestFiles:
    def test_a_saved_one_scores_the_same(self, train, held_out, stand_ins, tmp_path):
        auto = of.Auto(most_members=3, seed=2).fit(train, held_out=held_out, stand_ins=stand_ins)
        auto.save(tmp_path / "auto.safetensors")
        loaded = of.load(tmp_path / "auto.safetensors")
        assert isinstance(loaded, of.Auto)
        assert (loaded.most_members, loaded.seed, loaded.names) == (3, 2, auto.names)
        assert loaded.weights_ == auto.weights_
        assert len({*auto.weights_}) > 1
        assert loaded.fingerprint() == auto.fingerprint()
        assert torch.equal(loaded.score(held_out), auto.score(held_out))
        assert not hasattr(loaded, "choice_")

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda notes: notes["members"][0].update(detector="Nonsense"), "there is no detector 'Nonsense'"),
            (lambda notes: notes["members"][0].update(detector=["SSD"]), "there is no detector"),
            (lambda notes: notes["members"][0].pop("detector"), "member 0, None: "),
            (lambda notes: notes["members"].clear(), "notes on its members"),
            (lambda notes: notes.update(members=["SSD"]), "notes on its members"),
            (lambda notes: notes.update(held_out=1), "different numbers of rows"),
            (lambda notes: notes.update(weights=[1.0, 0.5]), "one positive number for each of the 1 members"),
            (lambda notes: notes.update(weights=[0.0]), r"weights is 0\.0"),
            (lambda notes: notes.update(weights="1"), "weights is '1'"),
        ],
    )
    def test_notes_that_no_fit_leaves(self, train, held_out, stand_ins, tmp_path, change, said):
        of.Auto(most_members=1).fit(train, held_out=held_out, stand_ins=stand_ins).save(tmp_path / "auto.safetensors")
        header, tensors = read_record(tmp_path / "auto.safetensors", "detector")
        change(header["notes"])
        write_record(tmp_path / "auto.safetensors", "detector", Record(header, tensors))
        with pytest.raises(of.FileFormatError, match=said):
            of.load(tmp_path / "auto.safetensors")


class TestThreshold:
    def test_it_is_that_of_the_rows_that_calibrated_the_sum(self, train, held_out, stand_ins):
        auto = of.Auto(most_members=2).fit(train, held_out=held_out, stand_ins=stand_ins)
        found = auto.threshold()
        expected = of.Threshold.fit(auto.sum_.scores.float(), keep=0.95)
        assert (found.keep, found.value, found.source) == (0.95, expected.value, auto.fingerprint())
        assert auto.threshold(0.5).value < found.value
        assert found.is_ood(auto.score(held_out)).dtype == torch.bool

    def test_what_it_refuses(self, train, held_out, stand_ins):
        with pytest.raises(of.NotFittedError, match="not fitted"):
            of.Auto().threshold()
        with pytest.raises(of.InputError, match="keep is 0"):
            of.Auto(most_members=1).fit(train, held_out=held_out, stand_ins=stand_ins).threshold(0)
