"""Writers that are killed, hindered or many: the old file or the new one, whole, and nothing left behind."""

from __future__ import annotations

import fcntl
import os
import platform
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import outfield as of
from outfield.files import atomic, scratch


def start_writer(path):
    """A process that writes the file again and again, until it is killed."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(told, b"!")
            for number in range(1, 10**9):
                atomic.write_atomically(path, lambda file, number=number: in_pieces(file, number % 251))
        finally:
            os._exit(1)
    os.close(told)
    assert os.read(ready, 1) == b"!"
    os.close(ready)
    return child


def in_pieces(file, number):
    for _ in range(300):
        file.write(bytes([number]) * 10_000)


def whole(path):
    content = path.read_bytes()
    return len(content) == 3_000_000 and content == content[:1] * len(content)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("way", ["nameless", "named"])
def test_a_killed_writer_leaves_a_whole_file_and_nothing_else(tmp_path, way, monkeypatch):
    if way == "named":
        monkeypatch.delattr(os, "O_TMPFILE")
    path = tmp_path / "file"
    atomic.write_bytes(path, b"\0" * 3_000_000)
    seed = random.Random(0)
    left = 0
    for _ in range(20):
        child = start_writer(path)
        time.sleep(seed.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert whole(path)
        left += len(names(tmp_path)) > 1
        assert len(names(tmp_path)) <= 2  # the next writer cleaned up after the one before
    assert left or way == "nameless"  # else nothing was tested
    atomic.write_bytes(path, b"new")
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == b"new"


@pytest.fixture(params=["nameless", "named", "unlinkable"])
def way(request, monkeypatch):
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE")
    if request.param == "unlinkable":

        def refuse(*_, **__):
            raise OSError("no such thing here")

        monkeypatch.setattr(os, "link", refuse)
    return request.param


def test_what_is_written_arrives(tmp_path, way, monkeypatch):
    if way != "unlinkable":
        monkeypatch.delattr(scratch.Scratch, "_copy")
    for content in (b"", b"one", b"two" * 1_000_000):
        atomic.write_bytes(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
        assert names(tmp_path) == ["file"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, way):
    atomic.write_bytes(tmp_path / "file", b"old")

    def full(file):
        file.write(b"new" * 100_000)
        raise OSError(28, "No space left on device")

    def interrupted(file):
        file.write(b"new" * 100_000)
        raise KeyboardInterrupt

    with pytest.raises(of.StorageError, match=r"cannot write .*No space left on device; nothing was changed"):
        atomic.write_atomically(tmp_path / "file", full)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_atomically(tmp_path / "file", interrupted)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_full_device(tmp_path, monkeypatch):
    """Buffered bytes that cannot be written are an error as well, not a short file."""
    atomic.write_bytes(tmp_path / "file", b"old")
    real = os.open

    def full(path, flags, *rest, **named):
        return real("/dev/full", os.O_RDWR) if flags & os.O_RDWR else real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(of.StorageError, match="No space left"):
        atomic.write_bytes(tmp_path / "file", b"new")
    monkeypatch.undo()
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_files_of_living_writers_and_of_others_stay(tmp_path):
    here, elsewhere = scratch._new_name(), ".outfield-0123456789ab-0123456789abcdef.tmp"
    with open(tmp_path / here, "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (tmp_path / elsewhere).write_bytes(b"of another machine")
        others = [".tmp", "x.tmp", ".outfield.tmp", ".outfield-x-y.tmp", f"{here}x", here[1:], ".0123456789abcdef.tmp"]
        for name in others:
            (tmp_path / name).write_bytes(b"of somebody")
        folder, link = scratch._new_name(), scratch._new_name()
        (tmp_path / folder).mkdir()
        (tmp_path / link).symlink_to("x.tmp")
        pipe = scratch._new_name()
        os.mkfifo(tmp_path / pipe)
        atomic.write_bytes(tmp_path / "file", b"new")
        assert names(tmp_path) == sorted([here, elsewhere, *others, folder, link, pipe, "file"])
    atomic.write_bytes(tmp_path / "file", b"new")  # the writer is gone
    assert here not in names(tmp_path)
    assert elsewhere in names(tmp_path)
    os.utime(tmp_path / elsewhere, (time.time() - 90_000,) * 2)  # for more than a day
    atomic.write_bytes(tmp_path / "file", b"new")
    assert elsewhere not in names(tmp_path)
    assert set(others) < set(names(tmp_path))


def test_two_writers_at_once(tmp_path, way):
    """The second finds the first's file, which is alive, and leaves it alone."""

    def outer(file):
        file.write(b"outer")
        atomic.write_bytes(tmp_path / "other", b"inner")
        atomic.write_bytes(tmp_path / "file", b"inner")

    atomic.write_atomically(tmp_path / "file", outer)
    assert names(tmp_path) == ["file", "other"]
    assert (tmp_path / "file").read_bytes() == b"outer"


def test_what_is_put_in_place_is_on_the_disk(tmp_path, monkeypatch, way):
    synced = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append((os.fstat(file).st_ino, os.fstat(file).st_size)), fsync(file))
    )

    def move(source, target):
        assert synced[-1] == (os.stat(source).st_ino, 6)
        replace(source, target)

    monkeypatch.setattr(os, "replace", move)
    atomic.write_bytes(tmp_path / "file", b"bytes!")
    assert (tmp_path / "file").read_bytes() == b"bytes!"


def test_a_machine_is_known_by_more_than_its_name(monkeypatch):
    scratch._machine.cache_clear()
    here = scratch._machine()
    scratch._machine.cache_clear()
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert scratch._machine() == here  # its start has a number
    scratch._machine.cache_clear()
    monkeypatch.setattr(scratch.Path, "read_text", lambda path: (_ for _ in ()).throw(FileNotFoundError))
    assert scratch._machine() not in (here, "another")
    assert scratch.NAME.fullmatch(scratch._new_name())[1] == scratch._machine()
    scratch._machine.cache_clear()


def test_files_are_closed(tmp_path, way):
    held = []
    atomic.write_atomically(tmp_path / "file", held.append)
    assert held[0].closed


def test_arrays_for_numpy(tmp_path):
    atomic.write_npz(tmp_path / "a.npz", {"a": np.arange(3), "b": np.ones((2, 2))})
    with np.load(tmp_path / "a.npz") as found:
        assert found["a"].tolist() == [0, 1, 2]
        assert found["b"].tolist() == [[1, 1], [1, 1]]


def test_permissions_are_those_of_any_new_file(tmp_path, way):
    mask = os.umask(0o027)
    try:
        atomic.write_bytes(tmp_path / "file", b"new")
    finally:
        os.umask(mask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("way", ["nameless", "named"])
def test_of_several_that_write_a_new_file_one_succeeds(tmp_path, way, monkeypatch):
    """The old file stays, byte for byte, and nothing else is left."""
    if way == "named":
        monkeypatch.delattr(os, "O_TMPFILE")
    path = tmp_path / "file"
    with ThreadPoolExecutor(8) as pool:
        done = [*pool.map(lambda number: atomic.write_new(path, bytes([number]) * 100_000), range(8))]
    assert sum(done) == 1
    assert path.read_bytes() == bytes([done.index(True)]) * 100_000
    assert not atomic.write_new(path, b"new")
    assert path.read_bytes() == bytes([done.index(True)]) * 100_000
    assert names(tmp_path) == ["file"]


def test_a_new_file_that_cannot_be_written(tmp_path):
    with pytest.raises(
        of.StorageError, match=r"cannot write .*none/file: No such file or directory; nothing was changed"
    ):
        atomic.write_new(tmp_path / "none" / "file", b"")


def test_a_new_file_on_a_system_without_links(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE")
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError("no links here")))
    assert atomic.write_new(tmp_path / "file", b"old")
    assert not atomic.write_new(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]
