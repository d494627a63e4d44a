"""Several detectors as one: the sum is what a naive computation gives, p-values are valid, and mistakes are named."""

import math

import numpy as np
import pytest
import torch
from tests.helpers.samples import make_set, refused

import outfield as of
from outfield.detectors import Calibration
from outfield.detectors.combined import members
from outfield.detectors.combined.fused import apart
from outfield.files import read_record
from outfield.modes import can_limit

TRAIN, HELD_OUT, TEST = make_set(300, seed=1), make_set(101, seed=2), make_set(60, seed=3, shift=0.5)
MEMBERS = (of.EnergyLogits(), of.KNN(k=5), of.SSD(), of.SSD(field="spread"))


def naive_surprise(held_out, score):
    """−log p with a growing tail, one number at a time."""
    h, n = sorted(held_out), len(held_out)
    if score < h[0]:
        return 0.0
    if score >= h[-1]:
        return math.log(n + 1) + (score - h[-1]) / np.std(h)
    j = sum(value <= score for value in h)
    rank = j + (score - h[j - 1]) / (h[j] - h[j - 1])
    return -math.log(1 - rank / (n + 1))


class TestCalibration:
    def test_surprise(self):
        h = [3.0, -1.0, 0.5, 0.5, 7.0]
        one = Calibration.of(torch.tensor(h))
        for score in (-5, -1, -0.25, 0.5, 0.6, 2.9, 3.0, 6.99, 7.0, 7.5, 1000.0):
            assert math.isclose(float(one.surprise(torch.tensor([score]))), naive_surprise(h, score), rel_tol=1e-6)

    def test_p_values(self):
        one = Calibration.of(torch.tensor([1.0, 2.0, 2.0, 3.0]))
        expected = [5 / 5, 5 / 5, 4 / 5, 4 / 5, 2 / 5, 1 / 5]
        assert one.p_values(torch.tensor([0.0, 1.0, 1.5, 2.0, 3.0, 3.5])).tolist() == expected

    def test_standard(self):
        one = Calibration.of(torch.tensor([1.0, 3.0]))
        assert one.standard(torch.tensor([4.0])).tolist() == [2.0]
        equal = Calibration.of(torch.tensor([2.0, 2.0]))
        assert equal.standard(torch.tensor([2.0, 5.0])).tolist() == [0.0, 3.0]
        assert equal.surprise(torch.tensor([1.0, 2, 5])).tolist() == pytest.approx([0, math.log(3), math.log(3) + 3])


@pytest.mark.parametrize("rule", ["fisher", "z"])
def test_the_score_is_the_sum_of_its_members(rule):
    fused = of.Fused(MEMBERS, rule=rule, seed=4).fit(TRAIN, held_out=HELD_OUT)
    order = torch.randperm(101, generator=torch.Generator().manual_seed(4))
    expected = np.zeros(60)
    for member in MEMBERS:
        alone = type(member)(**vars(member)).fit(TRAIN)
        held_out, scores = alone.score(HELD_OUT)[order[:50]].double().numpy(), alone.score(TEST).double().numpy()
        if rule == "z":
            expected += (scores - held_out.mean()) / held_out.std()
        else:
            expected += [naive_surprise(held_out, score) for score in scores]
    assert np.allclose(fused.score(TEST).numpy(), expected, rtol=1e-5)
    assert len(fused.sum_.scores) == 51
    assert np.allclose(fused.sum_.scores.numpy(), np.sort(fused.score(HELD_OUT[order[50:]]).numpy()), rtol=1e-6)


def test_weights_multiply_the_terms(tmp_path):
    plain = of.Fused(MEMBERS).fit(TRAIN, held_out=HELD_OUT)
    fused = of.Fused(MEMBERS, weights=[1, 0.5, 2.0, 0.25]).fit(TRAIN, held_out=HELD_OUT)
    terms = plain.explain(TEST).terms * torch.tensor([1, 0.5, 2.0, 0.25], dtype=torch.float64)
    torch.testing.assert_close(fused.explain(TEST).terms, terms)
    torch.testing.assert_close(fused.score(TEST).as_subclass(torch.Tensor), terms.sum(1).float())
    other = of.Fused(MEMBERS, weights=[1, 0.5, 2.0, 0.25]).fit(TRAIN, held_out=HELD_OUT)
    other.score(TEST)
    other.weights[0] = 3
    torch.testing.assert_close(other.explain(TEST).terms[:, 0], 3 * terms[:, 0])
    sums = (plain.explain(HELD_OUT).terms * torch.tensor([1, 0.5, 2.0, 0.25], dtype=torch.float64)).sum(1)
    assert {*fused.sum_.scores.float().tolist()} <= {*sums.float().tolist()}
    fused.save(tmp_path / "fused.safetensors")
    loaded = of.load(tmp_path / "fused.safetensors")
    assert list(loaded.weights) == [1, 0.5, 2.0, 0.25]
    assert torch.equal(loaded.score(TEST), fused.score(TEST))
    assert fused.fingerprint() != plain.fingerprint()


@pytest.mark.parametrize(
    "bad",
    [[], [1.0], [1.0] * 5, [1.0, 1.0, 1.0, 0.0], [1, 1, 1, -1], [1, 1, 1, float("nan")], "1111", 3, [1, 1, 1, "a"]],
)
def test_weights_that_cannot_be(bad):
    with pytest.raises(of.InputError, match="weights is"):
        of.Fused(MEMBERS, weights=bad).fit(TRAIN, held_out=HELD_OUT)


def test_members_are_left_as_they_are():
    knn = of.KNN(k=3)
    fused = of.Fused([knn]).fit(TRAIN, held_out=HELD_OUT)
    assert not knn._fitted
    assert fused.members_[0] is not knn
    assert torch.equal(fused.members_[0].score(TEST), of.KNN(k=3).fit(TRAIN).score(TEST))


def test_explain():
    fused = of.Fused(MEMBERS).fit(TRAIN, held_out=HELD_OUT)
    found = fused.explain(TEST)
    assert found.members == ("EnergyLogits", "KNN", "SSD", "SSD on spread") == fused.names
    assert torch.equal(found.total, fused.score(TEST))
    for i, member in enumerate(fused.members_):
        assert torch.equal(found.scores[:, i].float(), member.score(TEST))
        assert torch.equal(found.p_values[:, i], fused.calibrations_[i].p_values(member.score(TEST)))
    assert found.top_member == [found.members[row.argmax()] for row in found.terms.numpy()]
    assert len(set(found.top_member)) > 1


def test_names_stand_once():
    stage, names = of.SSD(field="stage2"), ("KNN", "SSD on stage2", "SSD on stage2 2", "MSP", "SSD on stage2 3", "SSD")
    assert of.Fused([of.KNN(), stage, stage, of.MSP(), stage, of.SSD()]).names == names
    assert of.Fused([of.EBM(), of.EBM(training=of.Training(epochs=3))]).names[1].endswith(" training.l2=10.0")


def test_p_values_of_fresh_rows_are_valid():
    rng = np.random.default_rng(5)
    shares = []
    for seed in range(40):
        rows = of.FeatureSet(
            np.abs(rng.normal(size=(900, 4))), labels=np.arange(900) % 3, logits=rng.normal(size=(900, 3))
        )
        fused = of.Fused(seed=seed).fit(rows[:300], held_out=rows[300:420])
        shares.append(float((fused.p_values(rows[420:]) <= 0.1).double().mean()))
    assert abs(np.mean(shares) - 0.1) < 0.015  # 6 of 60 rows, so 0.0984 is expected


def test_rows_are_split_off_where_none_are_given():
    fused = of.Fused([of.KNN(k=1)], held_out=0.2, seed=3).fit(TRAIN)
    kept, others = apart(TRAIN, None, 0.2, 3)
    assert (len(kept), len(others)) == (240, 60)
    assert torch.equal(fused.members_[0].bank_, of.KNN(k=1).fit(kept).bank_)
    assert (len(fused.calibrations_[0].scores), len(fused.sum_.scores)) == (30, 30)
    assert len(of.Fused().fit(TRAIN).sum_.scores) == 20  # at least, where the share would be less
    other = of.Fused([of.KNN(k=1)], held_out=0.2, seed=4).fit(TRAIN)
    assert not torch.equal(other.members_[0].bank_, fused.members_[0].bank_)


def test_no_member_gets_more_rows_at_once_than_it_takes(monkeypatch):
    fused = of.Fused(MEMBERS).fit(TRAIN, held_out=HELD_OUT)
    expected, sizes, score = fused.score(TEST), [], of.SSD._score
    monkeypatch.setattr(of.KNN, "rows_at_once", 7)
    monkeypatch.setattr(of.SSD, "rows_at_once", 11)
    monkeypatch.setattr(of.SSD, "_score", lambda self, b: sizes.append(len(b["features"])) or score(self, b))
    assert torch.allclose(fused.score(TEST), expected, rtol=1e-5)
    assert set(sizes) == {7, 4}


@pytest.mark.parametrize(("notes", "width", "change", "said"), [
    ({}, 5, {}, "width is 5, but 6 in its first member"),
    ({"members": [{}, 3]}, 6, {}, "cannot build"),
    ({"members": [{}]}, 6, {}, "cannot build"),
    ({}, 6, {"1.calibration": lambda one: torch.cat([one, one[-1:]])}, "cannot build"),
])  # fmt: skip
def test_files_that_no_fit_leaves(notes, width, change, said, tmp_path):
    of.Fused([of.SSD(), of.KNN(k=2)]).fit(TRAIN, held_out=HELD_OUT).save(tmp_path / "d.safetensors")
    header, tensors = read_record(tmp_path / "d.safetensors", "detector")
    header |= {"notes": header["notes"] | notes, "width": width}
    tensors |= {name: make(tensors[name]) for name, make in change.items()}
    refused(tmp_path / "e.safetensors", header, tensors, said)


def test_only_what_members_need_is_read(tmp_path, monkeypatch):
    TEST.save(tmp_path / "f.npz")
    stream, asked = of.open_features(tmp_path / "f.npz"), []
    batches = type(stream).batches
    monkeypatch.setattr(
        type(stream), "batches", lambda self, size, names=None: asked.append(names) or batches(self, size, names)
    )
    fused = of.Fused([of.SSD(), of.SSD(field="spread")]).fit(TRAIN, held_out=HELD_OUT)
    assert torch.equal(fused.score(stream), fused.score(TEST))
    assert [{*names} for names in asked] == [{"features", "spread"}]


class TestMistakes:
    def test_members(self):
        with pytest.raises(of.InputError, match=r"members is .*; KNN: k is 0"):
            of.Fused([of.MSP(), of.KNN(k=0)]).fit(TRAIN)

    @pytest.mark.parametrize("share", [0, -0.1, 0.51, float("nan"), "a"])
    def test_shares(self, share):
        with pytest.raises(of.InputError, match="held_out is"):
            of.Fused(held_out=share).fit(TRAIN)
        of.Fused(held_out=0.5).check_settings()

    def test_a_member_that_lacks_its_field(self):
        with pytest.raises(of.MissingFieldError, match=r"Fused.fit needs stage2"):
            of.Fused([of.MSP(), of.SSD(field="stage2")]).fit(TRAIN, held_out=HELD_OUT)
        bare = of.FeatureSet(TRAIN.features, labels=TRAIN.labels)
        with pytest.raises(of.MissingFieldError, match=r"Fused.fit needs logits"):
            of.Fused([of.MSP(), of.SSD()]).fit(bare, held_out=HELD_OUT)
        fused = of.Fused([of.MSP(), of.SSD()]).fit(TRAIN, held_out=HELD_OUT)
        with pytest.raises(of.MissingFieldError, match=r"Fused.score needs logits"):
            fused.score(bare)
        with pytest.raises(of.MissingFieldError, match="logits"):
            of.Fused([of.MSP(), of.SSD()]).fit(TRAIN, held_out=of.FeatureSet(HELD_OUT.features))

    def test_held_out_rows_that_are_training_rows(self):
        for part in (TRAIN, TRAIN[:100], of.FeatureSet.join([HELD_OUT[:88], TRAIN[:10]])):
            with pytest.raises(of.InputError, match=r"% of the held-out rows are training rows"):
                of.Fused().fit(TRAIN, held_out=part)
        of.Fused().fit(TRAIN, held_out=of.FeatureSet.join([HELD_OUT[:90], TRAIN[:10]]))  # a few are in many sets

    def test_too_few_rows_to_calibrate(self):
        with pytest.raises(of.TooFewSamplesError, match="held_out has 39 rows; at least 40"):
            of.Fused().fit(TRAIN, held_out=HELD_OUT[:39])
        of.Fused().fit(TRAIN, held_out=HELD_OUT[:40])
        with pytest.raises(of.TooFewSamplesError, match="79 training rows are too few to keep 40"):
            of.Fused().fit(TRAIN[:79])
        of.Fused().fit(TRAIN[:80])
        with pytest.raises(of.InputError, match=r"held_out takes an .*FeatureSet, not Tensor"):
            of.Fused().fit(TRAIN, held_out=TRAIN.features)

    def test_another_width(self):
        fused = of.Fused(MEMBERS).fit(TRAIN, held_out=HELD_OUT)
        with pytest.raises(of.InputError, match=r"features has 5 columns but this KNN was fitted on 6"):
            fused.score(make_set(width=5))
        with pytest.raises(of.InputError, match="columns but this"):
            of.Fused(MEMBERS).fit(TRAIN, held_out=make_set(width=5))

    def test_not_fitted(self):
        for ask in (lambda: of.Fused().explain(TEST), lambda: of.Fused().p_values(TEST)):
            with pytest.raises(of.NotFittedError):
                ask()


def test_scores_beyond_float32_are_cut_off():
    huge = of.FeatureSet(
        torch.rand(3, 4), logits=torch.tensor([[1e300, 0], [0, 0], [-1e300, -1e300]], dtype=torch.float64)
    )
    fused = of.Fused([of.MaxLogit(), of.MSP()]).fit(make_set(300, classes=2), held_out=make_set(101, seed=2, classes=2))
    largest = torch.finfo(torch.float32).max
    assert fused._member_scores(huge.tensors())[:, 0].tolist() == [-largest, 0.0, largest]


class TestMembersAreAsked:
    """Rows that one member cannot score are refused, also after others were taken."""

    @pytest.mark.parametrize(("changed", "error", "said"), [
        ({"features": torch.rand(4, 7)}, of.InputError, "features has 7 columns but this SSD was fitted on 6"),
        ({"logits": torch.rand(4, 5)}, of.InputError, "logits has 5 columns but this NNGuide was fitted on 3"),
        ({"logits": None}, of.MissingFieldError, "needs logits"),
        ({"about": {"views": "flip"}}, of.InputError, "views is 'flip' here"),
    ])  # fmt: skip
    def test_others_are_refused(self, changed, error, said):
        def rows(**more):
            plain = {"features": torch.rand(4, 6), "logits": torch.rand(4, 3), "about": {"views": "one"}}
            return of.FeatureSet(**{**plain, **more})

        train, held = (of.FeatureSet(**make_set(n, seed=n).tensors(), about={"views": "one"}) for n in (300, 101))
        fused = of.Fused([of.SSD(), of.NNGuide(k=3)]).fit(train, held_out=held)
        for _ in range(2):
            fused.score(rows())
            for scored in (fused.score, fused.explain):
                with pytest.raises(error, match=said):
                    scored(rows(**changed))


@pytest.mark.parametrize("bad", [None, 3, [None], [of.SSD], [of.SSD(), 3], [], "SSD"])
def test_what_are_no_detectors_is_refused(bad):
    rows = make_set(101)
    with pytest.raises(of.InputError, match=r"members is .*a list of detectors, at least one"):
        of.Fused.of_fitted(bad, rows)
    with pytest.raises(of.InputError, match=r"members is .*a list of detectors, at least one"):
        of.Fused(bad).fit(rows)
    if bad is not None:
        with pytest.raises(of.InputError, match=r"candidates is .*a list of detectors, at least one"):
            of.choose(rows, make_set(101, seed=2), candidates=bad)


@pytest.mark.parametrize("bad", [3, [3], {"svhn": 3}, make_set(5), {"svhn": None}])
def test_real_sets_of_a_wrong_type_are_refused(bad):
    with pytest.raises(of.InputError, match=r'real is .*such as \{"svhn": rows\}'):
        of.choose(make_set(101), make_set(101, seed=2), candidates=[of.SSD()], real=bad)


def test_few_rows_are_scored_on_one_core(monkeypatch):
    fused = of.Fused([of.EnergyLogits(), of.CosineMean()]).fit(make_set(300, seed=1), held_out=make_set(101, seed=2))
    assert members.LITTLE == 2**25
    seen, score = [], of.CosineMean._score
    monkeypatch.setattr(of.CosineMean, "_score", lambda self, b: seen.append(torch.get_num_threads()) or score(self, b))
    numbers, before = 3 * 6, torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for rows in (10, 11):
            monkeypatch.setattr(members, "LITTLE", 10 * numbers)
            fused.score(make_set(20)[:rows])
        few = 1 if can_limit() else 2
        assert seen == [few, 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
