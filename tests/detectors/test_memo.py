"""What members share is made once, is what each would make alone, and is forgotten with the rows."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors.base import log_total, once, shared, wide
from outfield.detectors.combined import members
from outfield.energy.threads import can_limit

CALLS = []


def doubled(rows):
    CALLS.append(len(rows))
    return 2 * rows


@pytest.fixture(autouse=True)
def forget():
    CALLS.clear()


def test_plain_rows_keep_nothing():
    rows = torch.rand(3, 2)
    first, second = once(doubled, rows), once(doubled, rows)
    assert CALLS == [3, 3]
    assert first is not second
    assert torch.equal(first, 2 * rows)
    assert not hasattr(rows, "outfield_made")


def test_shared_rows_keep_what_is_made_of_them():
    rows = torch.rand(3, 2)
    piece = shared(rows)
    assert shared(piece) is piece  # a sum within a sum
    assert torch.equal(piece, rows)
    assert not hasattr(rows, "outfield_made")
    assert once(doubled, piece) is once(doubled, piece)
    assert once(wide, once(doubled, piece)) is once(wide, once(doubled, piece))
    assert CALLS == [3]
    assert torch.equal(once(wide, piece), rows.double())
    assert torch.equal(once(log_total, piece), rows.double().logsumexp(1))


def test_rows_that_are_right_already_do_not_keep_themselves():
    piece = shared(torch.rand(2, 2, dtype=torch.float64))
    assert once(wide, piece) is piece
    gone = weakref.ref(piece)
    gc.disable()
    try:
        del piece
        assert gone() is None
    finally:
        gc.enable()


MEMBERS = (
    *(of.EnergyLogits(), of.EnergyLogits(temperature=3.0), of.MaxLogit(), of.MSP(), of.GEN()),
    *(of.SSD(), of.SSD(ridge=0.3), of.SSD(on="spread"), of.GaussianMixture(), of.RMDS(), of.KNN(k=5), of.KDE()),
    *(of.CosineMean(), of.PCA(), of.CombOOD(), of.ViM(), of.fDBD(), of.NNGuide(), of.PerClassGaussian()),
)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("at_once", [4096, 16])
def test_members_together_score_as_each_alone(rows, at_once, monkeypatch):
    monkeypatch.setattr(of.RMDS, "rows_at_once", at_once)
    fused = of.Fused(MEMBERS).fit(make_set(300, seed=1), held_out=make_set(101, seed=2))
    test = make_set(60, seed=3, shift=0.5)[:rows]
    before = {name: value.clone() for name, value in test.tensors().items()}
    found = fused.explain(test)
    for i, member in enumerate(fused.members_):
        assert torch.equal(found.scores[:, i].float(), member.score(test)), found.members[i]
    assert torch.equal(found.total, fused.score(test))
    assert all(torch.equal(test.tensors()[name], value) for name, value in before.items())


def test_scores_beyond_float32_are_cut_off():
    huge = of.FeatureSet(
        torch.rand(3, 4), logits=torch.tensor([[1e300, 0], [0, 0], [-1e300, -1e300]], dtype=torch.float64)
    )
    fused = of.Fused([of.MaxLogit(), of.MSP()]).fit(make_set(300, classes=2), held_out=make_set(101, seed=2, classes=2))
    largest = torch.finfo(torch.float32).max
    assert fused._member_scores(huge.tensors())[:, 0].tolist() == [-largest, 0.0, largest]


class TestMembersAreAsked:
    """Rows that one member cannot score are refused, also after others were taken."""

    @pytest.mark.parametrize(
        ("changed", "error", "said"),
        [
            ({"features": torch.rand(4, 7)}, of.InputError, "features has 7 columns but this SSD was fitted on 6"),
            ({"logits": torch.rand(4, 5)}, of.InputError, "logits has 5 columns but this NNGuide was fitted on 3"),
            ({"logits": None}, of.MissingFieldError, "needs logits"),
            ({"about": {"views": "flip"}}, of.InputError, "views is 'flip' here"),
        ],
    )
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

    def test_a_member_that_was_fitted_again_is_asked_again(self):
        fused = of.Fused([of.SSD(), of.NNGuide(k=3)]).fit(make_set(300, seed=1), held_out=make_set(101, seed=2))
        test = make_set(5, seed=3)
        fused.score(test)
        fused.members_[0].fit(make_set(300, width=7))
        with pytest.raises(of.InputError, match="features has 6 columns but this SSD was fitted on 7"):
            fused.score(test)
        fused.fit(make_set(300, width=7), held_out=make_set(101, width=7, seed=2))
        assert len(fused.score(make_set(5, width=7))) == 5
        with pytest.raises(of.NotFittedError):
            of.Fused([of.SSD()]).score(test)


def test_few_rows_are_scored_on_one_core(monkeypatch):
    fused = of.Fused([of.EnergyLogits(), of.CosineMean()]).fit(make_set(300, seed=1), held_out=make_set(101, seed=2))
    assert members.LITTLE == 2**25
    seen, score = [], of.CosineMean._score
    monkeypatch.setattr(
        of.CosineMean, "_score", lambda self, batch: seen.append(torch.get_num_threads()) or score(self, batch)
    )
    numbers, before = 3 * 6, torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for rows in (10, 11):
            monkeypatch.setattr(members, "LITTLE", 10 * numbers)
            fused.score(make_set(20)[:rows])
        few = 1 if can_limit() else 2
        assert seen == [few, 2]
        assert torch.get_num_threads() == 2
        fused.fit(make_set(300, classes=6, seed=1), held_out=make_set(101, classes=6, seed=2))
        seen.clear()
        fused.score(make_set(10, classes=6))
        assert seen == [2]
    finally:
        torch.set_num_threads(before)
