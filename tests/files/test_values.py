"""The door for arrays: exactly the numbers that were given, or an error that names the argument. Never another."""

import subprocess
import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import outfield as of
from outfield.files import class_labels

BIG = 2**24 + 1
HUGE = 2**53 + 1


class Says:
    """Something that promises an array and gives ``answer`` when it is asked for it."""

    def __init__(self, answer):
        self.answer = answer

    def __array__(self, dtype=None, copy=None):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Tagged(torch.Tensor):
    """A tensor with something about it, as libraries make them."""


def masked_rows():
    return [np.ma.masked_array([1.0, 2.0], [False, True]), np.ma.masked_array([3.0, 4.0])]


def masked_tensor():
    return torch.masked.masked_tensor(torch.ones(2, 2), torch.tensor([[True, False], [True, True]]))


def sparse(how):
    if how in ("bsr", "bsc"):
        return getattr(torch.eye(4), f"to_sparse_{how}")((2, 2))
    return torch.eye(4).to_sparse() if how == "coo" else getattr(torch.eye(4), f"to_sparse_{how}")()


def itself():
    loop = [1.0]
    loop.append(loop)
    return loop


REFUSED = {
    "None in rows": lambda: [[1.0, None]],
    "a number": lambda: 3.5,
    "no array": lambda: object(),
    "a generator": lambda: ([x] for x in range(3)),
    "a dictionary": lambda: {"features": [[1.0]]},
    "text": lambda: "1 2 3",
    "numbers as text": lambda: [["1", "2"]],
    "dates": lambda: np.array([["2020-01-01"]], "datetime64[D]"),
    "objects": lambda: np.array([[1.0, 2.0]], object),
    "a structured array": lambda: np.zeros((2, 2), [("a", "f4"), ("b", "f4")]),
    "ragged": lambda: [[1.0], [1.0, 2.0]],
    "a list in itself": itself,
    "long double": lambda: np.ones((2, 2), np.longdouble),
    "complex": lambda: np.ones((2, 2), complex),
    "bool": lambda: np.ones((2, 2), bool),
    "masked": lambda: np.ma.masked_array(np.ones((2, 2)), [[True, False], [False, False]]),
    "masked rows": masked_rows,
    "masked entry": lambda: [[1.0, np.ma.masked]],
    "integers beyond int64": lambda: [[2**70]],
    "integers beyond float64": lambda: np.array([[HUGE]]),
    "negative integers beyond float64": lambda: np.array([[-HUGE]]),
    "unsigned integers beyond float64": lambda: np.array([[2**64 - 1]], np.uint64),
    "an object that fails": lambda: Says(RuntimeError("no array today")),
    "tensor: complex": lambda: torch.ones(2, 2, dtype=torch.complex64),
    "tensor: bool": lambda: torch.ones(2, 2, dtype=torch.bool),
    "tensor: float8": lambda: torch.ones(2, 2).to(torch.float8_e4m3fn),
    "tensor: meta": lambda: torch.ones(2, 2, device="meta"),
    "tensor: masked": masked_tensor,
    "tensor: quantized": lambda: torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.quint8),
    "tensor: nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    **{f"tensor: sparse {how}": lambda how=how: sparse(how) for how in ("coo", "csr", "csc", "bsr", "bsc")},
    "tensors that need gradients, in a list": lambda: [torch.ones(2, requires_grad=True)] * 2,
    "a FeatureSet": lambda: of.FeatureSet(np.eye(2)),
}  # fmt: skip


def without_warnings(value) -> of.FeatureSet:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return of.FeatureSet(value)


@pytest.mark.filterwarnings("ignore")  # of those who make odd tensors
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_array_of_real_numbers_is_refused_by_name(what):
    value = REFUSED[what]()
    with pytest.raises(of.InputError, match="features") as caught:
        without_warnings(value)
    assert len(str(caught.value)) < 500


VALUES = [[1.0, 2.0, 3.0], [-4.0, 5.0, 6.5]]
WHOLE = [[1, 2, 3], [-4, 5, 100]]


def read_only(array):
    array.flags.writeable = False
    return array


def mapped(array, path):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


TAKEN = {
    "lists": lambda _: VALUES,
    "tuples of arrays": lambda _: tuple(np.array(row) for row in VALUES),
    "tensors in a list": lambda _: [torch.tensor(row, dtype=torch.float64) for row in VALUES],
    **{f"{dtype}": lambda _, dtype=dtype: np.array(VALUES, dtype) for dtype in ("f2", "f4", "f8", ">f2", ">f4", ">f8")},
    **{f"{dtype}": lambda _, dtype=dtype: np.array(WHOLE, dtype) for dtype in ("i1", "i2", "i4", "i8", ">i4", ">i8")},
    **{f"{dtype}": lambda _, dtype=dtype: np.abs(WHOLE).astype(dtype) for dtype in ("u1", "u2", "u4", "u8", ">u8")},
    **{f"{dtype}": lambda _, dtype=dtype: torch.tensor(VALUES, dtype=dtype)
       for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)},
    **{f"{dtype}": lambda _, dtype=dtype: torch.tensor(WHOLE).abs().to(dtype)
       for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int64)},
    "read-only": lambda _: read_only(np.array(VALUES)),
    "memory map": lambda path: mapped(np.array(VALUES), path / "a.npy"),
    "backwards": lambda _: np.array(VALUES)[::-1, ::-1],
    "every other": lambda _: np.arange(24.0).reshape(4, 6)[::2, ::2],
    "transposed": lambda _: np.array(VALUES).T,
    "repeated": lambda _: np.broadcast_to(np.array([1.0, 2.0]), (3, 2)),
    "masked array without masks": lambda _: np.ma.masked_array(VALUES),
    "an object": lambda _: Says(np.array(VALUES)),
    "large integers": lambda _: np.array([[BIG, -BIG], [2**53, 0]]),
    "integers as large as float32 takes": lambda _: np.array([[2**24, -(2**24)]]),
    "tensor: needs gradients": lambda _: torch.tensor(VALUES, requires_grad=True),
    "tensor: subclass": lambda _: torch.tensor(VALUES).as_subclass(Tagged),
    "tensor: expanded": lambda _: torch.tensor([[1.0, 2.0]]).expand(5, 2),
    "tensor: inference": lambda _: torch.inference_mode()(lambda: torch.tensor(VALUES))(),
    "tensor: large integers": lambda _: torch.tensor([[BIG, -BIG]]),
}  # fmt: skip


def exact(value) -> list[list[Fraction]]:
    if isinstance(value, Says):
        value = value.answer
    if isinstance(value, torch.Tensor):
        value = value.detach().clone().double() if value.is_floating_point() else value.to(torch.int64)
    return [[Fraction(number) for number in row] for row in np.vstack([np.asarray(row) for row in value]).tolist()]


@pytest.mark.filterwarnings("ignore")  # of numpy, that there are better classes than its matrix
@pytest.mark.parametrize("what", TAKEN)
def test_what_is_taken_is_exactly_what_was_given(what, tmp_path):
    value = TAKEN[what](tmp_path)
    expected = exact(value)
    found = without_warnings(value).features
    assert type(found) is torch.Tensor
    assert found.is_floating_point()
    assert not found.requires_grad
    assert exact(found) == expected
    assert exact(value) == expected  # and the caller's array is as it was


@given(
    hnp.arrays(
        st.sampled_from([np.int32, np.int64, np.uint32, np.uint64]),
        (2, 3),
        elements=st.one_of(st.integers(0, 200), st.integers(2**24 - 2, 2**24 + 2), st.integers(2**31 - 3, 2**31 - 1)),
    )
)
def test_integers_are_never_rounded(array):
    for value in (array, torch.from_numpy(array), array.tolist()):
        found = of.FeatureSet(value).features
        assert [[int(number) for number in row] for row in found.tolist()] == array.tolist()
        assert found.dtype == (torch.float32 if int(array.max()) <= 2**24 else torch.float64)


def test_integers_of_a_piece_are_not_promoted(tmp_path):
    """A stream's pieces have one type, whatever is in them; loaded whole, the set has the type that holds all."""
    array = np.zeros((5, 2), np.int64)
    array[3, 1] = BIG
    np.savez(tmp_path / "f.npz", features=array)
    stream = of.open_features(tmp_path / "f.npz")
    with pytest.raises(of.InputError, match=rf"features\[3, 1\] is {BIG}.*float32"):
        list(stream.batches(2))
    for whole in (stream.in_memory(), of.FeatureSet.load(tmp_path / "f.npz")):
        assert whole.features.dtype == torch.float64
        assert whole.features[3, 1] == BIG


@pytest.mark.parametrize(("labels", "words"), [
    (np.array([0.0, 1.0]), "integers"),
    ([0, 1.0], "integers"),
    (np.array([True, False]), "integers"),
    (np.array([0, 2**63], np.uint64), rf"labels go up to {2**63}"),
    (torch.tensor([0, -1]).to(torch.uint64), rf"labels go up to {2**64 - 1}"),
    (np.array([0, -1]), r"down to -1.*\(row 1\)"),
    ([0, 2**64], "labels"),
    (["0", "1"], "labels"),
    (np.ma.masked_equal([0, 1], 1), "masked"),
    (np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"), "labels"),
    (0, "one dimension"),
    (iter([0, 1]), "labels"),
])  # fmt: skip
def test_labels_that_are_none(labels, words):
    with pytest.raises(of.InputError, match=words):
        of.FeatureSet(np.eye(2), labels=labels)
    with pytest.raises(of.InputError, match="labels"):
        class_labels(labels)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", ">i8", ">u2"])
def test_labels_of_any_whole_type(dtype):
    for labels in (np.array([0, 3, 1], dtype), np.array([1, 0, 3, 0, 0], dtype)[::-2]):
        found = of.FeatureSet(np.eye(3), labels=labels).labels
        assert found.dtype == torch.int64
        assert found.tolist() == [int(label) for label in labels]


@pytest.mark.parametrize("rows", [1, 70_000])
def test_bad_entries_are_named_by_row_and_column(rows):
    array = np.zeros((rows, 3), np.float32)
    array[rows - 1, 2] = np.nan
    with pytest.raises(of.InputError, match=rf"features\[{rows - 1}, 2\] is nan.*\(rows with such values: 1\)"):
        of.FeatureSet(array)
    array[rows - 1, 2] = -np.inf
    with pytest.raises(of.InputError, match=rf"features\[{rows - 1}, 2\] is -inf"):
        of.FeatureSet(array)


def test_an_array_that_must_not_be_written_is_taken_without_a_copy_or_a_warning():
    """Torch warns of it once in a process, so this takes a process of its own."""
    code = (
        "import numpy as np; from outfield.files import as_tensor; fixed = np.ones((3, 2)); fixed.flags.writeable = False; "
        "assert as_tensor('features', fixed).data_ptr() == fixed.ctypes.data"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=300)
    mine = np.ones((3, 2))
    assert of.FeatureSet(mine).features.data_ptr() == mine.ctypes.data


def test_what_numbers_would_be_right():
    with pytest.raises(of.InputError, match=r"features is a sparse csr_matrix; pass features.toarray\(\)"):
        of.FeatureSet(scipy.sparse.csr_matrix(np.eye(3)))
    for texts in (["cat", "dog"], np.array(["cat", "dog"], dtype=object)):
        with pytest.raises(of.InputError, match=r"labels must be .* texts; np.unique\(labels, return_inverse=True\)"):
            of.FeatureSet(np.eye(2), labels=texts)
    with pytest.raises(of.InputError, match=r"features must be an array of numbers; got list that holds texts$"):
        of.FeatureSet(["a text", "another"])
    with pytest.raises(of.InputError, match=r"holds Python objects$"):
        of.FeatureSet(np.eye(2), labels=[None, "dog"])
    with pytest.raises(of.InputError, match=r"logits must have two dimensions .*the logits 0 and s"):
        of.FeatureSet(np.eye(2), logits=[1.0, 2.0])
    with pytest.raises(of.InputError, match=r"features must have two dimensions \(N, D\); got shape \(2,\)$"):
        of.FeatureSet([1.0, 2.0])
