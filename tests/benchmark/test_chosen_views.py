"""Benchmarks whose views are chosen by stand-ins, on each backbone by itself and before an OOD set is read."""

from __future__ import annotations

import pytest
from tests.benchmark.test_held_out import AUTO, many_images
from tests.helpers.fake_benchmark import FakeBackbone, run_images

import outfield as of
from outfield.benchmark import runs
from outfield.detectors import ViewsChoice


@pytest.fixture
def prefers(monkeypatch):
    """Makes the choice fall on views by name, and notes the rows that it was given."""
    seen = {}

    def prefer(best):
        def choose(rows_of, device):
            seen.update({views: rows_of(views) for views in ("one", "flip", "six")})
            return ViewsChoice(best, {views: 0.1 if views == best else 0.2 for views in seen})

        monkeypatch.setattr(runs, "choose_views", choose)
        return seen

    return prefer


def run(tmp_path, backbone, **more):
    return run_images(tmp_path, backbone, many_images(), detectors=AUTO, held_out=40, **more)


@pytest.mark.parametrize("best", ["one", "flip", "six"])
def test_the_run_is_that_with_the_chosen_views(tmp_path, prefers, best):
    prefers(best)
    found = run(tmp_path / "auto", FakeBackbone(), views="auto")
    expected = run(tmp_path / best, FakeBackbone(), views=best)
    assert [record.fpr95 for record in found.records] == [record.fpr95 for record in expected.records]
    assert found.provenance["views"]["net"].startswith(f"{best} (one ")


def test_it_is_chosen_by_training_held_out_and_stand_in_images(tmp_path, prefers):
    seen, backbone = prefers("flip"), FakeBackbone()
    run(tmp_path, backbone, views="auto")
    assert {str(rows.train.about.get("views")) for rows in seen.values()} == {"None", "flip", "six"}
    for rows in seen.values():
        assert (len(rows.train), len(rows.held_out)) == (len(many_images()["train"]), 40)
        assert set(rows.stand_ins.levels.values()) == {"near", "far"}
        assert {len(one) for one in rows.stand_ins.values()} == {40}
    assert backbone.calls.count("strangers") == 1


def test_a_second_run_finds_the_choice(tmp_path):
    first = run(tmp_path, FakeBackbone(), views="auto")
    backbone = FakeBackbone()
    again = run(tmp_path, backbone, views="auto")
    assert backbone.calls == []
    assert again.provenance["views"] == first.provenance["views"]
    assert [*again.records] == [*first.records]


def test_without_stand_ins_there_is_nothing_to_choose_by(tmp_path):
    for detectors, held_out in (({"SSD": of.SSD()}, 40), (AUTO, 0)):
        with pytest.raises(of.InputError, match=r"views are chosen by stand-ins.*one, flip, six"):
            run_images(tmp_path, FakeBackbone(), many_images(), detectors=detectors, held_out=held_out, views="auto")
