"""Files that are truncated, changed, foreign or cannot be written: a clear error, and nothing half-written."""

import json
import os
import pickle
import resource
import signal
import struct
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.benchmark import BenchmarkRun, Protocol, load_run, save_run
from outfield.files import Record, read_record, write_record


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "detector.safetensors"
    quick("SSD").fit(make_set()).save(path)
    return path


def readers(path):
    return [lambda: of.load(path), lambda: of.Threshold.load(path), lambda: of.FeatureSet.load(path)]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(share=st.floats(0, 0.999))
def test_a_truncated_file_is_found(saved, share):
    content = saved.read_bytes()
    other = saved.with_name("short.safetensors")
    other.write_bytes(content[: int(share * len(content))])
    for read in readers(other):
        with pytest.raises(of.FileFormatError, match="truncated"):
            read()


def test_nothing_is_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    objects = tmp_path / "objects.npz"
    np.savez(objects, features=np.array([Bomb()], dtype=object))
    pickled = tmp_path / "pickled.safetensors"
    pickled.write_bytes(pickle.dumps(Bomb()))
    torch_file = tmp_path / "torch.safetensors"
    torch.save({"features": torch.ones(2, 2)}, torch_file)
    single = tmp_path / "single.npz"
    with open(single, "wb") as file:
        np.save(file, np.ones((2, 2)))
    for path in (objects, pickled, torch_file, single):
        with pytest.raises(of.FileFormatError):
            of.FeatureSet.load(path)
    with pytest.raises(of.FileFormatError):
        of.load(pickled)
    assert not (tmp_path / "exploded").exists()


def test_foreign_files(tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.ones(3)}, foreign)
    with pytest.raises(of.FileFormatError, match="not a file that Outfield wrote"):
        of.load(foreign)
    with pytest.raises(of.FileFormatError, match="weight"):
        of.FeatureSet.load(foreign)
    with pytest.raises(of.FileFormatError):
        of.Threshold.load(foreign)
    archive = tmp_path / "foreign.npz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("hello.txt", "hello")
    with pytest.raises(of.FileFormatError):
        of.FeatureSet.load(archive)
    plain = tmp_path / "plain.safetensors"
    save_file({"features": torch.ones(3, 2), "labels": torch.arange(3)}, plain)
    assert len(of.FeatureSet.load(plain)) == 3


def test_the_wrong_kind_of_our_own_files(saved, tmp_path):
    of.Threshold.fit(np.arange(100)).save(tmp_path / "t.safetensors")
    with pytest.raises(of.FileFormatError, match="holds a Threshold, not a detector"):
        of.load(tmp_path / "t.safetensors")
    with pytest.raises(of.FileFormatError, match="holds a detector, not a Threshold"):
        of.Threshold.load(saved)
    with pytest.raises(of.FileFormatError, match="holds a detector, not a FeatureSet"):
        of.FeatureSet.load(saved)


def rewritten(path, change):
    """The file with its header changed and the length field put right, as a careful forger would."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    ours = json.loads(header["__metadata__"]["outfield"])
    change(ours)
    header["__metadata__"]["outfield"] = json.dumps(ours)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


@pytest.mark.parametrize(("change", "words"), [
    (lambda h: h["settings"].update(floor=0.5), "checksum"),
    (lambda h: h.update(width=99), "checksum"),
    (lambda h: h.update(format=3), "format 3"),
    (lambda h: h.update(format=True), "header"),
    (lambda h: h.update(format=1), "format 1"),
    (lambda h: h["digests"].popitem(), "checksum"),
    (lambda h: h.pop("sha256"), "header"),
    (lambda h: h.clear(), "header"),
])  # fmt: skip
def test_a_forged_header_is_found(saved, change, words):
    rewritten(saved, change)
    with pytest.raises(of.FileFormatError, match=words):
        of.load(saved)


@pytest.mark.parametrize(("change", "words"), [
    (lambda h: h.update(detector="Nonsense"), "no detector 'Nonsense'"),
    (lambda h: h["settings"].update(colour="red"), "no setting colour"),
    (lambda h: h.pop("settings"), "settings"),
])  # fmt: skip
def test_a_consistent_file_that_makes_no_sense_is_found(saved, change, words):
    header, tensors = read_record(saved, "detector")
    change(header)
    write_record(saved, "detector", Record(header, tensors))
    with pytest.raises(of.FileFormatError, match=words):
        of.load(saved)


def test_what_a_file_must_hold(tmp_path):
    path = tmp_path / "f.safetensors"
    entries, good = {"number": float, "name": (str, type(None))}, {"number": 3, "name": None}
    write_record(path, "kind", Record(good, {}))
    assert read_record(path, "kind", entries)[0] == good
    for header, words in (
        ({"name": "x"}, "not a complete kind: number is missing"),
        (good | {"number": True}, "number is True, not float"),
        (good | {"name": ["x"]}, r"name is \['x'\], not str or NoneType"),
    ):
        write_record(path, "kind", Record(header, {}))
        with pytest.raises(of.FileFormatError, match=words):
            read_record(path, "kind", entries)


@pytest.mark.parametrize("name", ["protocol", "records", "scores", "histories", "views", "accuracies", "provenance"])
def test_runs_with_a_right_checksum_and_a_wrong_content(tmp_path, name):
    path = tmp_path / "run.safetensors"
    save_run(BenchmarkRun(Protocol("id", ("near",), (), ("far",))), path)
    header, tensors = read_record(path, "benchmark run")
    for value in (None, 3, "text", [3], [[3, 4, 5]], [{"x": 1}], {"x": 1}, [[{}, {}]]):
        if (name, type(value)) in (("accuracies", dict), ("provenance", dict)):
            continue
        write_record(path, "benchmark run", Record(header | {name: value}, tensors))
        with pytest.raises(of.FileFormatError, match="run"):
            load_run(path)


def test_devices_and_links_survive(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(of.StorageError, match="not an ordinary file"):
        make_set().save(tmp_path / "pipe.npz")
    make_set().save(tmp_path / "real.npz")
    (tmp_path / "link.npz").symlink_to("real.npz")
    make_set(n=33).save(tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    assert len(of.FeatureSet.load(tmp_path / "real.npz")) == 33


@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_a_full_disk_leaves_the_old_file_and_no_scraps(tmp_path, ending):
    """The kernel refuses to let the file grow, as it does when a disk is full."""
    path = tmp_path / f"set{ending}"
    small, large = make_set(n=20), make_set(n=20_000)
    small.save(path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(of.StorageError, match="cannot write"):
            large.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


BANK = torch.arange(2**14, dtype=torch.float32)


@pytest.mark.parametrize(("other", "again"), [
    (BANK.clone(), True),
    (BANK[:-1], False),
    (BANK.view(torch.int32), False),
    (BANK.reshape(2, -1), False),
    (torch.cat([BANK[:-1], BANK[:1]]), False),
], ids=["equal", "shorter", "another type", "another shape", "another number"])  # fmt: skip
def test_large_tensors_that_are_equal_are_written_once(tmp_path, other, again):
    sizes = []
    for once in (False, True):
        path = tmp_path / f"{once}.safetensors"
        write_record(path, "thing", Record({"x": 1}, {"a": BANK, "b": other}), once=once)
        header, found = read_record(path, "thing")
        assert header == {"x": 1}
        assert torch.equal(found["a"], BANK)
        assert torch.equal(found["b"], other)
        sizes.append(path.stat().st_size)
    assert (sizes[0] - sizes[1] > 0.9 * BANK.nbytes) == again
    assert (found["a"] is found["b"]) == again


def test_detectors_with_the_same_bank_share_it(tmp_path):
    train, held_out = make_set(3000, seed=1), make_set(100, seed=2)
    fused = of.Fused([of.KNN(k=1), of.KNN(k=5), of.KDE()]).fit(train, held_out=held_out)
    fused.save(tmp_path / "fused.safetensors")
    loaded = of.load(tmp_path / "fused.safetensors")
    one, five, kde = loaded.members_
    assert one.bank_ is five.bank_
    assert one.bank_.data_ptr() == kde.bank_.data_ptr()
    assert torch.equal(loaded.score(held_out), fused.score(held_out))
    assert loaded.fingerprint() == fused.fingerprint()
    assert (tmp_path / "fused.safetensors").stat().st_size < 1.2 * one.bank_.nbytes + 60_000


def test_a_file_whose_first_bytes_cannot_be_read_is_an_error_of_storage():
    with pytest.raises(of.StorageError, match="cannot read /proc/self/mem"):
        of.Threshold.load("/proc/self/mem")
