"""Columns of scores: the same from every format, and what is wrong with a file is told."""

from __future__ import annotations

import json

import numpy as np
import pytest

import outfield as of
from outfield.features.columns import write_columns
from outfield.features.score_files import read_column

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
     ("a.csv", b"score,b\n1\n", of.FileFormatError, "line 2: 1 cells, but 2 columns"),
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
