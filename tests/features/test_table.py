"""Tables as features: what is learned on training rows, kept, and applied to later ones."""

import decimal
import warnings
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import outfield as of
from outfield.features import LARGEST, csv_text


def people(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "income": rng.lognormal(10, 1, rows),
            "member": rng.random(rows) < 0.3,
            "town": rng.choice(["Bonn", "Ulm", "Kiel"], rows),
            "target": rng.choice(["no", "yes"], rows),
        }
    )


@pytest.fixture(scope="module")
def table() -> of.TablePreprocessing:
    return of.TablePreprocessing.fit(people(), label="target")


def test_rows_are_those_of_scikit_learn_and_a_constant(table):
    frame, later = people(), people(20, 1)
    rows = table(later)
    numbers = StandardScaler().fit(frame[["age", "income"]].to_numpy(float))
    levels = OneHotEncoder(sparse_output=False).fit(frame[["town"]].to_numpy())
    expected = np.concatenate(
        [
            numbers.transform(later[["age", "income"]].to_numpy(float)),
            later[["member"]].to_numpy(float),
            levels.transform(later[["town"]].to_numpy()),
            np.full((20, 1), 3.0 * np.sqrt(6)),
        ],
        axis=1,
    )
    np.testing.assert_allclose(rows.features.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert table.names == ("age", "income", "member", "town = Bonn", "town = Kiel", "town = Ulm", "constant")
    assert table.classes == ("no", "yes")
    assert rows.labels.tolist() == (later["target"] == "yes").astype(int).tolist()


def test_the_length_of_a_row_is_not_lost():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((300, 2)), columns=["a", "b"])
    far = frame * 6  # the same directions, which alone would tell nothing
    table = of.TablePreprocessing.fit(frame[:200])
    for detector in (of.KNN(k=5), of.SSD(), of.Auto()):
        detector.fit(table(frame[:200]))
        assert of.auroc(detector.score(table(frame[200:])), detector.score(table(far[200:]))) > 0.9


def test_without_a_label_all_rows_are_one_class():
    rows = of.FeatureSet.from_frame(people().drop(columns="target"))
    assert rows.labels.tolist() == [0] * 60
    assert of.Auto().fit(of.FeatureSet.from_frame(people(200).drop(columns="target"))).names == ("KNN", "SSD")


def test_columns_are_chosen_and_found_by_name(table):
    later = people(20, 1)
    mixed = later[["town", "target", "income", "member", "age"]]
    assert table(mixed).features.equal(table(later).features)
    two = of.TablePreprocessing.fit(people(), label="target", columns=["income", "age"])
    assert two.names == ("income", "age", "constant")
    assert two(later).features.equal(two(later[["age", "income"]]).features)  # others may be there or not
    assert two(later[["age", "income"]]).labels is None


def test_labels_are_left_out_where_a_class_is_new(table):
    later = people(20, 1)
    later.loc[3, "target"] = "perhaps"
    assert table(later).labels is None
    later.loc[3, "target"] = None
    assert table(later).labels is None


def test_whole_numbers_as_labels_count_in_their_order():
    frame = pd.DataFrame({"a": np.arange(4.0), "target": [10, 9, 9, -1]})
    found = of.TablePreprocessing.fit(frame, label="target")
    assert found.classes == ("-1", "9", "10")
    assert found(frame).labels.tolist() == [2, 1, 1, 0]
    for texts in (["²", "1"], ["--1", "1"]):
        assert set(of.TablePreprocessing.fit(frame.assign(target=texts * 2), label="target").classes) == set(texts)
    with pytest.raises(of.InputError, match="not whole"):
        of.TablePreprocessing.fit(frame.assign(target=0.5), label="target")
    with pytest.raises(of.InputError, match="missing cells"):
        of.TablePreprocessing.fit(frame.assign(target=["a", None, "a", "b"]), label="target")


def test_numbers_may_stay_as_they_are():
    frame = people()[["age"]]
    rows = of.FeatureSet.from_frame(frame, standardise=False).features
    assert rows[:, 0].tolist() == frame["age"].tolist()
    with pytest.raises(of.InputError, match="standardise is 'yes'"):
        of.FeatureSet.from_frame(frame, standardise="yes")


def test_what_was_learned_is_applied_as_it_is(table):
    later = people(20, 1)
    assert of.FeatureSet.from_frame(later, standardise=table).features.equal(table(later).features)
    with pytest.raises(of.InputError, match="leave these out"):
        of.FeatureSet.from_frame(later, "target", standardise=table)


def test_a_constant_column_keeps_its_unit():
    frame = pd.DataFrame({"a": [0.1] * 10, "b": np.arange(10.0)})
    table = of.TablePreprocessing.fit(frame)
    assert table(pd.DataFrame({"a": [1.1], "b": [0.0]})).features[0, 0].item() == pytest.approx(1.0)


def test_huge_numbers_are_finite():
    frame = pd.DataFrame({"a": [1e300, -1e300, 5e299]})
    table = of.TablePreprocessing.fit(frame)
    assert table(frame).features[:, 0].abs().max() < 3
    plain = of.FeatureSet.from_frame(frame, standardise=False).features
    assert plain[:2, 0].tolist() == pytest.approx([LARGEST, -LARGEST])


def test_missing_cells_are_refused_by_name_and_count(table):
    later = people(20, 1)
    later.loc[[2, 4], "income"] = np.nan
    later.loc[5, "town"] = None
    with pytest.raises(of.InputError, match=r"'income' \(2 of 20\), 'town' \(1 of 20\); .*missing='median'"):
        table(later)
    with pytest.raises(of.InputError, match="'income'"):
        of.TablePreprocessing.fit(later, label="target")
    with pytest.raises(of.InputError, match="missing is 'mean'"):
        of.TablePreprocessing.fit(people(), missing="mean")


def test_missing_cells_become_the_median_of_the_training_rows():
    frame = pd.DataFrame({"a": [1.0, 2.0, 9.0, np.nan], "b": ["x", "y", "x", None], "c": [True, True, False, None]})
    table = of.TablePreprocessing.fit(frame, missing="median")
    filled = np.array([1.0, 2.0, 9.0, 2.0])
    rows = table(frame).features.numpy()
    np.testing.assert_allclose(rows[:, 0], (filled - filled.mean()) / filled.std(), rtol=1e-6)
    assert rows[3, 1:4].tolist() == [0, 0, 1]
    alone = table(pd.DataFrame({"a": [None], "b": [None], "c": [None]})).features.numpy()
    np.testing.assert_array_equal(alone, rows[3:])


def test_an_unseen_level_is_told_and_has_no_entry(table):
    later = people(3, 1)
    later["town"] = ["Rom", "Ulm", "Rom"]
    with pytest.warns(of.OutfieldWarning, match="'town' has 2 cells that no training row had, such as 'Rom'"):
        rows = table(later)
    assert rows.features[:, 3:6].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(("change", "message"), [
    (lambda f: f.drop(columns=["age", "town"]), "lacks columns 'age', 'town'; it has columns 'income'"),
    (lambda f: {"age": [1.0]}, r"it has column 'age'$"),
    (lambda f: f.assign(more=1), "has column 'more', which the training rows did not have"),
    (lambda f: f.assign(age="old"), "'age' holds texts, but numbers in the training rows"),
    (lambda f: f.assign(town=1), "'town' holds numbers, but texts"),
    (lambda f: f.assign(age=pd.Timestamp("2026-01-01")), "'age' holds datetime64"),
    (lambda f: f.assign(age=np.inf), "'age' holds 20 infinite numbers"),
    (lambda f: f.assign(town=[1, "a"] * 10), "'town' holds int and str"),
    (lambda f: f[:0], "have rows"),
    (lambda f: f.rename(columns={"age": "town"}), "several columns called 'town'"),
    (lambda f: f.rename(columns={"age": 3}), "texts as names"),
    (lambda f: f.to_numpy(), "the table must be an array of numbers; got ndarray that holds Python objects"),
    (lambda f: np.zeros((2, 2, 2)), r"the table has shape \(2, 2, 2\); an array of rows is \(N, D\)"),
    (lambda f: [[True]], "the table must hold real numbers"),
    (lambda f: 3, "the table is a int; pass a DataFrame"),
    (lambda f: {"age": [1], "town": []}, "equally long"),
])  # fmt: skip
def test_another_table_is_refused(table, change, message):
    with pytest.raises(of.InputError, match=message):
        table(change(people(20, 1)))


@pytest.mark.parametrize(("settings", "message"), [
    ({"label": "class"}, "no column 'class'"),
    ({"columns": ["age", "height"]}, "no column 'height'"),
    ({"columns": "age"}, "list of names"),
    ({"columns": 5}, "list of names"),
    ({"columns": []}, "at least one"),
    ({"columns": ["age", "age"]}, "each once"),
    ({"columns": ["age", "target"], "label": "target"}, "not the label"),
])  # fmt: skip
def test_columns_that_cannot_be_taken_are_refused(settings, message):
    with pytest.raises(of.InputError, match=message):
        of.TablePreprocessing.fit(people(), **settings)


def test_columns_that_tell_nothing_are_refused():
    names = pd.DataFrame({"id": [f"row {i}" for i in range(201)]})
    with pytest.raises(of.InputError, match="'id' holds 201 different texts"):
        of.TablePreprocessing.fit(names)
    assert len(of.TablePreprocessing.fit(names[:200]).names) == 201
    with pytest.raises(of.InputError, match="'a' is empty; drop it"):
        of.TablePreprocessing.fit({"a": [None, None]}, missing="median")


def test_frames_of_all_kinds_and_files_are_the_same_table(table, tmp_path):
    later = people(20, 1)
    later.to_csv(tmp_path / "later.csv", index=False)
    later.sort_index(ascending=False)[::-1].to_parquet(tmp_path / "later.parquet")  # with an index
    expected = table(later).features
    kinds = later.astype({"town": "category", "age": "Int64", "member": "boolean"})
    arrow = pyarrow.Table.from_pandas(later, preserve_index=False)
    for same in (kinds, arrow, later.to_dict("list"), str(tmp_path / "later.csv"), tmp_path / "later.parquet"):
        assert table(same).features.equal(expected)
    with pytest.raises(of.InputError, match=r"tables are read from .csv or .parquet, not '.xlsx'"):
        table(tmp_path / "later.xlsx")
    with pytest.raises(of.StorageError):
        table(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("age,income\n")
    with pytest.raises(of.InputError, match="has no rows"):
        table(tmp_path / "empty.csv")


def test_texts_that_look_like_numbers_stay_texts_in_a_csv(tmp_path):
    frame = pd.DataFrame({"code": ["07", "12", "x"], "size": [1, 2, 3]})
    table = of.TablePreprocessing.fit(frame)
    frame[:2].to_csv(tmp_path / "later.csv", index=False)
    assert table(tmp_path / "later.csv").features.equal(table(frame[:2]).features)


def test_it_is_kept_in_a_file(table, tmp_path):
    table.save(tmp_path / "table.safetensors")
    again = of.TablePreprocessing.load(tmp_path / "table.safetensors")
    assert again == table
    assert again.fingerprint() == table.fingerprint()
    of.FeatureSet(np.eye(2)).save(tmp_path / "other.safetensors")
    with pytest.raises(of.FileFormatError, match="FeatureSet"):
        of.TablePreprocessing.load(tmp_path / "other.safetensors")


def test_a_detector_refuses_rows_of_another_table(table):
    detector = of.KNN(k=1).fit(table(people()))
    other = of.TablePreprocessing.fit(people(60, 5), label="target")
    with pytest.raises(of.InputError, match="table of 4 columns"):
        detector.score(other(people(20, 1)))


def test_kinds_of_columns():
    for column, kind in [
        ([1, 2], "number"),
        (np.array(["x", "y"]), "text"),
        ([True, None], "truth"),
        (pd.array([1, None], dtype="Int64"), "number"),
        ([Decimal("1.25"), None, Decimal("NaN"), 2], "number"),
    ]:
        (found,) = of.TablePreprocessing.fit({"a": column}, missing="median").columns
        assert found.kind == kind
    assert found.median == 1.625
    for wrong, words in [
        (np.eye(2), "one value for each row"),
        ([10**400], "column 'a' holds a number that is too large"),
        (1.5, r"column 'a' is 1\.5; a column is a list"),
    ]:
        with pytest.raises(of.InputError, match=words):
            of.TablePreprocessing.fit({"a": wrong})


def test_categories_are_levels_also_where_they_are_numbers(tmp_path):
    lines = pd.DataFrame({"line": pd.Categorical([7, 61, 7, None]), "x": np.arange(4.0)})
    table = of.TablePreprocessing.fit(lines, missing="median")
    assert table.names == ("line = 61", "line = 7", "x", "constant")
    expected = [[0, 1], [1, 0], [0, 1], [0, 0]]
    lines.to_parquet(tmp_path / "lines.parquet")
    for frame in (lines, pyarrow.Table.from_pandas(lines), tmp_path / "lines.parquet"):
        assert table(frame).features[:, :2].tolist() == expected
    counted = of.TablePreprocessing.fit(lines[:3], label="line")
    assert counted.classes == ("7", "61")
    assert table(lines.assign(line=7)).features[:, :2].tolist() == [[0, 1]] * 4


def test_the_index_of_a_frame_is_no_column(tmp_path):
    frame = pd.DataFrame({"x": np.arange(4.0), "y": [1.0, 3.0, 2.0, 5.0]}, index=[10, 20, 30, 41])
    table = of.TablePreprocessing.fit(frame)
    frame.to_csv(tmp_path / "indexed.csv")
    for indexed in (tmp_path / "indexed.csv", pd.read_csv(tmp_path / "indexed.csv")):
        for act in (of.TablePreprocessing.fit, table):
            with pytest.raises(of.InputError, match=r"a column has no name.*index=False.*--columns"):
                act(indexed)
        assert of.TablePreprocessing.fit(indexed, columns=["x", "y"])(indexed).features.equal(table(frame).features)
    for name in (None, "customer"):
        frame.rename_axis(name).to_parquet(tmp_path / "indexed.parquet")
        assert of.TablePreprocessing.fit(tmp_path / "indexed.parquet").names == ("x", "y", "constant")


def test_numbers_at_the_end_of_float64_are_standardised():
    largest = np.finfo(float).max
    frame = pd.DataFrame({"a": [largest, -largest, largest, -largest]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = of.TablePreprocessing.fit(frame)
        assert table.columns[0].median == 0
        assert table(frame).features[:, 0].tolist() == pytest.approx([1, -1, 1, -1])
        same = of.TablePreprocessing.fit(pd.DataFrame({"a": [largest, largest]}))
        assert same.columns[0].median == largest


def test_numbers_with_a_text_among_them_are_told():
    numbers = [str(i / 10) for i in range(20)]
    with pytest.warns(of.OutfieldWarning, match="'age' is taken as texts with 21 levels.*such as 'unknown'"):
        of.TablePreprocessing.fit({"age": [*numbers, "unknown"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for quiet in ([*numbers[1:], "unknown"], [*numbers, "2.0"], numbers[:11] + list("abcdefghijk")):
            of.TablePreprocessing.fit({"age": quiet})


@pytest.mark.parametrize(("made", "words"), [
    (lambda: pd.DataFrame(np.eye(3)), r"texts as names, not \[0, 1, 2\]; set frame.columns = "),
    (lambda: pd.DataFrame(index=[0, 1]), "the table has no columns"),
    (lambda: {"a": np.array([b"x", b"y"], dtype=object)}, "holds bytes.*UTF-8"),
    (lambda: {"a": [date(2024, 1, 1)]}, "holds date.*leave it out"),
])  # fmt: skip
def test_tables_that_cannot_be_say_what_would_be_right(made, words):
    with pytest.raises(of.InputError, match=words):
        of.FeatureSet.from_frame(made())


def test_a_label_is_one_name():
    with pytest.raises(of.InputError, match=r"label is \['target'\]; it must be the name of a column"):
        of.FeatureSet.from_frame(people(), label=["target"])


def test_a_file_without_commas_says_so(tmp_path):
    for mark, point in ((";", ","), ("\t", "."), ("|", ".")):
        people().to_csv(tmp_path / "other.csv", index=False, sep=mark, decimal=point)
        with pytest.raises(of.InputError, match=r"begins with 'age.*separate the cells of a table by commas"):
            of.FeatureSet.from_frame(tmp_path / "other.csv")
    (tmp_path / "one.csv").write_text("a\n1\n2\n")
    assert of.TablePreprocessing.fit(tmp_path / "one.csv").names == ("a", "constant")
    pd.DataFrame({"a;b": [1, 2], "c": [3, 4]}).to_csv(tmp_path / "two.csv", index=False)
    assert of.TablePreprocessing.fit(tmp_path / "two.csv").names == ("a;b", "c", "constant")


GOOD = pd.DataFrame({"size": [1.0, 2.0, 4.0], "wet": [True, False, True], "town": ["Bonn", "Ulm", "Bonn"]})


def learned(missing: str = "refuse") -> of.TablePreprocessing:
    return of.TablePreprocessing.fit(GOOD, missing=missing)


def test_good_rows_are_those_of_a_call():
    rows, errors = learned().usable(GOOD)
    assert errors == {}
    assert torch.equal(rows.features, learned()(GOOD).features)
    assert rows.labels is None


@pytest.mark.parametrize(("column", "value", "said"), [
    ("size", None, "its cell in column 'size' is missing"),
    ("size", np.nan, "its cell in column 'size' is missing"),
    ("size", np.inf, "column 'size' holds inf here, which is infinite or above 1.8e308"),
    ("size", -np.inf, "infinite"),
    ("size", 10**400, "infinite or above"),
    ("size", "big", "column 'size' holds 'big' here, which is no number"),
    ("size", "3", "column 'size' holds '3' here, which is no number"),
    ("size", [3], "which is no number"),
    ("wet", "true", "column 'wet' holds 'true' here, which is neither true nor false"),
    ("wet", None, "its cell in column 'wet' is missing"),
    ("town", None, "its cell in column 'town' is missing"),
    ("town", 3, "column 'town' holds 3 here, which is no text"),
])  # fmt: skip
def test_a_row_of_a_frame_is_left_out(column, value, said):
    frame = GOOD.astype({column: object})
    frame.at[1, column] = value
    rows, errors = learned().usable(frame)
    assert list(errors) == [1]
    assert said in errors[1]
    assert rows.labels is None
    assert torch.equal(rows.features, learned()(GOOD.iloc[[0, 2]]).features)


def test_the_first_reason_is_told_and_nothing_may_be_left():
    frame = pd.DataFrame({"size": ["?", None, 1], "wet": [None, True, 7], "town": ["Bonn", 1, 2]}, dtype=object)
    rows, errors = learned().usable(frame)
    assert rows is None
    assert [errors[i].split("'")[1] for i in range(3)] == ["size", "size", "town"]


def test_where_missing_cells_are_filled_in_they_stay():
    frame = GOOD.astype({"size": object, "wet": object})
    frame.at[0, "size"], frame.at[1, "wet"], frame.at[2, "size"] = None, np.nan, "?"
    rows, errors = learned("median").usable(frame)
    assert list(errors) == [2]
    wanted = learned("median")(frame.iloc[:2].astype({"size": float}))
    assert torch.equal(rows.features, wanted.features)


def test_whole_numbers_decimals_and_truths_are_numbers():
    frame = GOOD.astype({"size": object}).assign(size=[np.int64(1), decimal.Decimal("2.5"), "x"])
    rows, errors = learned().usable(frame)
    assert list(errors) == [2]
    wanted = GOOD.iloc[:2].assign(size=[1.0, 2.5])
    assert torch.equal(rows.features, learned()(wanted).features)


def test_a_csv_is_read_cell_by_cell_only_where_it_must_be(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text(
        "town,size,wet\nBonn, 1.5e0 ,True\nUlm,1_000,false\nUlm,,0\nUlm,-.5,maybe\nUlm,inf,TRUE\n12,+7.,false\nUlm,NA,1\n"
    )
    with pytest.warns(of.OutfieldWarning, match="1 cell that no training row had, such as '12'"):
        rows, errors = learned().usable(path)
    assert errors == {
        1: "column 'size' holds '1_000' here, which is no number",
        2: "its cell in column 'size' is missing",
        3: "column 'wet' holds 'maybe' here, which is neither true nor false",
        4: "column 'size' holds 'inf' here, which is infinite or above 1.8e308",
        6: "its cell in column 'size' is missing",
    }
    with pytest.warns(of.OutfieldWarning):
        wanted = learned()(pd.DataFrame({"size": [1.5, 7.0], "wet": [True, False], "town": ["Bonn", "12"]}))
    assert torch.equal(rows.features, wanted.features)
    assert torch.equal(rows.features, learned_from(path, str, tmp_path))


@pytest.mark.parametrize(("text", "wet"), [(one, wet) for wet in (True, False) for one in ("01"[wet], *(
    form(str(wet)) for form in (str, str.lower, str.upper)))])  # fmt: skip
def test_true_and_false_as_a_csv_may_write_them(text, wet, tmp_path):
    (tmp_path / "new.csv").write_text(
        f"town,size,wet\nBonn,1,{text}\nUlm,tall,{text}\n"
    )  # the second is read cell by cell
    rows, errors = learned().usable(tmp_path / "new.csv")
    assert [*errors] == [1]
    assert torch.equal(rows.features, learned()(pd.DataFrame({"size": [1.0], "wet": [wet], "town": ["Bonn"]})).features)


def test_a_call_names_the_column_of_a_cell_that_is_no_number(tmp_path):
    (tmp_path / "new.csv").write_text('town,"size",wet\nBonn,1,true\nUlm,tall,true\n')
    with pytest.raises(of.InputError, match=r"new\.csv: column 'size' holds cells that are no.*, such as 'tall'"):
        learned()(tmp_path / "new.csv")


def learned_from(path, kind, folder):
    """The same rows from a Parquet file, with the cells as their own types."""
    frame = pd.DataFrame({"size": [1.5, np.nan, 7.0], "wet": [True, True, False], "town": ["Bonn", "Ulm", "12"]})
    frame.to_parquet(folder / "new.parquet")
    with pytest.warns(of.OutfieldWarning):
        rows, errors = learned().usable(kind(folder / "new.parquet"))
    assert list(errors) == [1]
    return rows.features


@pytest.mark.parametrize(("frame", "said"), [
    (GOOD.drop(columns="wet"), "lacks column 'wet'"),
    (GOOD.assign(more=1, size=None), "has column 'more'"),
    (pd.DataFrame(), "no columns"),
    (3, "pass a DataFrame"),
])  # fmt: skip
def test_what_concerns_all_rows_is_an_error(frame, said):
    with pytest.raises(of.InputError, match=said):
        learned().usable(frame)


def test_a_csv_that_ends_within_quotes_is_refused(tmp_path):
    path = tmp_path / "cut.csv"
    path.write_text('x,town\n1,Ulm\n2,"Bo')
    with pytest.raises(of.FileFormatError, match=r"cut\.csv ends within a quoted cell; close the quote"):
        of.TablePreprocessing.fit(path)
    path.write_text('x,town\n1,5" pipe\n2,"Bo, nn"\n')  # a quote inside of a cell is a sign like others
    assert of.TablePreprocessing.fit(path).columns[1].levels == ('5" pipe', "Bo, nn")


def test_durations_are_no_numbers():
    table = of.TablePreprocessing.fit({"x": [1.0, 2.0, 4.0]})
    rows, errors = table.usable({"x": np.array([1, 2], "timedelta64[s]")})
    assert rows is None
    assert [*errors] == [0, 1]
    assert "which is no number" in errors[0]


def test_no_cell_of_a_csv_is_a_formula():
    assert csv_text({"file": ["=HYPERLINK(1)", "a.png", None], "score": [-1.5, 2.0, None]}) == (
        "file,score\n'=HYPERLINK(1),-1.5\na.png,2.0\n,\n"
    )
