"""A field is declared once: a new one goes through sets, files, streams and tables with nothing else changed."""

import csv
import re
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from tests.helpers.samples import make_set

import outfield as of
from outfield.features import FIELDS, FeatureSource

Field = type(FIELDS["features"])

ROWS = 9
NEW = [
    Field("extra", ("N", "E"), "a pooled stage", column="extra"),
    Field("head_input", ("N", "E"), "as wide as the stage", column="head_input"),
    Field("weight", ("N",), "a number for each sample", column="weight", option="--weights"),
    Field("group", ("N",), "which column of the stage is meant", column="group", counts="E"),
]


@pytest.fixture
def arrays(monkeypatch) -> dict[str, np.ndarray]:
    """Arrays of a set with fields that were declared a moment ago."""
    for field in NEW:
        monkeypatch.setitem(FIELDS, field.name, field)
    rng = np.random.default_rng(0)
    return {
        "features": rng.random((ROWS, 4)),
        "extra": rng.random((ROWS, 3)),
        "head_input": rng.random((ROWS, 3)),
        "weight": rng.random(ROWS),
        "group": np.arange(ROWS) % 3,
    }


def equal(data: FeatureSource | dict[str, torch.Tensor], arrays: dict[str, np.ndarray]) -> bool:
    tensors = data if isinstance(data, dict) else data.in_memory().tensors()
    return tensors.keys() == arrays.keys() and all(
        np.array_equal(tensors[name].numpy(), array) for name, array in arrays.items()
    )


def columns_of(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    columns = {}
    for name, array in arrays.items():
        if array.ndim == 1:
            columns[FIELDS[name].column] = array
        else:
            columns |= {f"{FIELDS[name].column}_{i}": array[:, i] for i in range(array.shape[1])}
    return columns


def test_a_new_field_in_memory(arrays):
    data = of.FeatureSet(**arrays)
    assert equal(data, arrays)
    assert torch.equal(data.extra, torch.from_numpy(arrays["extra"]))
    assert data.labels is None
    assert equal(data[2:5], {name: array[2:5] for name, array in arrays.items()})
    assert equal(of.FeatureSet.join([data[:4], data[4:]]), arrays)
    assert equal(data.rows([3, 1]), {name: array[[3, 1]] for name, array in arrays.items()})
    (first, *_) = data.batches(2, ["weight", "extra"])
    assert np.array_equal(first["weight"].numpy(), arrays["weight"][:2])
    assert "extra" in repr(data)
    with pytest.raises(AttributeError, match="extra4"):
        data.extra4


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_a_new_field_in_our_files(arrays, ending, tmp_path):
    path = tmp_path / f"set{ending}"
    of.FeatureSet(**arrays).save(path)
    assert equal(of.FeatureSet.load(path), arrays)
    stream = of.open_features(path)
    pieces = list(stream.batches(4))
    assert equal({name: torch.cat([piece[name] for piece in pieces]) for name in arrays}, arrays)
    assert equal(stream.rows([5, 0]), {name: array[[5, 0]] for name, array in arrays.items()})


def test_a_new_field_in_files_of_others(arrays, tmp_path):
    np.savez(tmp_path / "pack.npz", **{f"train_{name}": array for name, array in arrays.items()})
    assert equal(of.FeatureSet.load(tmp_path / "pack.npz", "train"), arrays)
    assert equal(of.open_features(f"{tmp_path}/pack.npz#train"), arrays)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    beside = {name: tmp_path / f"{name}.npy" for name in arrays if name != "features"}
    assert equal(of.open_features(tmp_path / "features.npy", **beside), arrays)


def test_a_new_field_in_tables(arrays, tmp_path):
    columns = columns_of(arrays)
    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    assert equal(of.FeatureSet.load(tmp_path / "table.csv"), arrays)
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "wide.parquet")
    lists = {name: list(array) if array.ndim == 2 else array for name, array in arrays.items()}
    pyarrow.parquet.write_table(pyarrow.table(lists), tmp_path / "lists.parquet")
    for name in ("wide.parquet", "lists.parquet"):
        assert equal(of.FeatureSet.load(tmp_path / name), arrays)
        assert equal(of.open_features(tmp_path / name), arrays)


def test_mistakes_in_a_new_field_are_named(arrays):
    for change, words in [
        ({"weight": np.full(ROWS, np.nan)}, r"weight\[0\] is nan"),
        ({"weight": np.ones((ROWS, 1))}, "weight must have one dimension"),
        ({"head_input": np.ones((ROWS, 5))}, r"head_input has shape \(9, 5\) but extra \(9, 3\); they must agree in E"),
        ({"group": np.full(ROWS, 3)}, "group go up to 3, out of range"),
    ]:
        with pytest.raises(of.InputError, match=words):
            of.FeatureSet(**{**arrays, **change})

    class Needs(of.MSP):
        score_needs = ("weight",)

    with pytest.raises(of.MissingFieldError, match=r"needs weight.*outfield extract --weights"):
        Needs().fit(make_set()).score(make_set())


def test_what_is_no_field():
    for call in (lambda: of.FeatureSet(np.eye(2), label=[0, 1]), lambda: of.open_features("f.npy", label="l.npy")):
        with pytest.raises(of.InputError, match=r"there is no field 'label'; there are features, labels"):
            call()
    with pytest.raises(AttributeError, match="not changed"):
        of.FeatureSet(np.eye(2)).labels = torch.arange(2)


def test_the_page_says_what_the_fields_are():
    text = Path(__file__).parents[2].joinpath("docs/start.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` (.*?)(?:, …)? \|", text, re.MULTILINE))
    shown = {name: field for name, field in FIELDS.items() if name == "stage1" or not name.startswith("stage")}
    assert f"up to `stage{len(FIELDS) - len(shown) + 1}`" in text
    for name, field in shown.items():
        shape = f"({', '.join(field.axes)}{',' * (len(field.axes) == 1)})"
        meaning = re.search(rf"^\| `{name}` \S.*? \| (.*?) \|", text, re.MULTILINE)[1]
        assert rows[name] == shape
        assert re.sub(r" \(\[.*\)$|; up to .*", "", meaning) == field.meaning


def test_how_columns_are_called():
    stages = [f"stage{i}" for i in range(1, 9)]
    expected = ["feature", "label", "logit", "spread", *stages, "odin_logit", "head_weight", "head_bias"]
    assert [field.column for field in FIELDS.values()] == expected
