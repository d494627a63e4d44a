"""Features on disk: the same numbers as in memory, each format, each mistake, and memory that stays fixed."""

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.energy import priors
from outfield.features import open_or_read

ROWS, WIDTH = 700, 6
SHAPES = make_set(n=1).shapes
HEAD = ("head_weight", "head_bias")
"""Fields that no table has: they are not rows."""
STREAMED = [name for name, cls in of.DETECTORS.items() if cls.fits_in_pieces and not hasattr(quick(name), "seed")]
"""Detectors that are fitted at once; those that are trained agree to rounding only."""


def write_parquet(path, data: of.FeatureSet, wide: bool, fixed: bool = True, group: int = 130):
    columns = {"label": data.labels.numpy()}
    for prefix, name in (("feature", "features"), ("logit", "logits"), ("odin_logit", "odin_logits")):
        value = getattr(data, name).numpy()
        if wide:
            columns |= {f"{prefix}_{i}": value[:, i] for i in range(value.shape[1])}
        elif fixed:
            columns[name] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(value.ravel()), value.shape[1])
        else:
            columns[name] = pyarrow.array(list(value))
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=group)


def write_foreign(path, tensors, metadata=None):
    from safetensors.torch import save_file

    save_file(tensors, path, metadata)


@pytest.fixture(scope="module")
def data() -> of.FeatureSet:
    return make_set(n=ROWS, width=WIDTH)


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    data.save(folder / "ours.safetensors")
    data.save(folder / "ours.npz")
    write_foreign(folder / "foreign.safetensors", data.tensors())
    np.savez_compressed(folder / "packed.npz", **{name: value.numpy() for name, value in data.tensors().items()})
    np.savez(folder / "pack.npz", **{f"train_{name}": value.numpy() for name, value in data.tensors().items()})
    for name, value in data.tensors().items():
        np.save(folder / f"{name}.npy", value.numpy())
    write_parquet(folder / "wide.parquet", data, wide=True)
    write_parquet(folder / "lists.parquet", data, wide=False)
    write_parquet(folder / "loose.parquet", data, wide=False, fixed=False, group=ROWS)
    return folder


SOURCES = ["ours.safetensors", "ours.npz", "foreign.safetensors", "pack.npz#train", "features.npy",
           "packed.npz", "wide.parquet", "lists.parquet", "loose.parquet"]  # fmt: skip
DENSE = [source for source in SOURCES if "parquet" not in source and "packed" not in source]


def opened(folder, source) -> of.FeatureStream:
    if source == "features.npy":
        beside = {name: folder / f"{name}.npy" for name in SHAPES if name != "features"}
        return of.open_features(folder / source, **beside)
    return of.open_features(f"{folder}/{source}")


@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_is_the_set(folder, source, data):
    stream = opened(folder, source)
    assert len(stream) == ROWS
    assert set(stream.shapes) == set(SHAPES) - ({"spread", *HEAD} if "parquet" in source else set())
    loaded = stream.in_memory()
    assert all(torch.equal(value, data.tensors()[name]) for name, value in loaded.tensors().items())


@settings(max_examples=80, deadline=None)
@given(
    source=st.sampled_from(SOURCES),
    size=st.one_of(st.integers(1, ROWS + 3), st.just(2**40)),
    names=st.lists(st.sampled_from(["features", "labels", "logits", "odin_logits"]), min_size=1, unique=True),
    wide=st.booleans(),
)
def test_any_pieces_are_those_of_the_whole(folder, data, source, size, names, wide):
    pieces = list(opened(folder, source).batches(np.int64(size) if wide else size, names))
    assert [len(piece[names[0]]) for piece in pieces] == [
        min(size, ROWS - start) for start in range(0, ROWS, min(size, ROWS))
    ]
    for name in names:
        joined = torch.cat([piece[name] for piece in pieces])
        assert joined.dtype == data.tensors()[name].dtype
        assert torch.equal(joined, data.tensors()[name])
    assert all(list(piece) == names for piece in pieces)


@settings(max_examples=40, deadline=None)
@given(
    source=st.sampled_from(DENSE),
    index=st.lists(st.integers(0, ROWS - 1), max_size=9),
    names=st.sampled_from([None, ["labels"], ["logits", "features"]]),
)
def test_any_rows_are_those_of_the_whole(folder, data, source, index, names):
    for given_as in (list, np.array, torch.tensor, tuple):
        found = opened(folder, source).rows(given_as(index), names)
        assert list(found) == (list(data.row_fields) if names is None else names)
        for name, value in found.items():
            assert torch.equal(value, data.tensors()[name][index])


@pytest.mark.parametrize("source", ["ours.npz", "features.npy"])
@pytest.mark.parametrize(
    "index",
    [[ROWS], [-1], [0.5], [[1]], 3, None, "abc", [None], [True] * ROWS, np.ones(ROWS, bool), [2**70], [1, [2]], {1: 2},
     np.ma.masked_equal([1, 2], 1), torch.ones(2, device="meta"), np.array([2**63], np.uint64)],
    ids=lambda index: type(index).__name__,
)  # fmt: skip
def test_rows_that_are_not_there(folder, data, source, index):
    for one in (opened(folder, source), data):
        with pytest.raises(of.InputError, match="rows"):
            one.rows(index)


@pytest.mark.parametrize("source", ["lists.parquet", "packed.npz"])
def test_rows_that_cannot_be_picked(folder, source):
    assert not opened(folder, source).picks_rows
    with pytest.raises(of.InputError, match=r"one by one; use in_memory"):
        opened(folder, source).rows([0])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", STREAMED)
def test_fits_and_scores_equal_those_in_memory(folder, source, name, data, test_set, monkeypatch):
    monkeypatch.setattr(priors, "PIECE_NUMBERS", 64 * WIDTH)
    monkeypatch.setattr(priors, "PIECE_ROWS", 64)
    monkeypatch.setattr(of.DETECTORS[name], "rows_at_once", 48)
    stream = opened(folder, source)
    if "parquet" in source and "head" in quick(name).needs_to_fit:
        with pytest.raises(of.InputError, match="no linear function"):  # these logits are not the last layer's
            quick(name).fit(stream)
        return
    streamed, loaded = quick(name).fit(stream), quick(name).fit(data)
    assert streamed.fingerprint() == loaded.fingerprint()
    assert torch.equal(streamed.score(test_set), loaded.score(test_set))
    assert torch.equal(loaded.score(stream), loaded.score(data))


@pytest.mark.parametrize("name", of.DETECTORS)
def test_every_detector_scores_a_stream_to_the_bit(folder, name, train_set, data):
    detector = quick(name).fit(train_set)
    assert torch.equal(detector.score(opened(folder, "ours.safetensors")), detector.score(data))


def test_a_detector_that_needs_everything_gets_it(folder, data):
    class Whole(of.MSP):
        fits_in_pieces = False

        def _fit(self, train):
            assert isinstance(train, of.FeatureSet)
            self.seen = train

    assert torch.equal(Whole().fit(opened(folder, "wide.parquet")).seen.features, data.features)


def test_streams_may_be_learned_one_after_the_other(folder, data, test_set):
    twice = of.SSD().partial_fit(opened(folder, "ours.npz")).partial_fit(opened(folder, "wide.parquet"))
    whole = of.SSD().fit(of.FeatureSet.join([data, data]))
    torch.testing.assert_close(twice.score(test_set), whole.score(test_set))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.uint8, ">f4", ">i2"])
def test_types_are_those_of_a_feature_set(tmp_path, dtype):
    array = (10 * np.random.default_rng(0).random((9, 4))).astype(dtype)
    np.save(tmp_path / "f.npy", array)
    expected = of.FeatureSet(array).features
    (piece,) = of.open_features(tmp_path / "f.npy").batches(9)
    assert piece["features"].dtype == expected.dtype
    assert torch.equal(piece["features"], expected)


def test_bfloat16_and_half_columns(tmp_path):
    write_foreign(tmp_path / "b.safetensors", {"features": torch.rand(5, 3).bfloat16()})
    (piece,) = of.open_features(tmp_path / "b.safetensors").batches(5)
    assert piece["features"].dtype == torch.bfloat16
    half = np.random.default_rng(0).random((5, 3)).astype(np.float16)
    write_parquet(tmp_path / "h.parquet", of.FeatureSet(half, labels=[0] * 5, logits=half, odin_logits=half), wide=True)
    (piece,) = of.open_features(tmp_path / "h.parquet").batches(5)
    assert torch.equal(piece["features"], torch.from_numpy(half))


def test_a_feature_set_on_a_memory_map(tmp_path, folder, data, test_set):
    mapped = of.FeatureSet(np.load(folder / "features.npy", mmap_mode="r"), labels=np.load(folder / "labels.npy"))
    assert torch.equal(of.SSD().fit(mapped).score(test_set), of.SSD().fit(data).score(test_set))


def bad_values(kind):
    """A set with one wrong value in row 300, and the words that say so."""
    features, labels = np.ones((ROWS, 3), np.float32), np.zeros(ROWS, np.int64)
    if kind == "nan":
        features[300, 1] = np.nan
        return features, labels, r"features\[300, 1\] is nan; all values must be finite"
    if kind == "inf":
        features[300, 2] = -np.inf
        return features, labels, r"features\[300, 2\] is -inf"
    labels[300] = -7 if kind == "negative" else 3
    return features, labels, r"labels go (down to -7|up to 3), out of range.*\(row 300\)"


@pytest.mark.parametrize("kind", ["nan", "inf", "negative", "too high"])
@pytest.mark.parametrize("ending", ["safetensors", "npz", "parquet"])
def test_bad_values_are_found_in_their_row(tmp_path, kind, ending):
    features, labels, words = bad_values(kind)
    path, logits = tmp_path / f"bad.{ending}", np.ones((ROWS, 3), np.float32)
    arrays = {"features": features, "labels": labels, "logits": logits}
    if ending == "safetensors":
        write_foreign(path, {name: torch.from_numpy(array) for name, array in arrays.items()})
    elif ending == "npz":
        np.savez(path, **arrays)
    else:
        columns = {f"feature_{i}": features[:, i] for i in range(3)} | {f"logit_{i}": logits[:, i] for i in range(3)}
        pyarrow.parquet.write_table(pyarrow.table({**columns, "label": labels}), path, row_group_size=100)
    stream = of.open_features(path)
    with pytest.raises(of.InputError, match=words):
        of.SSD().fit(stream)
    if ending != "parquet":
        with pytest.raises(of.InputError, match=words):
            stream.rows([5, 300, 2])
        stream.rows([5, 299, 2])
    if kind in ("nan", "inf"):
        assert len(list(stream.batches(ROWS, ["labels"]))) == 1  # what is not read is not checked


def save_npy(path, array):
    np.save(path, array)
    return path


def test_shapes_and_types_are_refused_at_the_door(tmp_path):
    good = np.ones((4, 3), np.float32)
    for array, words in [
        (np.ones(4), "two dimensions"),
        (np.ones((4, 3), bool), "real numbers"),
        (np.full((4, 3), "a"), "array of numbers"),
        (np.asfortranarray(good), "column by column"),
    ]:
        with pytest.raises(of.InputError, match=words):
            of.open_features(save_npy(tmp_path / "f.npy", array))
    save_npy(tmp_path / "f.npy", good)
    for field, array, words in [
        ("labels", np.zeros(3, int), "labels has 3 rows but features has 4"),
        ("labels", np.zeros(4), "labels must be integers"),
    ]:
        with pytest.raises(of.InputError, match=words):
            of.open_features(tmp_path / "f.npy", **{field: save_npy(tmp_path / "x.npy", array)})
    objects = np.empty((4, 3), object)
    np.save(tmp_path / "o.npy", objects, allow_pickle=True)
    with pytest.raises(of.FileFormatError, match="never unpickled"):
        of.open_features(tmp_path / "o.npy")


def test_what_cannot_be_opened(tmp_path, folder, data):
    of.MSP().fit(data).save(tmp_path / "d.safetensors")
    np.savez(tmp_path / "f.npz", features=np.asfortranarray(data.features.numpy()))
    for path, beside, error, words in [
        (tmp_path / "no.npy", {}, of.StorageError, "no such file"),
        (tmp_path / "a.csv", {}, of.InputError, r"\.parquet"),
        (f"{folder}/ours.safetensors#train", {}, of.InputError, "several sets"),
        (folder / "ours.npz", {"labels": folder / "labels.npy"}, of.InputError, "labels"),
        (folder / "pack.npz", {}, of.FileFormatError, "name one of them: train"),
        (f"{folder}/pack.npz#test", {}, of.FileFormatError, "no set 'test'"),
        (tmp_path / "d.safetensors", {}, of.FileFormatError, "not a FeatureSet"),
        (folder / "features.npy", {"features": folder / "x.npy"}, of.InputError, r"features is .*name one of them"),
        (tmp_path / "f.npz", {}, of.InputError, "column by column"),
    ]:
        with pytest.raises(error, match=words):
            of.open_features(path, **beside)
    assert torch.equal(open_or_read(str(tmp_path / "f.npz")).features, data.features)
    assert isinstance(open_or_read(str(folder / "ours.npz")), of.FeatureStream)


@pytest.mark.parametrize("source", ["ours.safetensors", "ours.npz", "packed.npz", "features.npy", "wide.parquet"])
@pytest.mark.parametrize("keep", [0, 5, 60, 0.5, -1])
def test_truncated_files(folder, source, keep, tmp_path):
    content = (folder / source).read_bytes()
    path = tmp_path / source
    path.write_bytes(content[: int(keep * len(content)) if keep == 0.5 else keep])
    with pytest.raises(of.FileFormatError, match=source):
        list(of.open_features(path).batches(100))


@pytest.mark.parametrize("how", ["shrinks", "changes", "goes"])
@pytest.mark.parametrize("source", ["ours.npz", "foreign.safetensors", "wide.parquet"])
def test_a_file_that_changes_while_it_is_read(folder, source, how, tmp_path):
    path = tmp_path / source
    path.write_bytes((folder / source).read_bytes())
    stream = of.open_features(path)
    pieces = stream.batches(50)
    next(pieces)
    if how == "goes":
        path.unlink()
    elif how == "shrinks":
        os.truncate(path, 3000)
    else:
        os.utime(path, ns=(0, 0))
    with pytest.raises(of.FileFormatError, match=source):
        list(pieces)
    with pytest.raises(of.FileFormatError, match="changed"):
        next(stream.batches(50))


@pytest.mark.parametrize("source", ["features.npy", "wide.parquet"])
def test_a_file_that_changes_while_it_is_loaded(folder, source, tmp_path, monkeypatch):
    path = tmp_path / source
    path.write_bytes((folder / source).read_bytes())
    stream = of.open_features(path)
    read = type(stream)._pieces

    def read_and_change(self, *arguments):
        yield from read(self, *arguments)
        os.utime(path, ns=(0, 0))

    monkeypatch.setattr(type(stream), "_pieces", read_and_change)
    with pytest.raises(of.FileFormatError, match="changed"):
        stream.in_memory()


def test_rows_of_a_file_that_was_changed_are_an_error(tmp_path):
    make_set().save(tmp_path / "f.safetensors")
    stream = of.open_features(tmp_path / "f.safetensors")
    assert len(stream.rows([1, 0])["features"]) == 2
    os.utime(tmp_path / "f.safetensors", ns=(0, 0))
    with pytest.raises(of.FileFormatError, match="changed"):
        stream.rows([1, 0])


def test_a_stream_that_lacks_what_is_needed(folder, tmp_path):
    stream = of.open_features(folder / "features.npy")
    with pytest.raises(of.MissingFieldError, match=r"labels.*features\.npy"):
        of.SSD().fit(stream)
    with pytest.raises(of.InputError, match="columns"):
        of.SSD().fit(make_set(width=5)).score(stream)
    with pytest.raises(of.InputError, match="size"):
        next(stream.batches(0))
    assert repr(stream).endswith("features.npy: 700 samples, features 6-d)")


MEMORY = """
import json, sys
import outfield as of
def highest():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
stream = of.open_features(sys.argv[1])
small = of.FeatureSet(**next(stream.batches(20_000)))
of.SSD().to("cpu").fit(small).score(small)
before = highest()
detector = of.SSD().to("cpu").fit(stream)
detector.score(stream)
print(json.dumps(highest() - before))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the highest resident size is read from /proc")
@pytest.mark.parametrize("ending", ["safetensors", "parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path, ending):
    path, rows, width = tmp_path / f"big.{ending}", 400_000, 64
    size = 8 * rows * width
    piece = np.random.default_rng(0).random((20_000, width))
    if ending == "safetensors":
        header = {
            "features": {"dtype": "F64", "shape": [rows, width], "data_offsets": [0, size]},
            "labels": {"dtype": "U8", "shape": [rows], "data_offsets": [size, size + rows]},
        }
        text = json.dumps(header).encode()
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _ in range(rows // len(piece)):
                file.write(piece.tobytes())
            file.write(bytes(rows))
    else:
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(piece.ravel()), width)
        table = pyarrow.table({"features": column, "label": np.zeros(len(piece), np.int64)})
        table = pyarrow.concat_tables([table] * (rows // len(piece)))
        pyarrow.parquet.write_table(table, path, row_group_size=rows, use_dictionary=False, compression=None)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # two processes of tests on two cores
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) < size / 2**20 / 3
