"""safetensors files: the same as the library's, read into memory of our own, and headers held against the file."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.files import storage
from outfield.files.opened import Stamp
from outfield.files.tensors import DTYPES, find_tensors

SHAPES = [(), (0,), (7,), (3, 5), (2, 0, 4), (2, 3, 4, 5)]


def samples():
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, dtype in DTYPES.items():
        for shape in SHAPES:
            bits = torch.randint(0, 2, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
            found[f"{name}{list(shape)}"] = bits.reshape(-1).view(dtype).reshape(shape)
    return found


def same(one, other):
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def test_the_library_reads_what_we_write(tmp_path):
    tensors = samples()
    storage.write(tmp_path / "f.safetensors", "kind", {}, tensors)
    found = safetensors.torch.load_file(tmp_path / "f.safetensors")
    assert found.keys() == tensors.keys()
    assert all(same(found[name], tensors[name]) for name in tensors)


def test_we_read_what_the_library_writes(tmp_path):
    tensors = samples()
    safetensors.torch.save_file(tensors, tmp_path / "f.safetensors", {"by": "the library"})
    metadata, found = storage.read_tensors(tmp_path / "f.safetensors")
    assert metadata == {"by": "the library"}
    assert found.keys() == tensors.keys()
    assert all(same(found[name], tensors[name]) for name in tensors)


def test_tensors_that_share_memory_are_written_each(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    storage.write(
        tmp_path / "f.safetensors", "kind", {}, {"all": base, "again": base, "turned": base.T, "row": base[1]}
    )
    _, found = storage.read(tmp_path / "f.safetensors", "kind")
    assert torch.equal(found["again"], base)
    assert torch.equal(found["turned"], base.T)
    assert torch.equal(found["row"], base[1])


def test_everything_is_aligned(tmp_path):
    """Others may map these files, and want numbers at multiples of their size."""
    for extra in range(8):  # whatever the length of the header is
        tensors = {"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(5), "c": torch.ones(1, dtype=torch.float64)}
        storage.write(tmp_path / "f.safetensors", "kind", {"note": "x" * extra}, tensors)
        found = find_tensors(tmp_path / "f.safetensors").arrays
        assert all(array.offset % array.dtype.itemsize == 0 for array in found.values())


def test_equal_content_gives_equal_bytes(tmp_path):
    tensors = {"a": torch.ones(3), "b": torch.zeros(2)}
    storage.write(tmp_path / "one.safetensors", "kind", {"x": 1, "y": {"p": 2, "q": 3}}, tensors)
    turned = dict(reversed(tensors.items()))
    storage.write(tmp_path / "two.safetensors", "kind", {"y": {"q": 3, "p": 2}, "x": 1}, turned)
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()


def test_shapes_at_the_edge_of_what_there_is(tmp_path):
    header = {"a": entry(0, 4, [1] * 64), "b": entry(4, 4, (0, 2**60))}
    found = find_tensors(file_with(tmp_path / "f.safetensors", header, b"1234")).arrays
    assert found["a"].shape == (1,) * 64
    assert tuple(found["b"].read().shape) == (0, 2**60)


def test_what_cannot_be_written_as_safetensors(tmp_path, monkeypatch):
    with pytest.raises(of.InputError, match=r"t holds torch\.complex128"):
        storage.write(tmp_path / "f.safetensors", "kind", {}, {"t": torch.ones(2, dtype=torch.complex128)})
    storage.write(tmp_path / "f.safetensors", "kind", {}, {"t": torch.ones(2)})
    size = struct.unpack("<Q", (tmp_path / "f.safetensors").read_bytes()[:8])[0]
    monkeypatch.setattr("outfield.files.tensors.LARGEST_HEADER", size)
    storage.write(tmp_path / "f.safetensors", "kind", {}, {"t": torch.ones(2)})
    storage.read(tmp_path / "f.safetensors", "kind")
    monkeypatch.setattr("outfield.files.tensors.LARGEST_HEADER", size - 1)
    with pytest.raises(of.InputError, match=f"take {size:,} bytes; at most {size - 1:,}"):
        storage.write(tmp_path / "f.safetensors", "kind", {}, {"t": torch.ones(2)})
    with pytest.raises(of.FileFormatError, match=f"said to have {size:,} bytes"):
        storage.read(tmp_path / "f.safetensors", "kind")


MEMORY = """
import resource, sys, torch
from outfield.files import storage
path = sys.argv[1]
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
storage.write(path, "kind", {}, {"small": torch.ones(3)})
storage.read(path, "kind")
tensors = {name: torch.ones(10_000_000) for name in "abc"}
before = peak()
storage.write(path, "kind", {}, tensors)
written = peak()
del tensors
_, tensors = storage.read(path, "kind")
print(before, written, peak())
"""


def test_memory_holds_tensors_once(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path / "f.safetensors"], capture_output=True, text=True, check=True
    )
    before, written, read = (float(number) for number in done.stdout.split())
    assert written < before + 20  # megabytes, of 114 that are written
    assert read < before + 20


def test_what_was_loaded_does_not_change_with_the_file(tmp_path):
    data, path = make_set(n=500), tmp_path / "set.safetensors"
    data.save(path)
    quick("SSD").fit(data).save(tmp_path / "d.safetensors")
    of.Threshold.fit(torch.arange(100.0)).save(tmp_path / "t.safetensors")
    loaded, detector = of.FeatureSet.load(path), of.load(tmp_path / "d.safetensors")
    threshold = of.Threshold.load(tmp_path / "t.safetensors")
    _, plain = storage.read_tensors(path)
    before = detector.score(data)
    for name in ("set", "d", "t"):
        with open(tmp_path / f"{name}.safetensors", "r+b") as file:  # in place, not replaced
            size = file.seek(0, 2)
            file.seek(0)
            file.write(b"\xff" * size)
    assert all(torch.equal(loaded.tensors()[name], value) for name, value in data.tensors().items())
    assert torch.equal(plain["features"], data.features)
    assert torch.equal(detector.score(data), before)
    assert torch.equal(threshold.reference, torch.arange(100.0).to(threshold.reference.dtype))


def test_a_file_cut_short_after_loading_kills_nothing(tmp_path):
    make_set(n=5000).save(tmp_path / "set.safetensors")
    program = (
        "import os, sys, outfield as of\n"
        "data = of.FeatureSet.load(sys.argv[1])\n"
        "os.truncate(sys.argv[1], 0)\n"
        "print(float(data.features.double().sum()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "set.safetensors"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(float(make_set(n=5000).features.double().sum()))


def test_a_file_that_changes_while_it_is_read_is_an_error_and_one_that_is_replaced_is_whole(tmp_path, monkeypatch):
    path, other = tmp_path / "f.safetensors", tmp_path / "other.safetensors"
    old, new = ({name: torch.full((1000,), value) for name in "ab"} for value in (1.0, 2.0))
    real = Stamp.check

    def reading(meanwhile):
        safetensors.torch.save_file(old, path)
        os.utime(path, ns=(0, 0))
        safetensors.torch.save_file(new, other)
        monkeypatch.setattr(Stamp, "check", lambda stamp, file=None: (meanwhile(), real(stamp, file))[1])
        return storage.read_tensors(path)[1]

    found = reading(lambda: os.replace(other, path))
    assert torch.equal(torch.cat([found["a"], found["b"]]), torch.ones(2000))
    with pytest.raises(of.FileFormatError, match="changed while it was being read"):
        reading(lambda: path.write_bytes(other.read_bytes()))


def file_with(path, header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def entry(start=0, end=8, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"", b""),
        (b"[]", b""),
        (b"null", b""),
        (b"{", b""),
        (b"\xff\xfe{}", b""),
        (b'{"a":' * 100_000, b""),
        (b"[" * 1_000_000, b""),
        (b'{"a": ' + b"9" * 5000 + b"}", b""),
        ({"a": 1}, b""),
        ({"a": []}, b""),
        ({"a": {}}, b""),
        ({"__metadata__": 3}, b""),
        ({"__metadata__": {"a": 3}}, b""),
        ({"a": entry() | {"shape": 2}}, b"12345678"),
        ({"a": entry(shape=(-2,))}, b"12345678"),
        ({"a": entry(shape=(-2, -1))}, b"12345678"),
        ({"a": entry(shape=(2.0,))}, b"12345678"),
        ({"a": entry(shape=(True, 2))}, b"12345678"),
        ({"a": entry(shape=("2",))}, b"12345678"),
        ({"a": entry(shape=(3,))}, b"12345678"),
        ({"a": entry(shape=(10**15,))}, b"12345678"),
        ({"a": entry(0, 4 * 10**15, (10**15,))}, b"12345678"),
        ({"a": entry(0, 0, (0, 2**64))}, b""),
        ({"a": entry(0, 0, (0, 2**62, 2))}, b""),
        ({"a": entry(0, 0, (0, 2**61))}, b""),
        ({"a": entry(0, 4, [1] * 65)}, b"1234"),
        ({"a": entry(0, 0, [2**62] * 100_000)}, b""),
        ({"a": entry(dtype="F99")}, b"12345678"),
        ({"a": entry(dtype=["F32"])}, b"12345678"),
        ({"a": entry() | {"data_offsets": [0, 8, 8]}}, b"12345678"),
        ({"a": entry() | {"data_offsets": [8, 0]}}, b"12345678"),
        ({"a": entry() | {"data_offsets": [0.0, 8.0]}}, b"12345678"),
        ({"a": entry(-4, 4)}, b"12345678"),
        ({"a": entry(4, 12)}, b"123456789012"),
        ({"a": entry(), "b": entry()}, b"12345678"),
        ({"a": entry(), "b": entry(4, 12)}, b"123456789012"),
        ({"a": entry()}, b"123456789"),
        (b'{"a": %(e)s, "a": %(e)s}' % {b"e": json.dumps(entry()).encode()}, b"12345678"),
        (b'{"a": {"dtype": "F32", "dtype": "I32", "shape": [2], "data_offsets": [0, 8]}}', b"12345678"),
    ],
)
def test_headers_that_do_not_fit_the_file_are_refused(tmp_path, header, body):
    path = file_with(tmp_path / "f.safetensors", header, body)
    for read in (find_tensors, storage.read_tensors, of.load, of.FeatureSet.load, of.open_features):
        with pytest.raises(of.FileFormatError):
            read(path)


@pytest.mark.parametrize(
    ("size", "words"), [(2**25, "Expecting value"), (2**25 + 1, "said to have 33,554,433 bytes"), (2**40, "said")]
)
def test_a_header_that_is_said_to_be_huge_is_not_read(tmp_path, size, words):
    path = tmp_path / "f.safetensors"
    path.write_bytes(struct.pack("<Q", size))
    os.truncate(path, 2**41)  # a hole, which takes no room
    with pytest.raises(of.FileFormatError, match=words):
        storage.read_tensors(path)


@pytest.mark.parametrize("size", range(10))
def test_files_shorter_than_any_header(tmp_path, size):
    path = tmp_path / "f.safetensors"
    path.write_bytes(struct.pack("<Q", 2)[:size] + b"{}"[: max(0, size - 8)])
    with pytest.raises(of.FileFormatError, match="not a safetensors file"):
        storage.read_tensors(path)
