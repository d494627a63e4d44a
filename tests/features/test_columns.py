"""Tables: the numbers in the cells, or an error of ours that says which cell, column or file is wrong."""

import json
import os
from decimal import Decimal

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of
from outfield.features import formats as columns_file
from outfield.features import read_column, stream, write_columns

EXACT = 2**53


def load_csv(tmp_path, content: str | bytes) -> of.FeatureSet:
    path = tmp_path / "table.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return of.FeatureSet.load(path)


def save_parquet(path, columns, **options):
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def both(path):
    """Ways to read a Parquet file, each of which must find what is wrong."""
    return [lambda: of.FeatureSet.load(path), lambda: list(of.open_features(path).batches(3))]


@pytest.mark.parametrize(("content", "kind", "words"), [
    ("", of.FileFormatError, "is empty"),
    ("\n", of.FileFormatError, "no columns"),
    ("feature_0,feature_1\n", of.InputError, "no rows"),
    ("feature_0,feature_1", of.InputError, "no rows"),
    ("feature_0,feature_1\n\n\n", of.InputError, "csv has no rows; at least one is needed"),
    ("1.5,2.5\n3.5,4.5\n", of.FileFormatError, "no header"),
    (b"feature_0\n1.5\n\xff\n", of.InputError, "feature_0"),
    (b"feature_\xff\n1.5\n", of.FileFormatError, "UTF-8"),
    ("feature_0\n1.5\n".encode("utf-16"), of.FileFormatError, "UTF-8"),
    ("feature_0,feature_0\n1,2\n", of.FileFormatError, "same name"),
    ("feature_0,colour\n1,2\n", of.FileFormatError, "colour"),
    ("feature_0,\n1,2\n", of.FileFormatError, "''"),
    ("feature_0,feature_2\n1,2\n", of.FileFormatError, "without gaps"),
    ("feature_0,feature_٣\n1,2\n", of.FileFormatError, "feature_٣"),
    ("feature_0,label,labels\n1,2,2\n", of.FileFormatError, "labels twice"),
    ("features\n1\n", of.FileFormatError, "lists"),
    ("label\n1\n", of.FileFormatError, "feature_0"),
    ("feature_0;feature_1\n1;2\n", of.FileFormatError, "feature_0;feature_1"),
    ("feature_0,feature_1\n1,2\n3\n", of.FileFormatError, "columns"),
    ("feature_0,feature_1\n1,2\n3,4,5\n", of.FileFormatError, "columns"),
    ("feature_0,feature_1\n1,2\n3,\n", of.InputError, "'feature_1' has 1 empty cell;"),
    ("feature_0,feature_1\n1,2\n3,NA\n", of.InputError, "'feature_1' holds cells that are not numbers, such as 'NA'"),
    ("feature_0\n1\n\n2\n", of.InputError, "'feature_0' has 1 empty cell;"),
    ("feature_0\ntrue\n", of.InputError, "not numbers"),
    ("feature_0\n1\nnan\n", of.InputError, r"features\[1, 0\] is nan"),
    ("feature_0\n1e999\n", of.InputError, "is inf"),
    ('feature_0\n"1\n2"\n', of.OutfieldError, "csv"),
    ("feature_0,label\n1,0.5\n", of.InputError, "'label' holds cells that are not whole numbers"),
    ("feature_0,label\n1,-1\n", of.InputError, "down to -1"),
    (f"feature_0,label\n1,{2**64}\n", of.InputError, "whole numbers"),
])  # fmt: skip
def test_bad_csv_files(tmp_path, content, kind, words):
    with pytest.raises(kind, match=words) as caught:
        load_csv(tmp_path, content)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("content", "features", "labels"), [
    ("feature_0,feature_1\n1,2.5\n-3e2,4\n", [[1, 2.5], [-300, 4]], None),
    ("\ufefffeature_0,label\n1.5,2\n", [[1.5]], [2]),
    ("feature_0,label\r\n1.5,2\r\n2.5,0\r\n", [[1.5], [2.5]], [2, 0]),
    ("label,feature_1,feature_0\n7,2,1\n", [[1, 2]], [7]),
    ('"feature_0","label"\n"1.5","2"\n', [[1.5]], [2]),
    ("feature_0\n1.5", [[1.5]], None),
    ("feature_0,feature_1\n1,2\n\n3,4\n\n", [[1, 2], [3, 4]], None),
    (f"feature_0,label\n{EXACT},{2**62 + 1}\n", [[EXACT]], [2**62 + 1]),
    (f"feature_0\n{2**70}\n", [[2**70]], None),
    ("feature_0\n0.1\n", [[0.1]], None),
])  # fmt: skip
def test_good_csv_files(tmp_path, content, features, labels):
    found = load_csv(tmp_path, content)
    assert found.features.dtype == torch.float64
    assert found.features.tolist() == features
    assert (None if found.labels is None else found.labels.tolist()) == labels


def test_the_first_row_that_is_longer_or_shorter_is_named(tmp_path):
    with pytest.raises(of.FileFormatError, match=r"table\.csv, row 201: it has 3 cells"):
        load_csv(tmp_path, "feature_0,feature_1\n" + "1,2\n" * 200 + "1,2,3\n")


def test_a_table_that_changes_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    read = columns_file.whole_csv

    def read_and_change(*arguments, **options):
        os.utime(path, ns=(0, 0))
        return read(*arguments, **options)

    monkeypatch.setattr(columns_file, "whole_csv", read_and_change)
    with pytest.raises(of.FileFormatError, match=r"table\.csv changed while it was being read"):
        load_csv(tmp_path, "feature_0\n1.5\n")


def test_what_the_first_megabyte_holds_does_not_decide_on_the_rest(tmp_path):
    rows = 200_000
    found = load_csv(tmp_path, "feature_0,feature_1\n" + "1,2\n" * rows + "0.5,2\n")
    assert len(found) == rows + 1
    assert found.features[-1].tolist() == [0.5, 2]
    with pytest.raises(of.InputError, match="such as 'x'"):
        load_csv(tmp_path, "feature_0\n" + "1.5\n" * rows * 2 + "x\n")


NULL = pyarrow.array([[1.0, None], [2.0, 3.0]])


@pytest.mark.parametrize(("columns", "kind", "words"), [
    ({"feature_0": pyarrow.array([1.0, None])}, of.InputError, "1 empty cell;"),
    ({"features": NULL}, of.InputError, "1 empty cell;"),
    ({"features": pyarrow.array([[1.0], None])}, of.InputError, "1 empty cell;"),
    ({"features": pyarrow.array([[1.0], None], pyarrow.list_(pyarrow.float64(), 1))}, of.InputError, "1 empty cell;"),
    ({"features": [[1.0], [1.0, 2.0]]}, of.InputError, "same length"),
    ({"features": [[[1.0]], [[2.0]]]}, of.InputError, "not numbers"),
    ({"features": pyarrow.array([[], []], pyarrow.list_(pyarrow.float32()))}, of.InputError, "empty"),
    ({"features": [1.0, 2.0]}, of.FileFormatError, "lists of numbers"),
    ({"feature_0": [True, False]}, of.InputError, "bool, not numbers"),
    ({"feature_0": ["1", "2"]}, of.InputError, "string, not numbers"),
    ({"feature_0": [Decimal("1.5"), Decimal("2.5")]}, of.InputError, "decimal128.*not numbers"),
    ({"feature_0": pyarrow.array(["a", "b"]).dictionary_encode()}, of.InputError, "string, not numbers"),
    ({"feature_0": pyarrow.nulls(2)}, of.InputError, "empty cell"),
    ({"feature_0": [1.0, 2.0], "label": [0.0, 1.0]}, of.InputError, "labels must be integers"),
    ({"feature_0": [1.0, 2.0], "label": np.array([0, 2**63], np.uint64)}, of.InputError, "out of range"),
    ({"feature_0": [1.0, 2.0], "logit_0": [1.0, np.nan]}, of.InputError, r"logits\[1, 0\] is nan"),
    ({"feature_0": np.array([EXACT + 1, 2])}, of.InputError, f"is {EXACT + 1}"),
    ({"feature_0": pyarrow.array([], pyarrow.float32())}, of.InputError, "no rows"),
    ({"feature_0": [1.0, 2.0], "a.b": [1.0, 2.0]}, of.FileFormatError, "a.b"),
    ({"feature_0": [1.0, 2.0], "features": [[1.0], [2.0]]}, of.FileFormatError, "twice"),
    ({}, of.FileFormatError, "no columns"),
])  # fmt: skip
def test_bad_parquet_files(tmp_path, columns, kind, words):
    for read in both(save_parquet(tmp_path / "table.parquet", columns)):
        with pytest.raises(kind, match=words):
            read()


LISTS = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("columns", [
    {"features": LISTS},
    {"features": pyarrow.array(LISTS, pyarrow.large_list(pyarrow.float32()))},
    {"features": pyarrow.array(LISTS, pyarrow.list_(pyarrow.float64(), 2))},
    {"features": pyarrow.array([[1, 2], [3, 4]], pyarrow.list_(pyarrow.int16()))},
    {"features": pyarrow.array([[9, 9], [1, 2], [3, 4]]).slice(1)},
    {"feature_1": [2, 4], "feature_0": [1.0, 3.0]},
    {"feature_0": np.array([1, 3], np.float16), "feature_1": np.array([2, 4], np.int8)},
    {"feature_0": pyarrow.array([1.0, 3.0]).dictionary_encode(), "feature_1": [2, 4]},
])  # fmt: skip
def test_good_parquet_files(tmp_path, columns):
    for read in (lambda path: of.FeatureSet.load(path), lambda path: of.open_features(path).in_memory()):
        found = read(save_parquet(tmp_path / "table.parquet", columns))
        assert found.features.tolist() == [[1, 2], [3, 4]]
        assert found.features.is_floating_point()


def test_row_groups_without_rows(tmp_path):
    table = pyarrow.table({"feature_0": [1.0, 2.0]})
    with pyarrow.parquet.ParquetWriter(tmp_path / "t.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 1), table.slice(0, 0), table.slice(1)):
            writer.write_table(part)
    assert of.FeatureSet.load(tmp_path / "t.parquet").features.tolist() == [[1.0], [2.0]]
    assert [len(piece["features"]) for piece in of.open_features(tmp_path / "t.parquet").batches(1)] == [1, 1]


def test_a_flipped_bit_in_a_page_with_a_checksum(tmp_path):
    features = np.random.default_rng(0).random(1000)
    path = save_parquet(tmp_path / "t.parquet", {"feature_0": features}, compression=None, use_dictionary=False,
                        write_page_checksum=True)  # fmt: skip
    content = bytearray(path.read_bytes())
    content[content.index(features.tobytes()) + 4321] ^= 1
    path.write_bytes(content)
    for read in both(path):
        with pytest.raises(of.FileFormatError, match=r"t\.parquet"):
            read()


@pytest.mark.parametrize("size", [1, 3, 7, 10, 14, 20, 50, 99])
def test_pieces_of_any_size_from_batches_of_another(tmp_path, size, monkeypatch):
    monkeypatch.setattr(stream, "ROWS_AT_ONCE", 7)
    data = make_set(n=50)
    columns = {"features": list(data.features.numpy()), "label": data.labels.numpy()}
    found = list(of.open_features(save_parquet(tmp_path / "t.parquet", columns)).batches(size))
    assert [len(piece["labels"]) for piece in found] == [size] * (50 // size) + [50 % size] * (50 % size > 0)
    for name in ("features", "labels"):
        assert torch.equal(torch.cat([piece[name] for piece in found]), data.tensors()[name])


def test_lists_whose_length_changes_from_batch_to_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "ROWS_AT_ONCE", 7)
    opened = of.open_features(save_parquet(tmp_path / "t.parquet", {"features": [[1.0, 2.0]] * 7 + [[1.0] * 3] * 7}))
    with pytest.raises(of.InputError, match="the lists in column 'features' must have the same length"):
        list(opened.batches(7))


def test_other_files_that_call_themselves_tables(tmp_path):
    make_set(n=8).save(tmp_path / "real.npz")
    for name in ("t.csv", "t.parquet"):
        (tmp_path / name).write_bytes((tmp_path / "real.npz").read_bytes())
        with pytest.raises(of.FileFormatError, match=name):
            of.FeatureSet.load(tmp_path / name)
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        with pytest.raises(of.StorageError, match="folder"):
            of.FeatureSet.load(tmp_path / name)
        with pytest.raises(of.StorageError, match="no such file"):
            of.FeatureSet.load(tmp_path / f"none-{name}")


SCORES = np.array([0.1, -3.5, 1e-12, 7.0], np.float32)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz", "jsonl"])
def test_every_format_gives_the_same_numbers(tmp_path, ending):
    path = tmp_path / f"scores.{ending}"
    if ending == "jsonl":
        path.write_text(
            "\n".join(json.dumps({"file": "a", "score": float(s), "p_value": 0.5}) for s in SCORES) + "\n\n"
        )
    else:
        write_columns(path, {"score": SCORES, "p_value": np.full(4, 0.5)})
    for names, expected in ((("score", "p_value"), SCORES), (("other", "p_value"), np.full(4, 0.5))):
        name, values, empty = read_column(path, names)
        assert name == next(n for n in names if n != "other")
        assert values.dtype == np.float64
        assert np.array_equal(values, expected.astype(np.float64))
        assert empty == 0
    with pytest.raises(of.InputError, match=r"has no column a or b; it has .*p_value"):
        read_column(path, ("a", "b"))


def test_rows_without_a_score_are_left_out_and_counted(tmp_path):
    (tmp_path / "a.csv").write_text("﻿file,score\nx.jpg,1\nbroken.jpg,\n\ny.jpg,2\n")
    (tmp_path / "a.jsonl").write_text(
        '{"score": 1}\n{"file": "broken.jpg", "score": null}\n{"score": 2}\n{"error": "x"}\n'
    )
    assert read_column(tmp_path / "a.csv", ["score"])[1:] == (pytest.approx([1, 2]), 1)
    assert read_column(tmp_path / "a.jsonl", ["score"])[1:] == (pytest.approx([1, 2]), 2)


@pytest.mark.parametrize(
    ("name", "content", "error", "said"),
    [("a.csv", b"score\nx\n", of.InputError, "'x', which is no number"),
     ("a.csv", b"score\n", of.InputError, "holds no number"),
     ("a.csv", b"", of.InputError, "it has none"),
     ("a.csv", b"score,b\n1\n", of.FileFormatError, "line 2: 1 cell, but 2 columns"),
     ("a.csv", b"score\n\xff\n", of.FileFormatError, "UTF-8"),
     ("a.csv", b'score\n"a\n', of.FileFormatError, "as csv"),
     ("a.jsonl", b"{\n", of.FileFormatError, "line 1, cannot be read as JSON"),
     ("a.jsonl", b"[1]\n", of.FileFormatError, "line 1, is no JSON object"),
     ("a.jsonl", b'{"score": true}\n', of.InputError, "True, which is no number"),
     ("a.jsonl", b'{"score": [1]}\n', of.InputError, "no number"),
     ("a.jsonl", b'{"score": 1' + b"0" * 400 + b"}\n", of.InputError, "no number"),
     ("a.parquet", b"PAR1", of.FileFormatError, "parquet"),
     ("a.npz", b"PK", of.FileFormatError, r"a\.npz"),
     ("a.txt", b"score\n1\n", of.InputError, r"\.csv, \.jsonl, \.parquet, \.npz, not '\.txt'")],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_told(tmp_path, name, content, error, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=said):
        read_column(tmp_path / name, ["score"])


def test_a_matrix_is_no_column(tmp_path):
    np.savez(tmp_path / "a.npz", score=np.ones((2, 2)))
    with pytest.raises(of.InputError, match="vector of numbers"):
        read_column(tmp_path / "a.npz", ["score"])
    with pytest.raises(of.StorageError, match=r"none\.csv"):
        read_column(tmp_path / "none.csv", ["score"])
