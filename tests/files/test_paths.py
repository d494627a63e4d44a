"""One door for paths: whatever is given for one, an error of ours that names it, and no waiting."""

import contextlib
import os
from pathlib import Path

import pytest
import torch
from tests.helpers.samples import make_set, quick

import outfield as of
from outfield.benchmark import load_run
from outfield.files import (
    Record,
    check_output,
    check_readable,
    find_npy,
    find_record,
    make_folder,
    read_npz,
    read_record,
    read_tensors,
    write_bytes,
    write_record,
)
from outfield.report import read_run


class Named:
    """A path-like object of anything."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


NO_PATHS = [
    *(None, b"x.safetensors", 3, 1.5, [], object, Path, "", "\0", "a\0b.safetensors", "\ud800.safetensors"),
    *(Named(b"x.safetensors"), Named(3), Named(""), Named("\0")),
]
READ = {
    "check_readable": check_readable,
    "read_record": lambda path: read_record(path, "detector"),
    "find_record": lambda path: find_record(path, "detector"),
    "read_tensors": read_tensors,
    "load": of.load,
    "Threshold.load": of.Threshold.load,
    "load_classifier": of.load_classifier,
    "FeatureSet.load": of.FeatureSet.load,
    "open_features": of.open_features,
}
WRITE = {
    "write_bytes": lambda path: write_bytes(path, b"new"),
    "check_output": lambda path: check_output(path, [".safetensors"]),
    "write_record": lambda path: write_record(path, "kind", Record({}, {})),
    "Threshold.save": lambda path: of.Threshold.fit(torch.arange(100.0)).save(path),
    "Detector.save": lambda path: quick("MSP").fit(make_set()).save(path),
    "FeatureSet.save": lambda path: make_set(n=5).save(path),
    "save_classifier": lambda path: of.save_classifier(path, of.Classifier("test_resnet", 3), {}),
}
DOORS = {
    "make_folder": make_folder, "TrainingCheckpoint": of.TrainingCheckpoint, "open_images": of.open_images,
    "load_run": load_run, "read_run": read_run, "find_npy": find_npy, "read_npz": read_npz,
}  # fmt: skip


def by_name(functions):
    return pytest.mark.parametrize("use", functions.values(), ids=functions.keys())


@by_name(READ | WRITE | DOORS)
def test_what_is_no_path(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in NO_PATHS:
        with pytest.raises(of.InputError, match=r"(path|source) is"):
            use(value)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def places(tmp_path):
    """Paths at which there is no file to be read, and none can be written."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder.safetensors").mkdir()
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    (tmp_path / "device.safetensors").symlink_to("/dev/zero")
    return {
        "missing": tmp_path / "none" / "x.safetensors",
        "in a file": tmp_path / "file" / "x.safetensors",
        "folder": tmp_path / "folder.safetensors",
        "pipe": tmp_path / "pipe.safetensors",
        "device": tmp_path / "device.safetensors",
        "loop": tmp_path / "loop.safetensors",
        "in a loop": tmp_path / "loop.safetensors" / "x.safetensors",
        "long": tmp_path / ("n" * 300 + ".safetensors"),
        "very long": tmp_path / ("/".join(["n" * 200] * 50) + ".safetensors"),
    }


@by_name(READ)
def test_what_cannot_be_read(use, places):
    for place in places.values():
        for path in (place, str(place), Named(str(place))):
            with pytest.raises(of.StorageError, match=r"cannot read .*safetensors: "):
                use(path)


def test_no_descriptor_is_left_open(places, tmp_path):
    write_bytes(tmp_path / "x.safetensors", b"no tensors")
    before = len(os.listdir("/proc/self/fd"))
    for use in (READ | WRITE).values():
        for path in (*places.values(), tmp_path / "x.safetensors"):
            with contextlib.suppress(of.OutfieldError):
                use(path)
    assert len(os.listdir("/proc/self/fd")) == before


@by_name(WRITE)
def test_what_cannot_be_written(use, places, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for place in places.values():
        for path in (place, str(place), Named(str(place))):
            with pytest.raises(of.StorageError, match=r"cannot write .*safetensors: "):
                use(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_home_that_is_not_expanded_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for use in (lambda: of.load("~/d.safetensors"), lambda: check_output("~/d.safetensors")):
        with pytest.raises(of.StorageError, match="~ is not expanded"):
            use()


@pytest.mark.parametrize("name", ["x.npz", "x", "x.safetensors.gz", ".safetensors", "x.pt"])
@by_name({name: use for name, use in WRITE.items() if name != "write_bytes"})
def test_a_name_that_ends_wrongly_is_refused(use, name, tmp_path):
    if use is WRITE["FeatureSet.save"] and name == "x.npz":
        return
    with pytest.raises(of.InputError, match=r"must end in \.safetensors|saved as \.safetensors or \.npz"):
        use(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_files_of_ours_with_other_names_are_read(tmp_path):
    quick("MSP").fit(make_set()).save(tmp_path / "d.safetensors")
    (tmp_path / "d.safetensors").rename(tmp_path / "d.npz")
    assert isinstance(of.load(tmp_path / "d.npz"), of.MSP)
