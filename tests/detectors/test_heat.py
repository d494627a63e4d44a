"""HEAT: its score is the composition of its members' standardised scores, by a formula written out here."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch
from tests.helpers.samples import QUICK, make_set, quick

import outfield as of
from outfield.files import Record, read_record, write_record

TRAIN, TEST = make_set(120, seed=1), make_set(50, seed=3, shift=0.5)
CHEAP = (of.SSD(), of.SSD(on="spread"), of.EnergyLogits())


def standardised(members):
    """(N, M): each member alone, its score less its mean over training rows, over their standard deviation."""
    columns = []
    for member in members:
        alone = type(member)(**vars(member)).fit(TRAIN)
        known, scores = alone.score(TRAIN).double().numpy(), alone.score(TEST).double().numpy()
        columns.append((scores - known.mean()) / known.std())
    return np.stack(columns, axis=1)


def naive(terms, beta):
    if beta == 0:
        return terms.mean(1)
    return np.array([math.log(sum(math.exp(beta * t) for t in row) / len(row)) / beta for row in terms])


@pytest.mark.parametrize("beta", [0.0, 1e-3, 0.5, 1.0, 3.0])
def test_the_score_is_the_composition_of_its_members(beta):
    found = of.HEAT(CHEAP, beta=beta).fit(TRAIN).score(TEST).numpy()
    assert np.allclose(found, naive(standardised(CHEAP), beta), rtol=1e-5, atol=1e-5)


def test_corrected_members():
    members = QUICK["HEAT"]["members"]
    found = of.HEAT(members, beta=0.7).fit(TRAIN).score(TEST).numpy()
    assert np.allclose(found, naive(standardised(members), 0.7), rtol=1e-4, atol=1e-4)


def test_rows_are_ranked_as_the_authors_rank_them():
    terms = torch.from_numpy(standardised(CHEAP))
    for beta, theirs in ((0.0, terms.sum(1)), (2.0, torch.logsumexp(2.0 * terms, 1) / 2.0)):
        ours = of.HEAT(CHEAP, beta=beta).fit(TRAIN).score(TEST)
        assert torch.equal(ours.argsort(), theirs.argsort())


def test_small_and_large_beta_are_the_limits():
    terms = standardised(CHEAP)
    for beta, limit in ((1e-300, terms.mean(1)), (1e-12, terms.mean(1)), (1e300, terms.max(1))):
        assert np.allclose(of.HEAT(CHEAP, beta=beta).fit(TRAIN).score(TEST).numpy(), limit, rtol=1e-5, atol=1e-5)


def test_a_member_whose_scores_are_all_equal_counts_as_it_is():
    same = of.FeatureSet(**{**TRAIN.tensors(), "logits": torch.zeros(120, 3)})
    detector = of.HEAT([of.MaxLogit(), of.SSD()]).fit(same)
    assert detector.scales_[0] == 1
    assert detector.means_[0] == 0
    moved = of.FeatureSet(**{**same.tensors(), "logits": torch.full((120, 3), -5.0)})
    assert torch.allclose(detector.score(moved), detector.score(same) + 2.5, atol=1e-5)


def test_the_seed_is_the_members_seed():
    members = QUICK["HEAT"]["members"]
    detector = of.HEAT(members, seed=3).fit(TRAIN)
    alone = quick("EnergyCorrected", seed=3).fit(TRAIN)
    assert torch.equal(detector.members_[0].score(TEST), alone.score(TEST))
    assert [one.seed for one in members[:2]] == [0, 0]
    assert not any(one._fitted for one in members)


def test_defaults_are_the_authors_as_far_as_they_can_be():
    detector = of.HEAT()
    on_features, on_spread, logits = detector.members
    assert [on_features.on, on_spread.on] == ["features", "spread"]
    for member, steps in ((on_features, 40), (on_spread, 1)):
        assert member.prior_temperature == 1000
        assert member.temperature == 1
        assert member.network == of.MLP(hidden=1024, depth=4, slope=0.2)
        assert member.sampler == of.Langevin(steps=steps, step_size=(1e-4, 1e-5), noise_std=(5e-3, 5e-4))
        assert member.training == of.Training(epochs=20, batch_size=1024, learning_rate=1e-5, l2=10.0, input_noise=1e-4)
    assert repr(logits) == repr(of.EnergyLogits())
    defaults = {name: one.default for name, one in inspect.signature(of.HEAT).parameters.items()}
    assert (defaults["beta"], defaults["seed"]) == (0.0, 0)
    assert detector.needs_to_score == ("features", "spread", "logits")
    assert detector.needs_to_fit == ("labels", "spread", "logits")


def test_only_what_members_need_is_read(tmp_path, monkeypatch):
    assert of.HEAT.fits_in_pieces
    TEST.save(tmp_path / "f.npz")
    stream, asked = of.open_features(tmp_path / "f.npz"), []
    batches = type(stream).batches
    monkeypatch.setattr(
        type(stream), "batches", lambda self, size, names=None: asked.append(names) or batches(self, size, names)
    )
    detector = of.HEAT([of.SSD(), of.SSD(on="spread")]).fit(TRAIN)
    assert torch.equal(detector.score(stream), detector.score(TEST))
    assert [{*names} for names in asked] == [{"features", "spread"}]


def test_one_that_is_not_fitted_may_be_told_where_to_work():
    detector = of.HEAT(CHEAP).to("cpu")
    assert torch.equal(detector.fit(TRAIN).score(TEST), of.HEAT(CHEAP).fit(TRAIN).score(TEST))


class TestFiles:
    @pytest.fixture
    def written(self, tmp_path):
        of.HEAT(CHEAP, beta=1.0).fit(TRAIN).save(tmp_path / "d.safetensors")
        return read_record(tmp_path / "d.safetensors", "detector")

    def refused(self, tmp_path, header, tensors, said):
        write_record(tmp_path / "e.safetensors", "detector", Record(header, tensors))
        with pytest.raises(of.FileFormatError, match=said):
            of.load(tmp_path / "e.safetensors")

    def test_scales(self, written, tmp_path):
        header, tensors = written
        for wrong in (0.0, -1.0):
            scales = torch.tensor([1.0, wrong, 1.0], dtype=torch.float64)
            self.refused(tmp_path, header, {**tensors, "scales": scales}, "scales has entries that are not above 0")

    def test_small_scales(self, written, tmp_path):
        header, tensors = written
        small = torch.full((3,), 1e-9, dtype=torch.float64)
        write_record(tmp_path / "e.safetensors", "detector", Record(header, {**tensors, "scales": small}))
        assert torch.equal(of.load(tmp_path / "e.safetensors").scales_, small)

    def test_notes(self, written, tmp_path):
        header, tensors = written
        members = header["notes"]["members"]
        for notes in ({}, {"members": 3}, {"members": members[:2]}, {"members": [*members, members[2]]}):
            self.refused(tmp_path, {**header, "notes": notes}, tensors, "notes on 3 members")
        self.refused(tmp_path, {**header, "notes": {"members": [1, 2, 3]}}, tensors, "notes on 3 members")
        other = [{**members[0], "settings": {"floor": 0.5}}, *members[1:]]
        self.refused(
            tmp_path, {**header, "notes": {"members": other}}, tensors, r"member 0 is SSD\(floor=0.5.*settings say"
        )
        self.refused(tmp_path, {**header, "notes": {"members": [{}, *members[1:]]}}, tensors, "member 0, SSD")

    def test_width(self, written, tmp_path):
        header, tensors = written
        self.refused(tmp_path, {**header, "width": 5}, tensors, "width is 5, but 6 in its first member")


class TestMistakes:
    def test_members(self):
        for bad in ([], None, 3, "KNN", [3], [of.KNN], [of.SSD(), 3]):
            with pytest.raises(of.InputError, match="members is"):
                of.HEAT(bad).fit(TRAIN)
        of.HEAT([of.SSD()]).check_settings()
        with pytest.raises(of.InputError, match=r"members is .*; KNN: k is 0"):
            of.HEAT([of.MSP(), of.KNN(k=0)]).fit(TRAIN)

    @pytest.mark.parametrize(("setting", "wrong"), [("beta", -1e-9), ("beta", "x"), ("seed", -1), ("seed", 0.5)])
    def test_numbers(self, setting, wrong):
        with pytest.raises(of.InputError, match=f"{setting} is"):
            of.HEAT(CHEAP, **{setting: wrong}).fit(TRAIN)

    def test_a_member_that_lacks_its_field(self):
        without = of.FeatureSet(**{**TRAIN.tensors(), "spread": None})
        with pytest.raises(of.MissingFieldError, match=r"HEAT.fit needs spread"):
            of.HEAT(CHEAP).fit(without)
        with pytest.raises(of.MissingFieldError, match=r"HEAT.score needs spread"):
            of.HEAT(CHEAP).fit(TRAIN).score(without)

    def test_other_rows(self):
        detector = of.HEAT([of.MSP(), of.SSD(), of.SSD(on="stage2")])
        stage = {"stage2": TRAIN.features[:, :3]}
        fitted = detector.fit(of.FeatureSet(**TRAIN.tensors(), **stage, about={"stage2": "layer2"}))
        with pytest.raises(of.InputError, match=r"features has 5 columns but this SSD was fitted on 6"):
            fitted.score(of.FeatureSet(TRAIN.features[:, 1:], logits=TRAIN.logits, **stage))
        with pytest.raises(of.InputError, match=r"stage2 is 'layer3' here, but 'layer2'"):
            fitted.score(of.FeatureSet(TRAIN.features, logits=TRAIN.logits, **stage, about={"stage2": "layer3"}))
