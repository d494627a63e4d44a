"""Views are chosen by stand-ins, as members are."""

from __future__ import annotations

import pytest
from tests.helpers.samples import make_set

import outfield as of
from outfield.detectors.choosing_views import CHOICES, Rows, ViewsChoice, choose_views
from outfield.stand_in import StandIns

TRAIN, HELD_OUT = make_set(200, seed=1), make_set(100, seed=2)


def rows(shift: float) -> Rows:
    made = {"turned": make_set(60, seed=3, shift=shift), "jigsaw": make_set(60, seed=4, shift=2 * shift)}
    return Rows(TRAIN, HELD_OUT, StandIns(made, {"turned": "near", "jigsaw": "far"}))


def test_the_views_that_tell_stand_ins_best_are_taken():
    asked = []

    def rows_of(views):
        asked.append(views)
        return rows({"one": 0.3, "flip": 0.9, "six": 0.5}[views])

    found = choose_views(rows_of, "cpu")
    assert asked == ["one", "flip", "six"] == [*CHOICES]
    assert found.views == "flip"
    for views, shift in (("one", 0.3), ("flip", 0.9), ("six", 0.5)):
        assert found.losses[views] == of.choose(*rows(shift), device="cpu").chosen.loss
    assert found.losses["flip"] < found.losses["six"] < found.losses["one"]


def test_of_equal_views_the_cheaper_are_taken():
    same = rows(0.4)
    assert choose_views(lambda views: same, "cpu", ["flip", "six"]).views == "flip"


@pytest.mark.parametrize(("views", "shown"), [("six", "six (one 25.3, six 21.0)"), ("one", "one (one 25.3, six 21.0)")])
def test_in_words(views, shown):
    assert str(ViewsChoice(views, {"one": 0.2531, "six": 0.21})) == shown
