"""Arrays in files: what the libraries write is read, what is read is compared with what was written, changes are errors."""

import hashlib
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.files import (
    Record,
    Stamp,
    arrays,
    find_npy,
    find_npz,
    find_record,
    find_tensors,
    fingerprint,
    read_npz,
    read_record,
    read_tensors,
    write_record,
)

FIELDS = ("features", "labels", "logits")
SHAPES = [(), (0,), (7,), (3, 5), (2, 0, 4), (2, 3, 4, 5)]
NUMPY_DTYPES = ["<f2", "<f4", ">f4", "<f8", ">f8", "|i1", "<i2", ">i8", "|u1", "<u4", "|b1", "<c8", "<f16"]


def samples():
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, dtype in arrays.DTYPES.items():
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
    write_record(tmp_path / "f.safetensors", "kind", Record({}, tensors))
    found = safetensors.torch.load_file(tmp_path / "f.safetensors")
    assert found.keys() == tensors.keys()
    assert all(same(found[name], tensors[name]) for name in tensors)


def test_we_read_what_the_library_writes(tmp_path):
    tensors = samples()
    safetensors.torch.save_file(tensors, tmp_path / "f.safetensors", {"by": "the library"})
    metadata, found = read_tensors(tmp_path / "f.safetensors")
    assert metadata == {"by": "the library"}
    assert found.keys() == tensors.keys()
    assert all(same(found[name], tensors[name]) for name in tensors)


def test_tensors_that_share_memory_are_written_each(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    write_record(
        tmp_path / "f.safetensors", "kind", Record({}, {"all": base, "again": base, "turned": base.T, "row": base[1]})
    )
    _, found = read_record(tmp_path / "f.safetensors", "kind")
    assert torch.equal(found["again"], base)
    assert torch.equal(found["turned"], base.T)
    assert torch.equal(found["row"], base[1])


def test_everything_is_aligned(tmp_path):
    """Others may map these files, and want numbers at multiples of their size."""
    for extra in range(8):  # whatever the length of the header is
        tensors = {"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(5), "c": torch.ones(1, dtype=torch.float64)}
        write_record(tmp_path / "f.safetensors", "kind", Record({"note": "x" * extra}, tensors))
        found = find_tensors(tmp_path / "f.safetensors").arrays
        assert all(array.offset % array.dtype.itemsize == 0 for array in found.values())


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(of.InputError, match=r"\.safetensors cannot hold t, which is complex128"):
        write_record(tmp_path / "f.safetensors", "kind", Record({}, {"t": torch.ones(2, dtype=torch.complex128)}))


MEMORY = """
import resource, sys, torch
from outfield.files import Record, read_record, read_tensors, write_record
path = sys.argv[1]
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
write_record(path, "kind", Record({}, {"small": torch.ones(3)}))
read_record(path, "kind")
tensors = {name: torch.ones(10_000_000) for name in "abc"}
before = peak()
write_record(path, "kind", Record({}, tensors))
written = peak()
del tensors
_, tensors = read_record(path, "kind")
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
    _, plain = read_tensors(path)
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


def test_a_file_that_changes_while_it_is_read_is_an_error_and_one_that_is_replaced_is_whole(tmp_path, monkeypatch):
    path, other = tmp_path / "f.safetensors", tmp_path / "other.safetensors"
    old, new = ({name: torch.full((1000,), value) for name in "ab"} for value in (1.0, 2.0))
    real = Stamp.check

    def reading(meanwhile):
        safetensors.torch.save_file(old, path)
        os.utime(path, ns=(0, 0))
        safetensors.torch.save_file(new, other)
        monkeypatch.setattr(Stamp, "check", lambda stamp, file=None: (meanwhile(), real(stamp, file))[1])
        return read_tensors(path)[1]

    found = reading(lambda: other.exists() and os.replace(other, path))
    assert torch.equal(torch.cat([found["a"], found["b"]]), torch.ones(2000))
    with pytest.raises(of.FileFormatError, match="changed while it was being read"):
        reading(lambda: path.write_bytes(other.read_bytes()))


def file_with(path, header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def entry(start=0, end=8, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(("header", "body"), [
    (b"", b""),
    (b"[" * 1_000_000, b""),
    ({"a": entry(shape=(-2, -1))}, b"12345678"),
    ({"a": entry(shape=(3,))}, b"12345678"),
    ({"a": entry(0, 4 * 10**15, (10**15,))}, b"12345678"),
    ({"a": entry(0, 0, (0, 2**63))}, b""),
    ({"a": entry(0, 0, (0, 2**62, 2))}, b""),
    ({"a": entry(dtype="F99")}, b"12345678"),
    ({"a": entry(0, 2, dtype="F8_E8M0")}, b"12"),
    ({"a": entry(), "b": entry(4, 12)}, b"123456789012"),
    ({"a": entry()}, b"123456789"),
])  # fmt: skip
def test_headers_that_do_not_fit_the_file_are_refused(tmp_path, header, body):
    path = file_with(tmp_path / "f.safetensors", header, body)
    for read in (find_tensors, read_tensors, of.load, of.FeatureSet.load, of.open_features):
        with pytest.raises(of.FileFormatError):
            read(path)


def sample(dtype, shape, order="C"):
    numbers = np.random.default_rng(0).integers(0, 100, shape)
    return np.asarray(numbers).astype(dtype, order=order)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_npy_that_numpy_writes(tmp_path, version, order):
    for dtype in NUMPY_DTYPES:
        for shape in SHAPES:
            array = sample(dtype, shape, order)
            with open(tmp_path / "a.npy", "wb") as file:
                np.lib.format.write_array(file, array, version)
            assert equal(find_npy(tmp_path / "a.npy").read(), array)


def equal(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_any_npz_that_numpy_writes(tmp_path, write):
    written = {
        f"{dtype}{shape}{order}": sample(dtype, shape, order)
        for dtype in NUMPY_DTYPES
        for shape in SHAPES
        for order in "CF"
    }
    written |= {"text": np.array(["ä", "", "bee"]), "turned text": np.array(["ab", "c"]).astype(">U2")}
    written["no text"] = np.array([], "U1")
    write(tmp_path / "a.npz", **written)
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == written.keys()
    assert all(equal(found[name], array) for name, array in written.items())


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_rows_are_those_of_the_array(tmp_path, write, monkeypatch):
    monkeypatch.setattr(arrays, "AT_ONCE", 3000)
    array = sample("<f4", (1000, 7))
    write(tmp_path / "a.npz", a=array)
    found = find_npz(tmp_path / "a.npz").arrays["a"]
    for size in (1, 333, 1000):
        with found.rows() as rows:
            pieces = [rows.read(min(size, 1000 - start)) for start in range(0, 1000, size)]
        assert equal(np.concatenate(pieces), array)
    assert equal(found.read(), array)


def test_an_archive_of_ours(tmp_path):
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.arange(4)}
    write_record(tmp_path / "a.npz", "kind", Record({"entry": [1, "two"]}, tensors), endings=(".npz",))
    with np.load(tmp_path / "a.npz") as foreign:
        assert all(equal(foreign[name], tensor.numpy()) for name, tensor in tensors.items())
    header, found = find_record(tmp_path / "a.npz", "kind")
    assert header == {"entry": [1, "two"]}
    assert list(found) == ["b", "a"]
    with pytest.raises(of.FileFormatError, match="holds a kind, not a FeatureSet"):
        of.FeatureSet.load(tmp_path / "a.npz")


def test_a_changed_bit_in_a_foreign_archive_is_found_in_rows_too(tmp_path):
    array = sample("<f4", (1000, 7))
    np.savez(tmp_path / "a.npz", features=array)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(array.tobytes()) + 12345] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(of.FileFormatError, match="CRC-32"):
        list(of.open_features(tmp_path / "a.npz").batches(100))


def npy(text, body=b"", version=(1, 0), length=None):
    """An array of which the header is ``text``."""
    text = text.encode("latin1") if isinstance(text, str) else text
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes(version) + size + text + body


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }"
HEADERS = {
    "empty": b"",
    "version 9": npy(GOOD, b"12345678", (9, 0)),
    "code": npy("__import__('os').mkdir('exploded')"),
    "code inside": npy(GOOD.replace("(1, 2)", "(len([1]), 2)"), b"12345678"),
    "nested": npy("(" * 5000),
    "negative": npy(GOOD.replace("(1, 2)", "(-1, -2)"), b"12345678"),
    "huge": npy(GOOD.replace("(1, 2)", "(1000000000000000, 2)"), b"12345678"),
    "overflow": npy(GOOD.replace("(1, 2)", f"({2**59}, 4, 0)")),
    "objects": npy(GOOD.replace("<f4", "|O"), b"12345678"),
    "fewer": npy(GOOD, b"1234567"),
    "more": npy(GOOD, b"123456789"),
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS.keys())
@pytest.mark.parametrize("kind", ["npy", "stored", "deflated"])
def test_headers_that_are_none(tmp_path, content, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ("a.npy" if kind == "npy" else "a.npz")
    path.write_bytes(content) if kind == "npy" else zipped(path, {"features.npy": content}, kind)
    for use in (of.open_features, of.FeatureSet.load):
        with pytest.raises((of.FileFormatError, of.InputError)):
            use(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.safetensors", "a.csv", "a.parquet", "a.guard"])
def test_a_file_without_content_is_called_empty(tmp_path, name):
    (tmp_path / name).touch()
    both = (of.open_features, of.FeatureSet.load)
    for use in {"a.guard": (of.Guard.load,), "a.csv": both[1:]}.get(name, both):
        with pytest.raises(of.FileFormatError, match=rf"{name} is empty: the file has no content$"):
            use(tmp_path / name)


def zipped(path, contents, kind="stored"):
    how = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}[kind]
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


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


def test_an_archive_with_two_arrays_of_a_name(tmp_path):
    good = npy(GOOD, b"12345678")
    path = tmp_path / "a.npz"
    zipped(path, {"features.npy": good, "features": good})
    with pytest.raises(of.FileFormatError, match="holds two arrays 'features'"):
        of.FeatureSet.load(path)


def flipped(path, piece):
    """Flip a bit of the file within the bytes ``piece``, which it must hold once."""
    content = bytearray(path.read_bytes())
    assert content.count(piece) == 1
    content[content.index(piece) + len(piece) // 2] ^= 1
    path.write_bytes(content)


def bytes_of(data, name):
    return data.tensors()[name].numpy().tobytes()


@pytest.fixture
def data():
    return make_set(n=300)


@pytest.mark.parametrize("damaged", FIELDS)
@pytest.mark.parametrize("kind", ["set.safetensors", "set.npz", "packed.npz"])
def test_exactly_what_is_read_is_compared(tmp_path, data, kind, damaged):
    path = tmp_path / kind
    data.save(path)
    if kind != "set.safetensors":  # with a right CRC of the archive, as a careful forger would
        content = dict(np.load(path))
        content[damaged] = content[damaged].copy()
        content[damaged].flat[7] += 1
        (np.savez_compressed if kind == "packed.npz" else np.savez)(path, **content)
    else:
        flipped(path, bytes_of(data, damaged))
    stream = of.open_features(path)
    for read in FIELDS:
        if read == damaged:
            with pytest.raises(of.FileFormatError, match=f"changed after it was written.*its {read}"):
                list(stream.batches(20, [read]))
        else:
            assert torch.equal(torch.cat([piece[read] for piece in stream.batches(20, [read])]), data.tensors()[read])
    with pytest.raises(of.FileFormatError, match="changed after it was written"):
        of.FeatureSet.load(path)


def test_picked_rows_are_of_an_array_that_was_compared(tmp_path, data):
    path = tmp_path / "set.safetensors"
    data.save(path)
    flipped(path, bytes_of(data, "features"))
    stream = of.open_features(path)
    with pytest.raises(of.FileFormatError, match="its features"):
        stream.rows([0], ["features"])
    assert torch.equal(stream.rows([3, 1], ["labels"])["labels"], data.labels[[3, 1]])


def test_arrays_cannot_be_added_taken_away_or_exchanged(tmp_path, data):
    path = tmp_path / "set.safetensors"
    data.save(path)
    content = path.read_bytes()
    for old, new in ((b'"labels": {"dtype"', b'"slabel": {"dtype"'), (b'"dtype": "F32"', b'"dtype": "I32"')):
        assert old in content
        path.write_bytes(content.replace(old, new))
        with pytest.raises(of.FileFormatError, match="changed after it was written"):
            of.FeatureSet.load(path)


def test_a_header_that_lost_its_name_is_not_a_foreign_file(tmp_path, data):
    path = tmp_path / "set.safetensors"
    data.save(path)
    content = path.read_bytes()
    assert content.count(b'"outfield": ') == 1
    path.write_bytes(content.replace(b'"outfield": ', b'"outfielt": '))
    for use in (of.FeatureSet.load, of.open_features):
        with pytest.raises(of.FileFormatError, match="its header has another name"):
            use(path)


def test_a_header_is_as_it_will_be_read(tmp_path):
    header = {"numbers": {10: "ten", 9: "nine"}, "pair": (1, 2), "nothing": float("nan"), "text": "ä\udc80"}
    write_record(tmp_path / "f.safetensors", "kind", Record(header, {"t": torch.ones(3)}))
    found, _ = read_record(tmp_path / "f.safetensors", "kind")
    assert found["numbers"] == {"10": "ten", "9": "nine"}
    assert found["pair"] == [1, 2]
    assert found["text"] == header["text"]


def test_files_are_written_as_they_always_were(tmp_path):
    """Other versions read them: whoever changes these bytes changes the number of the format."""
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor([True, False])}
    write_record(tmp_path / "f.safetensors", "kind", Record({"entry": [1, 0.5, None, "ä"]}, tensors))
    write_record(
        tmp_path / "g.safetensors", "kind", Record({"entry": [1, 0.5, None, "ä"]}, dict(reversed(tensors.items())))
    )
    content = (tmp_path / "f.safetensors").read_bytes()
    assert content == (tmp_path / "g.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "c5b80cf8611b880b020895b133eb87aac82603e5d39c746aec042ef7bf086170"


def test_fingerprints_of_sets_and_detectors_stay(data):
    """They name kept results and the scores a threshold belongs to."""
    tensors = {"b": torch.arange(6).view(2, 3), "a": torch.tensor(1.5)}
    assert fingerprint(tensors) == "ed949e43dda2d73aafa2bd3822cfac14b5fe4c995184976c202524c595e9590a"


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
@pytest.mark.parametrize("ours", [True, False])
def test_an_array_is_proved_once(tmp_path, monkeypatch, ending, ours):
    path = tmp_path / f"f{ending}"
    if ours:
        of.FeatureSet(np.ones((1000, 8))).save(path)
    elif ending == ".npz":
        np.savez(path, features=np.ones((1000, 8)))
    else:
        pytest.skip("a safetensors file of somebody else's has no digest")
    stream, read = of.open_features(path), []
    monkeypatch.setattr(arrays, "fill", counting(arrays.fill, read))
    stream.rows([3])
    first = sum(read)
    stream.rows([5])
    assert first >= 64_000 + 64
    assert sum(read) - first == 64


def counting(fill, read):
    def counted(file, view, *others):
        read.append(len(view))
        return fill(file, view, *others)

    return counted


def test_a_single_number_out_of_a_longer_row():
    """Torch calls it contiguous whatever its stride is."""
    row = torch.arange(6.0)
    assert fingerprint({"a": row[1:2:3]}) == fingerprint({"a": torch.tensor([1.0])})
    assert fingerprint({"a": torch.arange(6.0).reshape(3, 2)[:1, 1]}) == fingerprint({"a": torch.tensor([1.0])})
    assert fingerprint({"a": torch.arange(6.0).reshape(3, 2)[:, 1]}) == fingerprint({"a": torch.tensor([1.0, 3, 5])})


@pytest.mark.parametrize("piece", [1, 7, 64, 2**26])
def test_a_fingerprint_does_not_depend_on_the_pieces_it_is_computed_in(monkeypatch, piece):
    tensors = {
        "rows": torch.arange(35, dtype=torch.float64).view(5, 7).T,
        "one": torch.tensor(3.5),
        "none": torch.empty(0, 4),
        "narrow": torch.empty(4, 0),
        "ints": torch.arange(9),
    }
    whole = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        whole.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode() + value.numpy().tobytes())
    monkeypatch.setattr(arrays, "PIECE", piece)
    assert fingerprint(tensors) == whole.hexdigest()


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_streams_go_to_other_processes(tmp_path, data, ending):
    data.save(tmp_path / f"f{ending}")
    stream = pickle.loads(pickle.dumps(of.open_features(tmp_path / f"f{ending}")))
    assert torch.equal(stream.in_memory().features, data.features)


def test_a_system_without_names_for_open_files(tmp_path, data, monkeypatch):
    data.save(tmp_path / "f.safetensors")
    monkeypatch.setattr(arrays.Path, "exists", lambda path: False)
    assert torch.equal(of.FeatureSet.load(tmp_path / "f.safetensors").features, data.features)
