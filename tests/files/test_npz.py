"""``.npy`` and ``.npz``: the same as numpy reads, and what cannot be is refused before memory is asked for."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
import zipfile
from fractions import Fraction

import numpy as np
import pytest
import torch
from tests.helpers.old_files import write_old_npz
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.files import zipped as zipped_file
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
    arrays["no text"] = np.array([], "U1")
    write(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == arrays.keys()
    assert all(same(found[name], array) for name, array in arrays.items())


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_rows_are_those_of_the_array(tmp_path, write, monkeypatch):
    monkeypatch.setattr("outfield.files.npz.AT_ONCE", 1000)
    monkeypatch.setattr("outfield.files.stored.AT_ONCE", 3000)
    array = sample("<f4", (1000, 7))
    write(tmp_path / "a.npz", a=array)
    with open_archive(tmp_path / "a.npz") as archive:
        (found,) = archive.find(["a"]).values()
    for size in (1, 333, 1000):
        with found.rows() as rows:
            pieces = [rows.read(min(size, 1000 - start)) for start in range(0, 1000, size)]
        assert same(np.concatenate(pieces), array)
    assert same(found.read(), array)
    pieces = [piece.tobytes() for piece in found.pieces()]
    assert b"".join(pieces) == array.tobytes()
    assert max(len(piece) for piece in pieces) == 3000


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


def test_an_old_archive_is_read_once(tmp_path, monkeypatch):
    data, path = make_set(n=50), tmp_path / "set.npz"
    write_old_npz(path, data.tensors())
    with open_archive(path) as archive:
        found = archive.read(archive.find(["labels"]))
        assert same(found["labels"], data.labels.numpy())
        assert list(found) == ["labels"]
    monkeypatch.setattr("outfield.files.npz.fingerprint_on_disk", lambda arrays: "another pass")
    assert torch.equal(of.FeatureSet.load(path).features, data.features)


def test_the_longest_text_of_ours(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    write_archive(path, "FeatureSet", {}, {"features": torch.ones(2, 2)})
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("outfield_header.npy").file_size
    monkeypatch.setattr("outfield.files.npz.LONGEST_TEXT", size)
    of.FeatureSet.load(path)
    monkeypatch.setattr("outfield.files.npz.LONGEST_TEXT", size - 1)
    refused(lambda: of.FeatureSet.load(path), "is too long")


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
    "empty": (b"", "does not end"),
    "magic alone": (b"\x93NUMPY", "does not end"),
    "no length": (b"\x93NUMPY\1\0\5", "does not end"),
    "other magic": (npy(GOOD, b"12345678").replace(b"NUMPY", b"NUMPX"), "it begins with"),
    "version 9": (npy(GOOD, b"12345678", (9, 0)), "it begins with"),
    "too long": (npy(GOOD, b"12345678", (2, 0), 2**31), "2,147,483,648 bytes"),
    "long": (npy(GOOD + " " * (10_001 - len(GOOD)), b"12345678", (2, 0)), "10,001 bytes"),
    "ends": (npy(GOOD, b"", (1, 0), 500), "does not end"),
    "no content": (npy(""), "its header is"),
    "code": (npy("__import__('os').mkdir('exploded')"), "its header is"),
    "code inside": (npy(GOOD.replace("(1, 2)", "(len([1]), 2)"), b"12345678"), "its header is"),
    "sum": (npy(GOOD.replace("(1, 2)", "(1+0, 2)"), b"12345678"), "its header is"),
    "nested": (npy("(" * 5000), "its header is"),
    "nested list": (npy("[" * 5000), "its header is"),
    "not opened": (npy(GOOD[1:], b"12345678"), "its header is"),
    "not closed": (npy(GOOD[:-1], b"12345678"), "its header is"),
    "no shape": (npy("{'descr': '<f4', 'fortran_order': False, }", b"12345678"), "its header is"),
    "one more": (npy(GOOD.replace("}", "'x': 1, }"), b"12345678"), "its header is"),
    "twice": (npy(GOOD.replace("}", "'shape': (1, 2), }"), b"12345678"), "its shape is none, or stands twice"),
    "two types": (
        npy("{'descr': '<f4', 'descr': [('a', '<f4')], 'shape': (2,), }", b"12345678"),
        "its descr is none, or",
    ),
    "negative": (npy(GOOD.replace("(1, 2)", "(-1, -2)"), b"12345678"), "its header is"),
    "float": (npy(GOOD.replace("(1, 2)", "(1.0, 2)"), b"12345678"), "its header is"),
    "text": (npy(GOOD.replace("(1, 2)", "'12'"), b"12345678"), "its shape is none"),
    "gap": (npy(GOOD.replace("(1, 2)", "(1, , 2)"), b"12345678"), "its shape is"),
    "letter": (npy(GOOD.replace("(1, 2)", "(1, L, 2)"), b"12345678"), "its shape is"),
    "huge": (npy(GOOD.replace("(1, 2)", "(1000000000000000, 2)"), b"12345678"), "should hold an array of shape"),
    "more than a number": (npy(GOOD.replace("(1, 2)", "(1" + "0" * 5000 + ", 2)"), b"12345678"), "its shape is"),
    "overflow": (npy(GOOD.replace("(1, 2)", f"({2**59}, 4, 0)")), "should hold an array of shape"),
    "many sides": (npy(GOOD.replace("(1, 2)", "(" + "1, " * 33 + ")"), b"1234"), "its shape is"),
    "order": (npy(GOOD.replace("False", "Nein"), b"12345678"), "its header is"),
    "order is a shape": (npy(GOOD.replace("False", "(1,)"), b"12345678"), "its fortran_order is none"),
    "type": (npy(GOOD.replace("<f4", "<f3"), b"12345678"), "numbers of the type '<f3'"),
    "type is a truth": (npy(GOOD.replace("'<f4'", "True"), b"12345678"), "its descr is none"),
    "strange type": (npy(GOOD.replace("<f4", "f4,(2)i4"), b"12345678"), "numbers of the type"),
    "very strange type": (npy(GOOD.replace("<f4", "\xe4\xff"), b"12345678"), "numbers of the type"),
    "unknown type": (npy(GOOD.replace("<f4", "<q8"), b"12345678"), "numbers of the type"),
    "enormous type": (npy(GOOD.replace("<f4", "<f999999999"), b"12345678"), "numbers of the type"),
    "no type": (npy(GOOD.replace("<f4", ""), b"12345678"), "numbers of the type ''"),
    "objects": (npy(GOOD.replace("<f4", "|O"), b"12345678"), "pickled objects"),
    "table": (npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", b"12345678"), "it holds .*'a'"),
    "dates": (npy(GOOD.replace("<f4", "<M8[ns]"), b"12345678" * 2), r"array of numbers; it holds <M8\[ns\]"),
    "bytes": (npy(GOOD.replace("<f4", "|S4"), b"12345678"), r"array of numbers; it holds \|S4"),
    "fewer": (npy(GOOD, b"1234567"), "truncated: it should hold an array of shape"),
    "more": (npy(GOOD, b"123456789"), "holds 1 bytes more than an array of shape"),
    "nul": (npy(GOOD.replace("4", "\0"), b"12345678"), "numbers of the type"),
}


@pytest.mark.parametrize(("content", "words"), HEADERS.values(), ids=HEADERS.keys())
@pytest.mark.parametrize("kind", ["npy", "stored", "deflated"])
def test_headers_that_are_none(tmp_path, content, words, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ("a.npy" if kind == "npy" else "a.npz")
    path.write_bytes(content) if kind == "npy" else zipped(path, {"features.npy": content}, kind)
    uses = [of.open_features, open_all] + ([] if kind == "npy" else [read_npz, of.FeatureSet.load, of.open_images])
    for use in uses:
        with pytest.raises((of.FileFormatError, of.InputError), match=words) as caught:
            use(path)
        assert str(path) in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_good_header_is_one(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(GOOD, struct.pack("<ff", 1, 2)))
    assert find_npy(tmp_path / "a.npy").read().tolist() == [[1, 2]]
    more = [GOOD.replace("(1, 2)", "(" + "1, " * 31 + "2)"), GOOD + " " * (10_000 - len(GOOD))]
    for text in ('{"shape":(1,2),"fortran_order":False,"descr":"<f4"}', GOOD.replace("(1, 2)", "(1L, 2L)"), *more):
        (tmp_path / "a.npy").write_bytes(npy(text, struct.pack("<ff", 1, 2), (2, 0)))
        assert find_npy(tmp_path / "a.npy").read().ravel().tolist() == [1, 2]


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
    """The call is refused soon and in little memory."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises((of.FileFormatError, of.InputError), match=words):
            use()
        assert time.perf_counter() - start < 10
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


def test_a_packed_member_that_ends_too_early(tmp_path):
    """Table of contents and array agree with each other, but not with what was packed."""
    path, body = tmp_path / "a.npz", bytes(range(200))
    text = GOOD.replace("(1, 2)", "(100, 1)")
    zipped(path, {"features.npy": npy(text, body)}, "deflated")
    content, size = path.read_bytes(), len(npy(text))
    assert content.count(struct.pack("<I", size + 200)) == 2
    path.write_bytes(content.replace(struct.pack("<I", size + 200), struct.pack("<I", size + 400)))
    for use in (of.FeatureSet.load, lambda path: list(of.open_features(path).batches(30))):
        refused(lambda use=use: use(path), "ends too early")


def test_a_changed_bit_in_a_packed_member_is_found(tmp_path):
    path = tmp_path / "a.npz"
    array = np.random.default_rng(0).normal(size=(100, 7)).astype(np.float32)
    np.savez_compressed(path, features=array)
    content = path.read_bytes()
    found = set()
    for place in range(150, 2000, 50):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        with pytest.raises(of.FileFormatError, match="truncated, or is not") as caught:
            list(of.open_features(path).batches(30))
        found.add("CRC" in str(caught.value))
    assert True in found


def test_what_deflate_cannot_do_is_not_tried(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, features=np.zeros((1000, 70), np.float32))
    with zipfile.ZipFile(path) as archive:
        (info,) = archive.infolist()
    assert info.file_size / info.compress_size < zipped_file.BEST_RATE
    monkeypatch.setattr(zipped_file, "BEST_RATE", Fraction(info.file_size, info.compress_size))
    of.FeatureSet.load(path)
    monkeypatch.setattr(zipped_file, "BEST_RATE", Fraction(info.file_size - 1, info.compress_size))
    refused(lambda: of.FeatureSet.load(path), "does not lie in it whole")


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


def test_a_member_that_begins_where_the_table_of_contents_does(tmp_path):
    path = tmp_path / "a.npz"
    zipped(path, {"features.npy": npy(GOOD, b"12345678")})
    content = bytearray(path.read_bytes())
    table = content.index(b"PK\x01\x02")
    content[table + 42 : table + 46] = struct.pack("<I", table)
    path.write_bytes(content)
    refused(lambda: of.FeatureSet.load(path), "does not lie in it whole")


def test_a_long_table_of_contents_is_not_read(tmp_path):
    entry = io.BytesIO()
    with zipfile.ZipFile(entry, "w") as archive:
        archive.writestr("a" * 18, b"")
    content = entry.getvalue()
    first, end = content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")
    assert end - first == 64  # bytes of an entry
    for count, words in (
        (2**20 // 64, "a name stands twice"),
        (2**20 // 64 + 1, "contents is said to have 1,048,640 bytes"),
    ):
        table = content[first:end] * count
        tail = content[end : end + 12] + struct.pack("<II", len(table), first) + b"\0\0"
        (tmp_path / "a.npz").write_bytes(content[:first] + table + tail)
        refused(lambda words=words: of.FeatureSet.load(tmp_path / "a.npz"), words, 200)


def test_texts_that_are_none(tmp_path):
    head = "{'descr': '%s', 'fortran_order': False, 'shape': (2,), }"
    images = io.BytesIO()
    np.save(images, np.zeros((2, 4, 4, 3), np.uint8))
    for order, endian in (("<", "little"), (">", "big")):
        for letter, good in ((0x10FFFF, True), (0x110000, False), (2**32 - 1, False)):
            broken = npy(head % f"{order}U1", b"".join(code.to_bytes(4, endian) for code in (65, letter)))
            zipped(tmp_path / "a.npz", {"images.npy": images.getvalue(), "classes.npy": broken})
            if good:
                assert of.open_images(tmp_path / "a.npz").classes == ("A", chr(letter))
            else:
                refused(lambda: of.open_images(tmp_path / "a.npz"), "letters that no text has")
    zipped(tmp_path / "a.npz", {"images.npy": images.getvalue(), "classes.npy": npy(head % "<U0")})
    refused(lambda: of.open_images(tmp_path / "a.npz"), "it holds <U0")
    for name in ("outfield_header", "outfield_sha256"):
        for content in (
            broken,
            npy(GOOD, b"12345678"),
            b"",
            npy("{'descr': '<U1', 'fortran_order': False, 'shape': (), }", b"\xff" * 4),
        ):
            zipped(tmp_path / "b.npz", {"features.npy": npy(GOOD, b"12345678"), f"{name}.npy": content})
            refused(lambda: of.FeatureSet.load(tmp_path / "b.npz"))


@pytest.mark.parametrize("how", ["in a list", "with bytes behind it", "cut short"])
def test_a_text_of_ours_is_one_text_and_nothing_else(tmp_path, how):
    write_archive(tmp_path / "a.npz", "FeatureSet", {}, {"features": torch.ones(2, 2)})
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    text = np.load(io.BytesIO(contents["outfield_header.npy"]))
    saved = io.BytesIO()
    np.save(saved, text[None] if how == "in a list" else np.array(f"{text} ") if how == "cut short" else text)
    whole = saved.getvalue()
    contents["outfield_header.npy"] = {"in a list": whole, "with bytes behind it": whole + b" \0\0\0"}.get(
        how, whole[:-4]
    )
    zipped(tmp_path / "a.npz", contents)
    refused(lambda: of.FeatureSet.load(tmp_path / "a.npz"), "outfield_header.npy is not a text")
