"""FeatureSet: the one door. What it takes, what it refuses, and that files come back as they were."""

import copy
import inspect
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.features import FIELDS, FeatureSource, open_or_read

good = np.ones((4, 3), np.float32)


class Own(FeatureSource):
    """Features that somebody keeps in a place of their own: only what a source must have."""

    def __init__(self, held):
        self.held = held

    @property
    def shapes(self):
        return self.held.shapes

    def batches(self, size, names=None):
        return self.held.batches(size, names)

    def rows(self, index, names=None):
        return self.held.rows(index, names)

    def in_memory(self):
        return self.held


def test_a_source_of_one_s_own():
    held = make_set(40)
    source = Own(held)
    assert source.about == {}
    assert source.constant("head_weight") is None
    assert len(source) == 40
    for name in ("SSD", "KNN", "MSP"):
        assert torch.equal(quick(name).fit(source).score(source), quick(name).fit(held).score(held))


@pytest.mark.parametrize(("arguments", "words"), [
    ({"features": None}, "features"),
    ({"features": np.ones(4)}, "two dimensions"),
    ({"features": np.ones((2, 2, 2))}, "two dimensions"),
    ({"features": np.ones((0, 3))}, "empty"),
    ({"features": np.ones((3, 0))}, "empty"),
    ({"features": np.array([[1.0, np.nan]])}, r"features\[0, 1\] is nan"),
    ({"features": np.array([[1.0], [np.inf]])}, r"features\[1, 0\] is inf"),
    ({"features": good, "labels": [0, 1, 2]}, "labels has 3 rows but features has 4"),
    ({"features": good, "labels": [0, 1, 2, -1]}, "out of range"),
    ({"features": good, "labels": [0.0, 1.0, 2.0, 1.5]}, "integers"),
    ({"features": good, "labels": [[0], [1], [2], [1]]}, "one dimension"),
    (
        {"features": good, "labels": [0, 1, 2, 9], "logits": good},
        "labels go up to 9, out of range for logits of 3 classes",
    ),
    ({"features": good, "logits": good[:2]}, "logits has 2 rows"),
    ({"features": good, "logits": np.full((4, 3), np.nan)}, "logits"),
    ({"features": good, "logits": good, "odin_logits": np.ones((4, 5))}, "odin_logits has shape"),
    ({"features": good, "spread": np.ones(4)}, "spread"),
])  # fmt: skip
def test_bad_input_is_named(arguments, words):
    with pytest.raises(of.InputError, match=words) as caught:
        of.FeatureSet(**arguments)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, of.OutfieldError)


def test_sets_are_joined():
    data = make_set(n=10)
    joined = of.FeatureSet.join([data[:4], data[4:]])
    assert all(torch.equal(a, b) for a, b in zip(joined.tensors().values(), data.tensors().values(), strict=True))
    with pytest.raises(of.InputError, match="different fields"):
        of.FeatureSet.join([data, of.FeatureSet(data.features)])
    with pytest.raises(of.InputError, match="widths"):
        of.FeatureSet.join([of.FeatureSet(np.ones((1, 2))), of.FeatureSet(np.ones((1, 3)))])
    with pytest.raises(of.InputError, match="at least one"):
        of.FeatureSet.join([])


@pytest.mark.parametrize("rows", [
    slice(1.5), slice("a", None), slice(None, None, 0), slice(None, None, "a"), None, "abc", b"a", 1.5, 1j, {1, 2}, {},
    object(), [500], [1j], [-11], [[1, 2]], [[True]], [True, False], [0.0], [None], [1, "a"], [], (1, [2]),
    np.ma.masked_equal([1, 2], 1), torch.ones(2), torch.zeros(3, dtype=torch.bool), torch.ones(2, device="meta"), 2**70,
    [2**70], slice(4, 2), 3, True,
], ids=lambda rows: type(rows).__name__)  # fmt: skip
def test_rows_that_cannot_be_taken(rows):
    with pytest.raises(of.InputError):
        make_set(n=10)[rows]


@pytest.mark.parametrize(
    "rows",
    [
        slice(2, 5), slice(None, None, 3), slice(None, None, -1), slice(8, 2, -2), slice(-3, None), slice(0, 99), [3, -1, 3],
        np.arange(10) % 3 == 0, torch.arange(10) % 2 == 0, torch.tensor([9, 0]), np.array([1, 2], np.uint8), (4, 5), range(2, 4),
    ],
    ids=lambda rows: type(rows).__name__,
)  # fmt: skip
def test_rows_are_those_that_numpy_takes(rows):
    data = make_set(n=10)
    index = np.arange(10)[list(rows) if isinstance(rows, range | tuple) else rows]
    assert data[rows].shapes.keys() == data.shapes.keys()
    for name, value in data[rows].tensors().items():
        whole = data.tensors()[name].numpy()
        assert np.array_equal(value.numpy(), whole[index] if name in data.row_fields else whole)


def test_a_single_row_is_a_slice():
    for index in (3, -1, np.int64(2), torch.tensor(0)):
        with pytest.raises(of.InputError, match=r"one row is \[i:i\+1\]"):
            make_set(n=10)[index]


@pytest.mark.parametrize("parts", [None, 5, "ab", [1, 2], [None], [[1.0]], iter([])])
def test_what_cannot_be_joined(parts):
    with pytest.raises(of.InputError, match="join"):
        of.FeatureSet.join(parts)


def test_what_a_generator_gives_can_be_joined():
    data = make_set(n=12)
    joined = of.FeatureSet.join(data[start : start + 5] for start in range(0, 12, 5))
    assert all(torch.equal(value, data.tensors()[name]) for name, value in joined.tensors().items())


def test_copies_and_pickles_are_equal_sets():
    data = make_set(n=12)
    for other in (copy.copy(data), copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert repr(other) == repr(data)
        assert other.shapes == data.shapes
        assert torch.equal(other.logits, data.logits)
        assert other != data  # a set is equal to itself only
    with pytest.raises(AttributeError):
        del data.features


def test_the_representation_is_short():
    data = of.FeatureSet(np.zeros((100_000, 2)), labels=np.arange(100_000), spread=np.zeros((100_000, 9)))
    assert repr(data) == "FeatureSet(100,000 samples, features 2-d, labels of 100000 classes, spread)"


@pytest.mark.parametrize("size", [0, -1, "a", 1.5, None, True, [3], 2**70, float("nan")], ids=str)
def test_pieces_of_no_size(size, tmp_path):
    data = make_set(n=11)
    data.save(tmp_path / "set.npz")
    for source in (data, of.open_features(tmp_path / "set.npz")):
        with pytest.raises(of.InputError, match="size"):
            source.batches(size)  # at once, not when the first piece is asked for


@pytest.mark.parametrize("names", ["features", 5, [], ["colour"], [None], [["features"]], [1]], ids=str)
def test_fields_that_cannot_be_chosen(names, tmp_path):
    data = make_set(n=11)
    data.save(tmp_path / "set.npz")
    for source in (data, of.open_features(tmp_path / "set.npz")):
        with pytest.raises(of.InputError, match="field"):
            source.batches(5, names)
        with pytest.raises(of.InputError, match="field"):
            source.rows([0], names)


def test_batches_cover_everything_once():
    data = make_set(n=11)
    pieces = list(data.batches(4))
    assert [len(piece["features"]) for piece in pieces] == [4, 4, 3]
    assert torch.equal(torch.cat([piece["features"] for piece in pieces]), data.features)


@settings(max_examples=20, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        hnp.array_shapes(min_dims=2, max_dims=2),
        elements=st.floats(-100, 100, width=16),
    ),
    st.sampled_from([".npz", ".safetensors"]),
)
def test_files_come_back_equal(tmp_path_factory, array, ending):
    path = tmp_path_factory.mktemp("f") / f"set{ending}"
    data = of.FeatureSet(array, labels=np.arange(len(array)), spread=array)
    data.save(path)
    loaded = of.FeatureSet.load(path)
    assert loaded.tensors().keys() == data.tensors().keys()
    for name, value in data.tensors().items():
        assert value.dtype == loaded.tensors()[name].dtype
        assert torch.equal(value, loaded.tensors()[name])


def test_bfloat16_goes_into_safetensors_only(tmp_path):
    data = of.FeatureSet(torch.ones(2, 2, dtype=torch.bfloat16))
    data.save(tmp_path / "a.safetensors")
    assert of.FeatureSet.load(tmp_path / "a.safetensors").features.dtype == torch.bfloat16
    with pytest.raises(of.InputError, match="bfloat16"):
        data.save(tmp_path / "a.npz")


def test_a_pack_of_several_sets(tmp_path):
    path = tmp_path / "pack.npz"
    np.savez(path, train_features=good, train_labels=np.arange(4), test_features=2 * good)
    assert of.FeatureSet.load(path, "train").labels.tolist() == [0, 1, 2, 3]
    assert float(of.FeatureSet.load(path, "test").features[0, 0]) == 2
    with pytest.raises(of.FileFormatError, match="train, test"):
        of.FeatureSet.load(path)
    np.savez(tmp_path / "none.npz", other=good)
    with pytest.raises(of.FileFormatError, match=r"has no set 'val'$"):
        of.FeatureSet.load(tmp_path / "none.npz", "val")
    with pytest.raises(of.FileFormatError, match="no set 'val'; it holds several sets, name one of them: train, test"):
        of.FeatureSet.load(path, "val")
    with pytest.raises(of.InputError, match="several sets"):
        of.FeatureSet.load(tmp_path / "pack.safetensors", "train")


@pytest.mark.parametrize("order", ["C", "F"])
def test_features_alone(tmp_path, order):
    """An array that lies in the file column by column cannot be streamed, but it can be read."""
    array = np.asarray(np.random.default_rng(0).random((5, 3)), order=order)
    np.save(tmp_path / "f.npy", array)
    for data in (of.FeatureSet.load(tmp_path / "f.npy"), open_or_read(str(tmp_path / "f.npy")).in_memory()):
        assert np.array_equal(data.features.numpy(), array)
    np.save(tmp_path / "g.npy", array[0])
    with pytest.raises(of.InputError, match="two dimensions"):
        of.FeatureSet.load(tmp_path / "g.npy")


def test_endings(tmp_path):
    for name in ("a.pkl", "a"):
        with pytest.raises(of.InputError, match="safetensors"):
            of.FeatureSet(good).save(tmp_path / name)
        with pytest.raises(of.InputError, match="safetensors"):
            of.FeatureSet.load(tmp_path / name)


def test_an_archive_that_is_no_set_tells_what_it_holds(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.ones(2), b=np.ones(2))
    with pytest.raises(of.FileFormatError, match="is not a FeatureSet: it holds a, b; expected features and any"):
        of.FeatureSet.load(tmp_path / "other.npz")
    np.savez(tmp_path / "many.npz", **{f"x{i}": np.ones(2) for i in range(7)})
    with pytest.raises(of.FileFormatError, match="it holds x0, x1, x2, x3, x4, x5, …; expected"):
        of.FeatureSet.load(tmp_path / "many.npz")
    np.savez(tmp_path / "none.npz")
    with pytest.raises(of.FileFormatError, match="it holds nothing; expected"):
        of.FeatureSet.load(tmp_path / "none.npz")


def test_its_signature_names_the_fields():
    parameters = inspect.signature(of.FeatureSet).parameters
    assert list(parameters) == [*FIELDS, "about", "names"]
    assert parameters["features"].default is inspect.Parameter.empty
    assert {one.default for name, one in parameters.items() if name != "features"} == {None}
    with pytest.raises((of.InputError, TypeError), match="colour"):
        of.FeatureSet(good, colour=good)
