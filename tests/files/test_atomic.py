"""Writers that are killed, hindered or many: the old file or the new one, whole, and nothing left behind."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import outfield as of
from outfield.files import SCRATCH_NAME, new_file, write_atomically, write_bytes, write_new


def start_writer(path):
    """A process that writes the file again and again, until it is killed."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(told, b"!")
            for number in range(1, 10**9):
                write_atomically(path, lambda file, number=number: in_pieces(file, number % 251))
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


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    path = tmp_path / "file"
    write_bytes(path, b"\0" * 3_000_000)
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
    assert left  # else nothing was tested
    write_bytes(path, b"new")
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == b"new"


def test_what_is_written_arrives(tmp_path):
    for content in (b"", b"one", b"two" * 1_000_000):
        write_bytes(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
        assert names(tmp_path) == ["file"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    write_bytes(tmp_path / "file", b"old")

    def full(file):
        file.write(b"new" * 100_000)
        raise OSError(28, "No space left on device")

    def interrupted(file):
        file.write(b"new" * 100_000)
        raise KeyboardInterrupt

    with pytest.raises(of.StorageError, match=r"cannot write .*No space left on device; nothing was changed"):
        write_atomically(tmp_path / "file", full)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", interrupted)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_files_of_living_writers_and_of_others_stay(tmp_path):
    with new_file(tmp_path) as new:
        machine = SCRATCH_NAME.fullmatch(new.name.name)[1]
    here, folder, link, pipe = (f".outfield-{machine}-{number:016x}.tmp" for number in range(4))
    elsewhere = ".outfield-0123456789ab-0123456789abcdef.tmp"
    with open(tmp_path / here, "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (tmp_path / elsewhere).write_bytes(b"of another machine")
        others = [".tmp", "x.tmp", ".outfield.tmp", ".outfield-x-y.tmp", f"{here}x", here[1:], ".0123456789abcdef.tmp"]
        for name in others:
            (tmp_path / name).write_bytes(b"of somebody")
        (tmp_path / folder).mkdir()
        (tmp_path / link).symlink_to("x.tmp")
        os.mkfifo(tmp_path / pipe)
        write_bytes(tmp_path / "file", b"new")
        assert names(tmp_path) == sorted([here, elsewhere, *others, folder, link, pipe, "file"])
    write_bytes(tmp_path / "file", b"new")  # the writer is gone
    assert here not in names(tmp_path)
    assert elsewhere in names(tmp_path)
    os.utime(tmp_path / elsewhere, (time.time() - 90_000,) * 2)  # for more than a day
    write_bytes(tmp_path / "file", b"new")
    assert elsewhere not in names(tmp_path)
    assert set(others) < set(names(tmp_path))


def test_two_writers_at_once(tmp_path):
    """The second finds the first's file, which is alive, and leaves it alone."""

    def outer(file):
        file.write(b"outer")
        write_bytes(tmp_path / "other", b"inner")
        write_bytes(tmp_path / "file", b"inner")

    write_atomically(tmp_path / "file", outer)
    assert names(tmp_path) == ["file", "other"]
    assert (tmp_path / "file").read_bytes() == b"outer"


def test_a_new_file_that_is_taken_for_abandoned_before_it_is_locked(tmp_path, monkeypatch):
    """Another writer holds it in order to remove it; then it is no use waiting, and a file of another name is made."""
    flock, others = fcntl.flock, []

    def late(descriptor, how):
        if not others:
            (name,) = names(tmp_path)
            others.append(open(tmp_path / name, "r+b"))  # noqa: SIM115
            flock(others[0], how)
        try:
            flock(descriptor, how)
        finally:
            (tmp_path / os.path.basename(others[0].name)).unlink(missing_ok=True)

    monkeypatch.setattr(fcntl, "flock", late)
    assert write_new(tmp_path / "file", b"new")
    others[0].close()
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_what_is_put_in_place_is_on_the_disk(tmp_path, monkeypatch):
    synced = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append((os.fstat(file).st_ino, os.fstat(file).st_size)), fsync(file))
    )

    def move(source, target):
        assert synced[-1] == (os.stat(source).st_ino, 6)
        replace(source, target)

    monkeypatch.setattr(os, "replace", move)
    write_bytes(tmp_path / "file", b"bytes!")
    assert (tmp_path / "file").read_bytes() == b"bytes!"


def test_files_are_closed(tmp_path):
    held = []
    write_atomically(tmp_path / "file", held.append)
    assert held[0].closed


def test_permissions_are_those_of_any_new_file(tmp_path):
    mask = os.umask(0o027)
    try:
        write_bytes(tmp_path / "file", b"new")
    finally:
        os.umask(mask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_of_several_that_write_a_new_file_one_succeeds(tmp_path):
    """The old file stays, byte for byte, and nothing else is left."""
    path = tmp_path / "file"
    with ThreadPoolExecutor(8) as pool:
        done = [*pool.map(lambda number: write_new(path, bytes([number]) * 100_000), range(8))]
    assert sum(done) == 1
    assert path.read_bytes() == bytes([done.index(True)]) * 100_000
    assert not write_new(path, b"new")
    assert path.read_bytes() == bytes([done.index(True)]) * 100_000
    assert names(tmp_path) == ["file"]


def test_a_new_file_that_cannot_be_written(tmp_path):
    with pytest.raises(
        of.StorageError, match=r"cannot write .*none/file: No such file or directory; nothing was changed"
    ):
        write_new(tmp_path / "none" / "file", b"")


def test_a_new_file_on_a_system_without_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError("no links here")))
    assert write_new(tmp_path / "file", b"old")
    assert not write_new(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]
