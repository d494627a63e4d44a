"""Pickles of plain values are read as pickle reads them, and nothing in them can run."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import subprocess

import numpy as np
import pytest

import outfield as of
from outfield.images.layouts import read_plain_pickle

PLAIN = {
    "data": np.arange(60, dtype=np.uint8).reshape(5, 12),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "other byte order": np.arange(3, dtype=">i4"),
    "labels": [1, 2, 300, -4, 70_000, 10**20, True, False, None, 2.5],
    "text": "höh",
    "long text": "x" * 300,
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "inside": {"a": [["b"], {}]},
    "twice": ["same", "same"],
}


def put(tmp_path, content):
    path = tmp_path / "values"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("protocol", range(5))
def test_plain_values_are_what_pickle_reads(tmp_path, protocol):
    found = read_plain_pickle(put(tmp_path, pickle.dumps(PLAIN, protocol)))
    assert found.keys() == PLAIN.keys()
    for name, value in PLAIN.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype
            assert np.array_equal(found[name], value)
        else:
            assert found[name] == value
            assert list(map(type, found[name])) == list(map(type, value))


def test_what_python_2_wrote(tmp_path):
    """As CIFAR's own files begin: protocol 2, text as bytes, the array's content too."""
    program = (
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x04testq\x03U\x06labelsq\x04]q\x05(K\x03K\x09eU\x04dataq\x06"
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x06\x00\x01\x80\xff\x04\x05tbu."
    )
    found = read_plain_pickle(put(tmp_path, program))
    assert found["batch_label"] == "test"
    assert found["labels"] == [3, 9]
    assert found["data"].tolist() == [[0, 1, 128], [255, 4, 5]]
    theirs = pickle.loads(program, encoding="latin1")
    assert np.array_equal(theirs["data"], found["data"])


class Calls:
    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def odd_pickles(marker):
    touch = f"touch {marker}"
    yield {"a": Calls(os.system, (touch,))}
    yield {"a": Calls(subprocess.check_call, (["touch", str(marker)],))}
    yield {"a": Calls(eval, (f"open({str(marker)!r}, 'w')",))}
    yield {"a": Calls(np.ndarray, ((3,),), {"b": 1})}
    yield {"a": Calls(np.dtype, ("O",))}
    yield {"a": np.array([Calls(os.system, (touch,))], dtype=object)}
    yield {"a": np.zeros(2, dtype=[("x", "u1")])}
    yield {"a": np.array(["text"])}
    yield {"a": np.array([1 + 2j])}
    yield {"a": collections.OrderedDict(b=1)}
    yield {"a": {1, 2}}
    yield {"a": os.system}
    yield {3: 4}
    yield [1, 2]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_anything_else_is_refused_and_never_runs(tmp_path, protocol):
    marker = tmp_path / "ran"
    for value in odd_pickles(marker):
        content = pickle.dumps(value, protocol)
        with pytest.raises(of.FileFormatError, match=r"values is truncated, or is not a pickle of plain values"):
            read_plain_pickle(put(tmp_path, content))
    assert not marker.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'touch ran'\ntR.",
        b"(S'touch ran'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch ran'\no.",
        b"\x80\x02cos\nsystem\n)\x81.",
        b"\x80\x02\x82\x01.",
        b"Pid\n.",
        b"}(U\x01ab.",
        b"]}b.",
        b"K\x01K\x02e.",
        b"(.",
        b".",
        b"}q\x01h\x07.",
        b"}(K\x01u.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cos\nsystem\nK\x00\x85U\x01btR.",
    ],
)
def test_instructions_that_call_or_make_no_sense(tmp_path, program, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(of.FileFormatError):
        read_plain_pickle(put(tmp_path, program))
    assert not (tmp_path / "ran").exists()


def test_an_array_that_lies_about_its_size(tmp_path):
    content = pickle.dumps({"data": np.zeros((2, 3), np.uint8)}, 2)
    lying = content.replace(b"K\x02K\x03\x86", b"K\xffK\xff\x86")
    assert lying != content
    with pytest.raises(of.FileFormatError, match=r"an array of shape \(255, 255\) cannot have 6 bytes"):
        read_plain_pickle(put(tmp_path, lying))


def test_every_cut_and_many_changes_are_refused_or_harmless(tmp_path):
    content = pickle.dumps(PLAIN, 2)
    for end in range(0, len(content), 7):
        with pytest.raises(of.FileFormatError):
            read_plain_pickle(put(tmp_path, content[:end]))
    rng = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(content)
        for place in rng.integers(0, len(content), 3):
            changed[place] = rng.integers(0, 256)
        with contextlib.suppress(of.FileFormatError):
            assert isinstance(read_plain_pickle(put(tmp_path, bytes(changed))), dict)


def test_what_is_no_file(tmp_path):
    with pytest.raises(of.StorageError, match="no such file"):
        read_plain_pickle(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(of.StorageError, match="not an ordinary file"):
        read_plain_pickle(tmp_path / "pipe")
