"""Pieces of a stream are those of the whole, for every format, size and choice of fields; and what is read was proved."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.samples import make_set

import outfield as of

ROWS = 47


@pytest.fixture(scope="module")
def data() -> of.FeatureSet:
    return make_set(n=ROWS, width=5)


@pytest.fixture(scope="module")
def streams(data, tmp_path_factory) -> dict[str, of.FeatureStream]:
    folder = tmp_path_factory.mktemp("pieces")
    arrays = {name: value.numpy() for name, value in data.tensors().items()}
    data.save(folder / "ours.safetensors")
    data.save(folder / "ours.npz")
    np.savez(folder / "theirs.npz", **arrays)
    np.savez_compressed(folder / "packed.npz", **arrays)
    lists = {name: list(arrays[name]) if arrays[name].ndim == 2 else arrays[name] for name in data.row_fields}
    pyarrow.parquet.write_table(pyarrow.table(lists), folder / "lists.parquet", row_group_size=13)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    beside = {name: folder / f"{name}.npy" for name in arrays if name != "features"}
    opened = {path.name: of.open_features(path) for path in folder.iterdir() if path.suffix != ".npy"}
    return {**opened, "npy": of.open_features(folder / "features.npy", **beside)}


FORMATS = [
    "ours.safetensors", "ours.npz", "theirs.npz", "packed.npz", "lists.parquet", "npy",
]  # fmt: skip


@settings(max_examples=60)
@given(
    kind=st.sampled_from(FORMATS),
    size=st.one_of(st.integers(1, ROWS + 3), st.just(2**40)),
    names=st.lists(st.sampled_from(["features", "labels", "logits", "spread", "odin_logits"]), min_size=1, unique=True),
    wide=st.booleans(),
)
def test_any_pieces_are_those_of_the_whole(streams, data, kind, size, names, wide):
    pieces = list(streams[kind].batches(np.int64(size) if wide else size, names))
    assert [len(piece[names[0]]) for piece in pieces] == [
        min(size, ROWS - start) for start in range(0, ROWS, min(size, ROWS))
    ]
    for name in names:
        joined = torch.cat([piece[name] for piece in pieces])
        assert joined.dtype == data.tensors()[name].dtype
        assert torch.equal(joined, data.tensors()[name])
    assert all(list(piece) == names for piece in pieces)


@settings(max_examples=40)
@given(
    kind=st.sampled_from([kind for kind in FORMATS if kind not in ("lists.parquet", "packed.npz")]),
    index=st.lists(st.integers(0, ROWS - 1), max_size=9),
    names=st.sampled_from([None, ["labels"], ["logits", "features"]]),
)
def test_any_rows_are_those_of_the_whole(streams, data, kind, index, names):
    for given_as in (list, np.array, torch.tensor, tuple):
        found = streams[kind].rows(given_as(index), names)
        assert list(found) == (list(data.row_fields) if names is None else names)
        for name, value in found.items():
            assert torch.equal(value, data.tensors()[name][index])


@pytest.mark.parametrize("kind", ["ours.npz", "npy"])
@pytest.mark.parametrize(
    "index",
    [[ROWS], [-1], [0.5], [[1]], 3, None, "abc", [None], [True] * ROWS, np.ones(ROWS, bool), [2**70], [1, [2]], {1: 2},
     np.ma.masked_equal([1, 2], 1), torch.ones(2, device="meta"), np.array([2**63], np.uint64)],
    ids=lambda index: type(index).__name__,
)  # fmt: skip
def test_rows_that_are_not_there(streams, data, kind, index):
    for source in (streams[kind], data):
        with pytest.raises(of.InputError, match="rows"):
            source.rows(index)


@pytest.mark.parametrize("kind", ["lists.parquet", "packed.npz"])
def test_rows_that_cannot_be_picked(streams, kind):
    assert not streams[kind].picks_rows
    with pytest.raises(of.InputError, match="one by one"):
        streams[kind].rows([0])


def test_the_features_are_named_once(tmp_path):
    np.save(tmp_path / "f.npy", np.eye(3))
    with pytest.raises(of.InputError, match=r"features is .*name one of them"):
        of.open_features(tmp_path / "f.npy", features=tmp_path / "f.npy")


def flip(path, array: np.ndarray) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(array.tobytes()) + array.nbytes // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["MSP", "ODIN", "EnergyLogits"])
@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_a_flipped_bit_never_becomes_a_score(tmp_path, data, name, ending):
    """Not even where only the logits are read."""
    path, detector = tmp_path / f"set{ending}", of.DETECTORS[name]().fit(data)
    data.save(path)
    assert torch.equal(detector.score(of.open_features(path)), detector.score(data))
    flip(path, data.tensors()[detector.needs_to_score[0]].numpy())
    with pytest.raises(of.FileFormatError, match="set"):
        detector.score(of.open_features(path))
    with pytest.raises(of.FileFormatError, match="set"):
        of.FeatureSet.load(path)


@pytest.mark.parametrize("field", ["features", "labels"])
@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_nothing_is_fitted_to_a_flipped_bit(tmp_path, data, field, ending):
    data.save(tmp_path / f"set{ending}")
    flip(tmp_path / f"set{ending}", data.tensors()[field].numpy())
    with pytest.raises(of.FileFormatError, match=field):
        of.SSD().fit(of.open_features(tmp_path / f"set{ending}"))


def test_the_command_line_refuses_a_flipped_bit(tmp_path, data):
    data.save(tmp_path / "set.safetensors")
    of.MSP().fit(data).save(tmp_path / "msp.safetensors")
    flip(tmp_path / "set.safetensors", data.logits.numpy())
    command = [sys.executable, "-m", "outfield", "score", "msp.safetensors", "set.safetensors", "-o", "scores.csv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 3
    assert "its logits" in done.stderr
    assert not (tmp_path / "scores.csv").exists()
