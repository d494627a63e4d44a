"""Rows of a table that cannot be used are left out one by one, and each says why."""

from __future__ import annotations

import decimal

import numpy as np
import pandas as pd
import pytest
import torch

import outfield as of

GOOD = pd.DataFrame({"size": [1.0, 2.0, 4.0], "wet": [True, False, True], "town": ["Bonn", "Ulm", "Bonn"]})


def learned(missing: str = "refuse") -> of.TablePreprocessing:
    return of.TablePreprocessing.fit(GOOD, missing=missing)


def test_good_rows_are_those_of_a_call():
    rows, errors = learned().usable(GOOD)
    assert errors == {}
    assert torch.equal(rows.features, learned()(GOOD).features)
    assert rows.labels is None


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("size", None, "its cell in column 'size' is missing"),
        ("size", np.nan, "its cell in column 'size' is missing"),
        ("size", np.inf, "column 'size' holds a number here that is infinite, or above 1.8e308"),
        ("size", -np.inf, "infinite"),
        ("size", 10**400, "infinite, or above"),
        ("size", "big", "column 'size' holds 'big' here, which is no number"),
        ("size", "3", "column 'size' holds '3' here, which is no number"),
        ("size", [3], "which is no number"),
        ("wet", "true", "column 'wet' holds 'true' here, which is neither true nor false"),
        ("wet", None, "its cell in column 'wet' is missing"),
        ("town", None, "its cell in column 'town' is missing"),
        ("town", 3, "column 'town' holds 3 here, which is no text"),
    ],
)
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
    with pytest.warns(of.OutfieldWarning, match="1 cells that no training row had, such as '12'"):
        rows, errors = learned().usable(path)
    assert errors == {
        1: "column 'size' holds '1_000' here, which is no number",
        2: "its cell in column 'size' is missing",
        3: "column 'wet' holds 'maybe' here, which is neither true nor false",
        4: "column 'size' holds 'inf' here, which is no number",
        6: "its cell in column 'size' is missing",
    }
    with pytest.warns(of.OutfieldWarning):
        wanted = learned()(pd.DataFrame({"size": [1.5, 7.0], "wet": [True, False], "town": ["Bonn", "12"]}))
    assert torch.equal(rows.features, wanted.features)
    assert torch.equal(rows.features, learned_from(path, str, tmp_path))


def test_a_call_names_the_column_of_a_cell_that_is_no_number(tmp_path):
    (tmp_path / "new.csv").write_text('town,"size",wet\nBonn,1,true\nUlm,tall,true\n')
    with pytest.raises(
        of.InputError, match=r"new\.csv: column 'size' holds cells that are not numbers, such as 'tall'"
    ):
        learned()(tmp_path / "new.csv")


def learned_from(path, kind, folder):
    """The same rows from a Parquet file, with the cells as their own types."""
    frame = pd.DataFrame({"size": [1.5, np.nan, 7.0], "wet": [True, True, False], "town": ["Bonn", "Ulm", "12"]})
    frame.to_parquet(folder / "new.parquet")
    with pytest.warns(of.OutfieldWarning):
        rows, errors = learned().usable(kind(folder / "new.parquet"))
    assert list(errors) == [1]
    return rows.features


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (GOOD.drop(columns="wet"), "lacks column 'wet'"),
        (GOOD.assign(more=1, size=None), "has column 'more'"),
        (pd.DataFrame(), "no columns"),
        (3, "pass a DataFrame"),
    ],
)
def test_what_concerns_all_rows_is_an_error(frame, said):
    with pytest.raises(of.InputError, match=said):
        learned().usable(frame)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(of.StorageError):
        learned().usable(tmp_path / "none.csv")
