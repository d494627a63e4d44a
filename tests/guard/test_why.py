"""Which columns make a row of a table OOD: closed forms of a Gaussian, brute force through whole tables, and words."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch
from tests.helpers.program import outfield
from tests.helpers.samples import make_set

import outfield as of
from outfield.guard import ColumnWhy, RowWhy, TableReader
from outfield.guard import explanation as why


class Quadratic(of.Detector):
    """zᵀ P z for the entries z of a row without its constant, where P is the inverse of their second moments."""

    def _fit(self, train):
        z = train.features[:, :-1].double()
        self.precision_ = torch.linalg.inv(z.T @ z / len(z))

    def _score(self, batch):
        z = batch["features"][:, :-1].double()
        return ((z @ self.precision_.to(z.device)) * z).sum(1)

    def _state(self):
        return {"precision": self.precision_}


def gaussian(rows: int, seed: int, correlation: float = 0.0) -> pd.DataFrame:
    """Columns a and b of this correlation, c on its own; other units each."""
    rng = np.random.default_rng(seed)
    a, rest, c = rng.standard_normal((3, rows))
    b = correlation * a + np.sqrt(1 - correlation**2) * rest
    return pd.DataFrame({"a": 5 + a, "b": 100 * b, "c": 0.1 * c})


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    town = rng.choice(["Bonn", "Kiel", "Ulm"], rows)
    size = rng.standard_normal(rows) + 4 * (town == "Ulm")
    return pd.DataFrame({"size": size, "weight": 2 * size + rng.normal(0, 0.3, rows), "town": town})


@pytest.fixture(scope="module")
def guard() -> of.Guard:
    return of.Guard.build_rows(people(300, 0), people(200, 1), detector="SSD")


@pytest.fixture(scope="module")
def straight() -> of.Guard:
    return of.Guard.build_rows(gaussian(600, 0), gaussian(400, 1), detector=Quadratic())


def test_an_odd_column_of_a_gaussian_is_found_in_closed_form(straight):
    frame = pd.DataFrame({"a": [5.2, 5.0], "b": [30.0, 900.0], "c": [0.05, 0.02]})
    (found,) = straight.why(frame)
    known = {column.name: column for column in straight.table.columns}
    z = np.array([(frame[name][1] - known[name].mean) / known[name].scale for name in "abc"])
    usual = np.array([(known[name].median - known[name].mean) / known[name].scale for name in "abc"])
    precision = straight.detector.precision_.numpy()
    for one in found.columns:
        place = "abc".index(one.column)
        changed = np.where(np.arange(3) == place, usual, z)
        assert one.score == pytest.approx(changed @ precision @ changed, rel=1e-5, abs=1e-6)
        assert one.fall == pytest.approx(z @ precision @ z - one.score, rel=1e-5, abs=1e-4)
        assert one.deviations == pytest.approx(z[place], rel=1e-12)
        assert one.value == frame[one.column][1]
        assert one.usual == known[one.column].median
        assert one.p_value == float(straight.threshold.p_value(np.array([one.score]))[0])
        assert one.is_ood == (one.score > straight.threshold.value)
    assert found.row == 1
    assert found.is_ood
    assert found.columns[0].column == "b"
    assert found.columns[0].deviations == pytest.approx(9, abs=0.7)
    assert [one.fall for one in found.columns] == sorted((one.fall for one in found.columns), reverse=True)
    assert found.alone == ("b",)
    assert found.together == ()
    assert found.p_value_together is None
    assert found.furthest == found.columns[0]
    assert (found.score, found.p_value) == (straight(frame)[1].score, straight(frame)[1].p_value)
    assert found.reason == "explained by b"


def test_two_columns_that_are_odd_only_together():
    made = of.Guard.build_rows(gaussian(600, 0, 0.98), gaussian(400, 1, 0.98), detector=Quadratic())
    frame = pd.DataFrame({"a": [5 + 2.0], "b": [-200.0], "c": [0.0]})
    (found,) = made.why(frame)
    assert all(abs(one.deviations) < 2.5 for one in found.columns)
    assert all(one.is_ood for one in found.columns)
    assert found.alone == ()
    assert set(found.together) == {"a", "b"}
    assert found.together[0] == found.columns[0].column  # the first is the one that lowers the score most
    both = frame.assign(**{name: made.table.columns["abc".index(name)].median for name in "ab"})
    assert found.p_value_together == pytest.approx(made(both)[0].p_value)
    first, second = found.together
    said = f"explained by no single column, but by {first} and {second} together (p-value {found.p_value_together:.3g} then)"
    assert found.reason == said


def wide(rows: int, seed: int) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed).standard_normal((rows, 5))
    return {name: drawn[:, i] for i, name in enumerate("abcde")}


@pytest.mark.parametrize(("odd", "told"), [(1, 0), (2, 2), (3, 3), (4, 0)])
def test_as_many_columns_are_named_together_as_it_takes_and_three_at_most(odd, told):
    made = of.Guard.build_rows(wide(600, 0), wide(400, 1), detector=Quadratic())
    row = {name: [9.0 + i if i < odd else 0.0] for i, name in enumerate("abcde")}
    (found,) = made.why(row)
    assert found.together == tuple("abcde"[i] for i in range(odd - 1, -1, -1))[:told]
    assert found.alone == (("a",) if odd == 1 else ())
    if odd == 4:
        assert found.reason.startswith(
            "explained by no single column, nor by a few together (furthest from its mean: d = 12 (+"
        )
        assert found.p_value_together is None


@pytest.mark.parametrize("detector", ["SSD", None])
def test_brute_force_through_whole_tables(detector):
    """Each column of a frame changed by hand, and the guard asked as ever."""
    truths = np.random.default_rng(3).random(700) < 0.8
    train = people(700, 0).assign(member=truths)
    made = of.Guard.build_rows(train[:400], train[400:], detector=detector)
    new = people(30, 5).assign(member=True)
    new.loc[3, ["size", "member"]] = 9.0, False
    new.loc[4, "town"] = "Bonn"
    new["weight"] = new["weight"].where(new.index != 5, -8.0)
    new = new.astype({"member": bool})
    found = made.why(new, range(30))
    assert [one.row for one in found] == [*range(30)]
    verdicts = made(new)
    medians = {column.name: [column.median] for column in made.table.columns}
    usual = {**medians, "town": ["Bonn", "Kiel", "Ulm"], "member": [True]}
    values = [(name, value) for name, own in usual.items() for value in own]
    changed = {(name, value): made(new.assign(**{name: value})).scores for name, value in values}
    for one in found:
        assert one.score == verdicts[one.row].score
        assert one.is_ood == verdicts[one.row].is_ood
        for column in one.columns:
            scores = {value: own[one.row] for (name, value), own in changed.items() if name == column.column}
            assert column.score == pytest.approx(min(scores.values()), rel=1e-4, abs=1e-4)
            assert scores[column.usual] == pytest.approx(column.score, rel=1e-4, abs=1e-4)
            assert column.fall == one.score - column.score
            assert column.fall >= 0 or column.kind != "text"
        alone = tuple(column.column for column in one.columns if not column.is_ood)
        assert one.alone == (alone if one.is_ood else ())
        assert bool(one.together) <= (one.is_ood and not one.alone)
    assert [one.row for one in made.why(new)] == np.flatnonzero(verdicts.is_ood).tolist()


def test_the_same_again_and_whatever_the_batches_are(guard, monkeypatch):
    new = people(20, 5).assign(weight=[-9.0, 3.0] * 10)
    first = guard.why(new)
    assert guard.why(new) == first
    sizes = []
    score = type(guard.detector).score

    def counted(self, rows):
        sizes.append(len(rows))
        return score(self, rows)

    monkeypatch.setattr(type(guard.detector), "score", counted)
    monkeypatch.setattr(why, "ENTRIES", 2 * 5 * 6)
    few = guard.why(new)
    assert max(sizes[1:]) == 2 * 5  # the first are the verdicts; two rows with five changes each
    assert [one.row for one in few] == [one.row for one in first]
    for one, other in zip(few, first, strict=True):
        assert (one.alone, one.together) == (other.alone, other.together)
        assert [column.fall for column in one.columns] == pytest.approx([c.fall for c in other.columns], abs=1e-4)
    assert len(first) > 3


def test_texts_are_put_to_the_level_with_the_lowest_score(guard):
    new = pd.DataFrame({"size": [0.0, 0.0, 0.0], "weight": [0.0, 0.0, 0.0], "town": ["Ulm", "Bonn", "Rome"]})
    with pytest.warns(of.OutfieldWarning, match="1 cell that no training row had"):
        ulm, bonn, rome = guard.why(new, [0, 1, 2])
    town = {one.column: one for one in ulm.columns}["town"]
    assert (town.kind, town.value, town.deviations) == ("text", "Ulm", None)
    assert town.usual in ("Bonn", "Kiel")
    assert town.fall > 0
    assert ulm.columns[0] == town
    own = {one.column: one for one in bonn.columns}["town"]
    if own.usual == "Bonn":
        assert own.fall == 0
        assert own.text == "town = 'Bonn', as usual"
    assert {one.column: one for one in rome.columns}["town"].value == "Rome"


def test_missing_cells_are_told_as_such():
    train = people(500, 0)
    made = of.Guard.build_rows(train[:300], train[300:], detector="SSD", missing="median")
    new = pd.DataFrame({"size": [np.nan, 0.1], "weight": [40.0, 0.2], "town": ["Bonn", None]})
    heavy, nowhere = made.why(new, [0, 1])
    told = {one.column: one for one in heavy.columns}
    assert (told["size"].value, told["size"].deviations, told["size"].fall) == (None, None, 0)
    assert told["size"].text == "size = missing, as usual"
    assert heavy.columns[0].column == "weight"
    assert heavy.furthest.column == "weight"
    town = nowhere.columns[0]
    assert (town.column, town.value, nowhere.alone) == ("town", None, ("town",))  # no training row was without one
    assert town.usual in ("Bonn", "Kiel")
    assert town.text == f"town = missing, with '{town.usual}' p-value {town.p_value:.3g}"


def test_rows_that_cannot_be_used(guard):
    new = people(6, 1)
    new.loc[[0, 4], "size"] = np.nan
    new.loc[[2, 5], "weight"] = [-30.0, 30.0]
    with pytest.raises(of.InputError, match="cells are missing"):
        guard.why(new)
    with pytest.raises(of.InputError, match="on_error"):
        guard.why(new, on_error="stop")
    found = guard.why(new, on_error="skip")
    assert {2, 5} <= {one.row for one in found}
    assert not {0, 4} & {one.row for one in found}
    assert {one.row: one for one in found}[5].columns == guard.why(new.iloc[[5]])[0].columns
    asked = guard.why(new, [5, 4, 2, 5], on_error="skip")
    assert [one.row for one in asked] == [5, 4, 2, 5]
    assert asked[1] == RowWhy.failed(4, "its cell in column 'size' is missing")
    assert asked[1].score is asked[1].is_ood is None
    assert repr(asked[1]) == "RowWhy(row 4: its cell in column 'size' is missing)"
    assert asked[0] == asked[3]
    assert {column.value for column in asked[2].columns} == {*new.loc[2]}
    only = guard.why(new.iloc[[0]], [0], on_error="skip")
    assert [one.error for one in only] == ["its cell in column 'size' is missing"]
    assert guard.why(new.iloc[[0]], on_error="skip") == []


def test_one_column():
    x = np.random.default_rng(0).normal(3, 2, 500)
    made = of.Guard.build_rows({"x": x}, detector="SSD")
    (found,) = made.why({"x": [3.0, 60.0]})
    assert (found.row, found.alone, len(found.columns)) == (1, ("x",), 1)
    assert found.columns[0].value == 60
    assert found.columns[0].deviations == pytest.approx(28, rel=0.1)
    assert found.furthest == found.columns[0]


def test_a_row_in_which_all_is_as_usual_has_no_culprit(straight):
    """A threshold below every score: even the row of medians is OOD, and no column can be changed."""
    low = of.Threshold.fit(np.linspace(-2, -1, 40))
    made = of.Guard(TableReader(straight.table), straight.detector, low)
    medians = {column.name: [column.median] for column in straight.table.columns}
    (found,) = made.why(medians)
    assert (found.alone, found.together, [one.fall for one in found.columns]) == ((), (), [0, 0, 0])
    assert found.text.startswith("explained by no single column, nor by a few together (furthest from its mean: ")
    assert ";" not in found.text


def test_a_loaded_guard_says_the_same(guard, tmp_path):
    new = people(9, 5).assign(weight=-9.0)
    guard.save(tmp_path / "my.guard")
    assert of.Guard.load(tmp_path / "my.guard", device="cpu").why(new) == guard.why(new)
    new.to_parquet(tmp_path / "new.parquet")
    assert guard.why(tmp_path / "new.parquet") == guard.why(new)


def test_rows_are_asked_for_in_several_ways(guard):
    new = people(5, 5)
    for asked, numbers in (
        (3, [3]), ([3, 0], [3, 0]), (np.array([4, 4], np.uint8), [4, 4]), ([], []), ([False] * 5, []),
        (np.array([True, False, False, True, False]), [0, 3]),
    ):  # fmt: skip
        assert [one.row for one in guard.why(new, asked)] == numbers
    told = guard.why(new, 0, most=2)[0]
    assert told.columns == guard.why(new, 0)[0].columns[:2]
    assert (told.is_ood, told.reason, told.alone) == (False, "not OOD", ())
    for wrong in (5, -1, [0, 5], [0.5], ["0"], [True], [[0]], "all"):
        with pytest.raises(
            of.InputError, match=r"rows is .*; it must be numbers of rows from 0 to 4, a truth for each"
        ):
            guard.why(new, wrong)
    for wrong in (0, 1.5, "x"):
        with pytest.raises(of.InputError, match="most is"):
            guard.why(new, most=wrong)


def test_features_have_no_columns_to_tell(guard):
    plain = of.Guard.build_rows(make_set(n=300).features, detector="KNN", network_features=True)
    for ask in (lambda: plain.why(np.eye(3)), lambda: next(plain.stream(["x.npz"], why=True))):
        with pytest.raises(of.InputError, match=r"this one looks at features.*Guard\.build_rows\(frame\)"):
            ask()
    with pytest.raises(of.InputError, match="pass the table"):
        guard.why(guard.features(people(3, 0)))


def test_words_and_plain_data(straight):
    (found,) = straight.why({"a": [5.0], "b": [-900.0], "c": [0.0]})
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["columns"][0] == found.columns[0].to_dict()
    assert plain["columns"][0]["column"] == "b"
    assert plain["furthest"]["column"] == "b"
    assert (plain["row"], plain["alone"], plain["together"], plain["error"]) == (0, ["b"], [], None)
    assert repr(found).startswith(f"RowWhy(row 0: p-value {found.p_value:.3g}, explained by b; b = -900 (-9.")
    assert repr(found.columns[0]).startswith("ColumnWhy(b = -900 (-9.")
    one = ColumnWhy("a", "number", 3.0, 1.0, 2.5, 4.0, 0.5, 0.25, False)
    assert one.text == "a = 3 (+2.5 sd), with 1 p-value 0.25"
    assert repr(one) == "ColumnWhy(a = 3 (+2.5 sd), with 1 p-value 0.25, score 0.5: 4 lower)"
    assert ColumnWhy("a", "number", 3.0, 1.0, -1e30, 4.0, 0.5, 0.25, False).own == "a = 3 (-1.0e+30 sd)"
    row = RowWhy(7, 4.5, 0.01, True, ("a", "b"), columns=(one,) * 5)
    assert repr(row) == f"RowWhy(row 7: p-value 0.01, explained by a or b, each alone; {'; '.join([one.text] * 3)})"
    assert RowWhy(7, 4.5, 0.01, True, tuple("abc")).text == "explained by a, b or c, each alone"
    assert RowWhy(7, 4.5, 0.01, True, tuple("abcd")).text == "explained by any of 4 columns (a, b, c, …), each alone"
    assert RowWhy(7, 4.5, 0.01, True).text == "explained by no single column, nor by a few together"
    assert RowWhy(7, 4.5, 0.01, True).to_dict()["furthest"] is None
    three = RowWhy(7, 4.5, 0.01, True, (), tuple("abc"), 0.5)
    assert three.text == "explained by no single column, but by a, b and c together (p-value 0.5 then)"
    for value, shown in (
        (None, "missing"), (True, "true"), (12345678.0, "12345678"), (0.123456789, "0.123457"), (1e15, "1e+15"),
        ("a'b", '"a\'b"'), ("x" * 40, repr("x" * 40)), ("x" * 41, repr("x" * 39) + "…"),
    ):  # fmt: skip
        assert replace(one, value=value, deviations=None, column="a\nb").own == f"'a\\nb' = {shown}"


def test_deviations_are_told_where_a_standard_deviation_is_known():
    frame = people(400, 0).assign(always=7.0, member=[True, True, False, True] * 100)
    made = of.Guard.build_rows(frame[:250], frame[250:], detector="SSD")
    (found,) = made.why(people(1, 5).assign(always=8.0, member=False, weight=1e300))
    told = {one.column: one for one in found.columns}
    assert (told["always"].value, told["always"].usual, told["always"].deviations) == (8, 7, None)
    assert (told["member"].value, told["member"].usual, told["member"].deviations) == (False, True, None)
    assert told["weight"].deviations == 1e30
    assert "Infinity" not in json.dumps(found.to_dict())


def test_the_command_line_tells_the_columns(guard, tmp_path):
    guard.save(tmp_path / "my.guard")
    frame = people(6, 1).astype({"size": object})
    frame.loc[[1, 4], "weight"] = [-30.0, 30.0]
    frame.at[3, "size"] = "tall"
    frame.to_csv(tmp_path / "new.csv", index=False)
    ask = ("guard", "check", tmp_path / "my.guard", tmp_path / "new.csv", tmp_path / "none.csv", "--why")
    lines = outfield(*ask, "--jsonl", code=0)
    found = [json.loads(line) for line in lines.stdout.splitlines()]
    assert found == json.loads(outfield(*ask, "--json").stdout)
    wanted = {one.row: one for one in guard.why(tmp_path / "new.csv", most=3, on_error="skip")}
    assert {1, 4} <= {*wanted}
    assert [one["why"] for one in found] == [wanted[i].to_dict() if i in wanted else None for i in range(6)] + [None]
    assert [bool(one["error"]) for one in found] == [False, False, False, True, False, False, True]
    shown = outfield(*ask).stdout.splitlines()
    assert shown[0].endswith("why")
    assert shown[2].endswith(wanted[1].text)
    assert shown[4].endswith("which is no number")
    for ending in ("csv", "parquet"):
        assert outfield(*ask, "-o", tmp_path / f"out.{ending}").returncode == 0
    rows = [*csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text()))]
    assert [*rows[0]][-1] == "why"
    texts = [wanted[i].text if i in wanted else None for i in range(6)] + [None]
    assert [row["why"] or None for row in rows] == texts
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet")["why"].to_pylist() == texts
    without = [json.loads(line) for line in outfield(*ask[:-1], "--jsonl").stdout.splitlines()]
    assert without == [{name: value for name, value in one.items() if name != "why"} for one in found]
    frame.iloc[[0]].to_csv(tmp_path / "good.csv", index=False)
    outfield("guard", "check", tmp_path / "my.guard", tmp_path / "good.csv", "--why", "-o", tmp_path / "good.jsonl")
    assert json.loads((tmp_path / "good.jsonl").read_text())["why"] is None


def test_the_command_line_refuses_guards_without_columns(tmp_path):
    plain = of.Guard.build_rows(make_set(n=300).features, detector="KNN", network_features=True)
    plain.save(tmp_path / "plain.guard")
    make_set(n=3).save(tmp_path / "new.safetensors")
    done = outfield("guard", "check", tmp_path / "plain.guard", tmp_path / "new.safetensors", "--why", code=2)
    assert "looks at features, whose columns mean nothing by themselves; leave it out" in done.said
    assert "outfield guard rows TABLE" in done.said
