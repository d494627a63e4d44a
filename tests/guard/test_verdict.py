"""Verdicts in words, as columns, and as plain data."""

import json
import sys
import types

import numpy as np
import pytest

import outfield as of
from outfield.guard import COLUMNS

GOOD = of.Verdict("a.png", 1, "cat", 2.5, 0.25, False, None, {"SSD": 0.3, "KNN": 0.2})
BAD = of.Verdict(None, 0, None, 99.0, 0.01, True, "KNN", {"SSD": 0.1, "KNN": 0.01})
BROKEN = of.Verdict.failed("c.png", "c.png is broken")
ALL = of.Verdicts([GOOD, BAD, BROKEN])


def test_in_words():
    assert repr(GOOD) == "Verdict(a.png: ok, cat, score 2.5, p-value 0.25)"
    assert repr(BAD) == "Verdict(OOD, 0, score 99, p-value 0.01, triggered by KNN)"
    assert repr(BROKEN) == "Verdict(c.png: c.png is broken)"
    assert [one.word for one in ALL] == ["ok", "OOD", "error"]
    assert repr(ALL).splitlines()[0] == "Verdicts(3 images, 1 OOD, 1 not readable)"
    assert len(repr(ALL).splitlines()) == 4
    many = of.Verdicts([GOOD] * 11)
    assert repr(many).splitlines()[0] == "Verdicts(11 images, 0 OOD)"
    assert len(repr(many).splitlines()) == 12
    assert repr(many).endswith("…")
    assert not repr(many[:10]).endswith("…")


def test_as_a_sequence():
    assert ALL[0] is GOOD
    assert ALL[-1] is BROKEN
    assert [*ALL[1:]] == [BAD, BROKEN]
    assert [*ALL.failed] == [BROKEN]
    np.testing.assert_array_equal(ALL.scores, [2.5, 99.0, np.nan])
    np.testing.assert_array_equal(ALL.p_values, [0.25, 0.01, np.nan])
    assert ALL.is_ood.tolist() == [False, True, False]


def test_as_columns():
    table = ALL.table()
    assert list(table) == [*COLUMNS, "p_value SSD", "p_value KNN"]
    assert table["p_value KNN"] == [0.2, 0.01, None]
    assert table["is_ood"] == [False, True, None]
    assert table["error"] == [None, None, "c.png is broken"]


def test_as_plain_data():
    plain = json.loads(json.dumps(ALL.to_list()))
    assert plain[0]["members"] == {"SSD": 0.3, "KNN": 0.2}
    assert set(plain[2]) == {*COLUMNS, "members"}


def test_what_pandas_is_given(monkeypatch):
    fake = types.ModuleType("pandas")
    fake.DataFrame = lambda table: ("frame", table)
    monkeypatch.setitem(sys.modules, "pandas", fake)
    assert ALL.to_frame() == ("frame", ALL.table())
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(of.MissingExtraError, match="tables"):
        ALL.to_frame()
