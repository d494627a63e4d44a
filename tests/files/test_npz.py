"""``.npy`` and ``.npz``: the same as numpy reads, and what cannot be is refused before memory is asked for."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from tests.helpers.old_files import write_old_npz
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.files.npy import find_npy
from outfield.files.npz import open_archive, read_npz, write_archive

DTYPES = ["<f2", "<f4", ">f4", "<f8", ">f8", "|i1", "<i2", ">i8", "|u1", "<u4", "|b1", "<c8", "<f16"]
SHAPES = [(), (0,), (7,), (3, 5), (2, 0, 4), (2, 3, 4)]


def sample(dtype, shape, order="C"):
    numbers = np.random.default_rng(0).integers(0, 100, shape)
    return np.asarray(numbers).astype(dtype, order=order)


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_npy_that_numpy_writes(tmp_path, version, order):
    for dtype in DTYPES:
        for shape in SHAPES:
            array = sample(dtype, shape, order)
            with open(tmp_path / "a.npy", "wb") as file:
                np.lib.format.write_array(file, array, version)
            assert same(find_npy(tmp_path / "a.npy").read(), array)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_any_npz_that_numpy_writes(tmp_path, write):
    arrays = {
        f"{dtype}{shape}{order}": sample(dtype, shape, order) for dtype in DTYPES for shape in SHAPES for order in "CF"
    }
    arrays |= {"text": np.array(["ä", "", "bee"]), "turned text": np.array(["ab", "c"]).astype(">U2")}
    write(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == arrays.keys()
    assert all(same(found[name], array) for name, array in arrays.items())


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_rows_are_those_of_the_array(tmp_path, write):
    array = sample("<f4", (1000, 7))
    write(tmp_path / "a.npz", a=array)
    with open_archive(tmp_path / "a.npz") as archive:
        (found,) = archive.find(["a"]).values()
    for size in (1, 333, 1000):
        with found.rows() as rows:
            pieces = [rows.read(min(size, 1000 - start)) for start in range(0, 1000, size)]
        assert same(np.concatenate(pieces), array)


def test_an_archive_of_ours(tmp_path):
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.arange(4)}
    write_archive(tmp_path / "a.npz", "kind", {"entry": [1, "two"]}, tensors)
    with np.load(tmp_path / "a.npz") as foreign:
        assert all(same(foreign[name], tensor.numpy()) for name, tensor in tensors.items())
    with open_archive(tmp_path / "a.npz", "kind") as archive:
        assert archive.header.entries == {"entry": [1, "two"]}
        assert archive.names == ["b", "a"]
    with (
        pytest.raises(of.FileFormatError, match="holds a kind, not a FeatureSet"),
        open_archive(tmp_path / "a.npz", "FeatureSet"),
    ):
        pass


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_of_an_archive_of_ours_exactly_what_is_read_is_compared(tmp_path, packed, old):
    data, path = make_set(n=50), tmp_path / "set.npz"
    write_old_npz(path, data.tensors()) if old else data.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    arrays["logits"] = arrays["logits"].copy()
    arrays["logits"][7, 1] += 1  # with a right CRC of the archive, as a careful forger would
    (np.savez_compressed if packed else np.savez)(path, **arrays)
    stream = of.open_features(path)
    for read in ("logits", "labels"):
        if old or read == "logits":
            with pytest.raises(of.FileFormatError, match="changed after it was written"):
                list(stream.batches(20, [read]))
        else:
            assert torch.equal(torch.cat([piece[read] for piece in stream.batches(20, [read])]), data.labels)
    with pytest.raises(of.FileFormatError, match="changed after it was written"):
        of.FeatureSet.load(path)


def test_a_changed_bit_in_a_foreign_archive_is_found_in_rows_too(tmp_path):
    array = sample("<f4", (1000, 7))
    np.savez(tmp_path / "a.npz", features=array)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(array.tobytes()) + 12345] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(of.FileFormatError, match="checksum"):
        list(of.open_features(tmp_path / "a.npz").batches(100))


def npy(text, body=b"", version=(1, 0), length=None):
    """An array of which the header is ``text``."""
    text = text.encode("latin1") if isinstance(text, str) else text
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes(version) + size + text + body


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }"
HEADERS = {
    "empty": b"",
    "magic alone": b"\x93NUMPY",
    "version 9": npy(GOOD, b"12345678", (9, 0)),
    "length alone": npy("", b"", (1, 0)),
    "too long": npy(GOOD, b"12345678", (2, 0), 2**31),
    "long": npy(GOOD + " " * 20_000, b"12345678", (2, 0)),
    "ends": npy(GOOD, b"", (1, 0), 500),
    "code": npy("__import__('os').mkdir('exploded')"),
    "code inside": npy(GOOD.replace("(1, 2)", "(len([1]), 2)"), b"12345678"),
    "sum": npy(GOOD.replace("(1, 2)", "(1+0, 2)"), b"12345678"),
    "nested": npy("(" * 5000),
    "nested list": npy("[" * 5000),
    "not closed": npy(GOOD[:-1], b"12345678"),
    "no shape": npy("{'descr': '<f4', 'fortran_order': False, }", b"12345678"),
    "one more": npy(GOOD.replace("}", "'x': 1, }"), b"12345678"),
    "twice": npy(GOOD.replace("}", "'shape': (1, 2), }"), b"12345678"),
    "negative": npy(GOOD.replace("(1, 2)", "(-1, -2)"), b"12345678"),
    "float": npy(GOOD.replace("(1, 2)", "(1.0, 2)"), b"12345678"),
    "text": npy(GOOD.replace("(1, 2)", "'12'"), b"12345678"),
    "huge": npy(GOOD.replace("(1, 2)", "(1000000000000000, 2)"), b"12345678"),
    "more than a number": npy(GOOD.replace("(1, 2)", "(1" + "0" * 5000 + ", 2)"), b"12345678"),
    "overflow": npy(GOOD.replace("(1, 2)", "(4611686018427387904, 4, 0)")),
    "many sides": npy(GOOD.replace("(1, 2)", "(" + "1, " * 100 + ")"), b"1234"),
    "order": npy(GOOD.replace("False", "Nein"), b"12345678"),
    "order is a shape": npy("{'descr': '<f4', 'fortran_order': (1,), 'shape': (1, 2), }", b"12345678"),
    "type": npy(GOOD.replace("<f4", "<f3"), b"12345678"),
    "strange type": npy(GOOD.replace("<f4", "f4,(2)i4"), b"12345678"),
    "very strange type": npy(GOOD.replace("<f4", "\xe4\xff"), b"12345678"),
    "enormous type": npy(GOOD.replace("<f4", "<U999999999"), b"12345678"),
    "no type": npy(GOOD.replace("<f4", ""), b"12345678"),
    "objects": npy(GOOD.replace("<f4", "|O"), b"12345678"),
    "table": npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", b"12345678"),
    "dates": npy(GOOD.replace("<f4", "<M8[ns]"), b"12345678" * 2),
    "bytes": npy(GOOD.replace("<f4", "|S4"), b"12345678"),
    "fewer": npy(GOOD, b"1234567"),
    "more": npy(GOOD, b"123456789"),
    "nul": npy(GOOD.replace("4", "\0"), b"12345678"),
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS.keys())
@pytest.mark.parametrize("kind", ["npy", "stored", "deflated"])
def test_headers_that_are_none(tmp_path, content, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ("a.npy" if kind == "npy" else "a.npz")
    path.write_bytes(content) if kind == "npy" else zipped(path, {"features.npy": content}, kind)
    uses = [lambda: of.open_features(path), lambda: open_all(path)]
    if kind != "npy":
        uses += [lambda: read_npz(path), lambda: of.FeatureSet.load(path), lambda: of.open_images(path)]
    for use in uses:
        with pytest.raises((of.FileFormatError, of.InputError)) as caught:
            use()
        assert str(path) in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_good_header_is_one(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(GOOD, struct.pack("<ff", 1, 2)))
    assert find_npy(tmp_path / "a.npy").read().tolist() == [[1, 2]]
    for text in ('{"shape":(1,2),"fortran_order":False,"descr":"<f4"}', GOOD.replace("(1, 2)", "(1L, 2L)")):
        (tmp_path / "a.npy").write_bytes(npy(text, struct.pack("<ff", 1, 2), (2, 0)))
        assert find_npy(tmp_path / "a.npy").read().tolist() == [[1, 2]]


def open_all(path):
    if path.suffix == ".npy":
        return find_npy(path)
    with open_archive(path) as archive:
        return archive.find(archive.names)


def zipped(path, contents, kind="stored"):
    how = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2}[kind]
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def refused(use, words=None, megabytes=40.0):
    """The call is refused in less than two seconds and in little memory."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises((of.FileFormatError, of.InputError), match=words):
            use()
        assert time.perf_counter() - start < 2
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1e6
    finally:
        tracemalloc.stop()


@pytest.fixture
def nothing_unpacks(monkeypatch):
    """Whoever unpacks more than a header fails, with words that no test here expects."""
    monkeypatch.setattr("outfield.files.npz.AT_ONCE", 0)


def test_a_bomb_is_found_before_it_is_unpacked(tmp_path, nothing_unpacks):
    np.savez_compressed(tmp_path / "bomb.npz", features=np.zeros((10, 1_000_000), np.float32))
    assert (tmp_path / "bomb.npz").stat().st_size < 50_000
    stream = of.open_features(tmp_path / "bomb.npz")
    assert stream.shapes["features"] == (10, 1_000_000)
    detector = quick("SSD").fit(make_set())
    refused(lambda: detector.score(stream), "1000000|1,000,000")


def test_shapes_are_compared_before_anything_is_unpacked(tmp_path, nothing_unpacks):
    good = np.zeros((10, 500), np.float32)
    for words, arrays in {
        "two dimensions": {"features": good.reshape(10, 50, 10)},
        "labels has 9 rows": {"features": good, "labels": np.zeros(9, np.int64)},
        "not a FeatureSet": {"features": good, "other": good},
        "array of numbers": {"features": good, "labels": np.array(["a"] * 10)},
    }.items():
        np.savez_compressed(tmp_path / "a.npz", **arrays)
        for use in (of.FeatureSet.load, of.open_features):
            refused(lambda use=use: use(tmp_path / "a.npz"), words)


@pytest.mark.parametrize("kind", ["stored", "deflated"])
def test_a_member_that_holds_less_or_more_than_it_says(tmp_path, kind):
    text = GOOD.replace("(1, 2)", "(1000000, 2)")
    for content in (npy(text, b"1" * 7_999_999), npy(text, b"1" * 8_000_001), npy(text, b"1" * 8)):
        zipped(tmp_path / "a.npz", {"features.npy": content}, kind)
        refused(lambda: of.open_features(tmp_path / "a.npz"))
    text = GOOD.replace("(1, 2)", "(1000000000000000, 2)")
    zipped(tmp_path / "a.npz", {"features.npy": npy(text, b"1" * 8)}, kind)
    path = tmp_path / "a.npz"
    content = path.read_bytes()
    size = struct.pack("<I", len(npy(text, b"1" * 8)))
    assert content.count(size) >= 2  # in the table of contents, and before the member
    for said in (2**32 - 2, 2**31, 0):  # the archive lies as the array's header does
        path.write_bytes(content.replace(size, struct.pack("<I", said)))
        refused(lambda: of.FeatureSet.load(path))


def test_archives_that_are_refused(tmp_path):
    good = npy(GOOD, b"12345678")
    path = tmp_path / "a.npz"
    zipped(path, {"features.npy": good}, "bzip2")
    refused(lambda: of.FeatureSet.load(path), "another way")
    zipped(path, {"features.npy": good})
    content = bytearray(path.read_bytes())
    for place in (content.index(b"PK\x03\x04") + 6, content.index(b"PK\x01\x02") + 8):
        content[place] |= 1
    path.write_bytes(content)
    refused(lambda: of.FeatureSet.load(path), "encrypted")
    zipped(path, {"features.npy": good, "features.NPY": good})
    path.write_bytes(path.read_bytes().replace(b"NPY", b"npy"))
    refused(lambda: of.FeatureSet.load(path), "twice")
    zipped(path, {"features.npy": good, "features": good})
    refused(lambda: of.FeatureSet.load(path), "twice")


def test_members_that_lie_in_each_other(tmp_path):
    path = tmp_path / "a.npz"
    zipped(path, {"features.npy": npy(GOOD, b"12345678"), "spread.npy": npy(GOOD, b"87654321")})
    content = path.read_bytes()
    first = content.index(b"PK\x01\x02")
    second = content.index(b"PK\x01\x02", first + 1)
    moved = bytearray(content)
    moved[second + 42 : second + 46] = moved[first + 42 : first + 46]  # both begin where the first does
    path.write_bytes(moved)
    refused(lambda: of.FeatureSet.load(path))


def test_a_million_members_are_not_listed(tmp_path):
    entry = io.BytesIO()
    with zipfile.ZipFile(entry, "w") as archive:
        archive.writestr("a.npy", b"")
    content = entry.getvalue()
    first, end = content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")
    table = content[first:end] * 1_000_000
    tail = content[end : end + 12] + struct.pack("<II", len(table), first) + b"\0\0"
    (tmp_path / "a.npz").write_bytes(content[:first] + table + tail)
    refused(lambda: of.FeatureSet.load(tmp_path / "a.npz"), "table of contents", 200)


def test_texts_that_are_none(tmp_path):
    broken = npy("{'descr': '<U1', 'fortran_order': False, 'shape': (2,), }", b"\xff" * 8)
    images = io.BytesIO()
    np.save(images, np.zeros((2, 4, 4, 3), np.uint8))
    zipped(tmp_path / "a.npz", {"images.npy": images.getvalue(), "classes.npy": broken})
    refused(lambda: of.open_images(tmp_path / "a.npz"))
    for name in ("outfield_header", "outfield_sha256"):
        for content in (
            broken,
            npy(GOOD, b"12345678"),
            b"",
            npy("{'descr': '<U1', 'fortran_order': False, 'shape': (), }", b"\xff" * 4),
        ):
            zipped(tmp_path / "b.npz", {"features.npy": npy(GOOD, b"12345678"), f"{name}.npy": content})
            refused(lambda: of.FeatureSet.load(tmp_path / "b.npz"))
