"""Writers that are killed, hindered or many: the old file or the new one, whole, and nothing left behind."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import outfield as of
from outfield.files import write_atomically, write_bytes, write_new


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


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path):
    path = tmp_path / "file"
    write_bytes(path, b"\0" * 3_000_000)
    seed = random.Random(0)
    for _ in range(20):
        child = start_writer(path)
        time.sleep(seed.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert whole(path)
    assert len(names(tmp_path)) > 1  # else nothing was tested


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


def test_what_a_killed_writer_left_is_removed_after_a_day(tmp_path):
    old, young, folder, link = (f".outfield-{'0123456789ab' * 2}{number:04x}.tmp" for number in range(4))
    earlier, others = (
        ".outfield-0123456789ab-0123456789abcdef.tmp",
        [".tmp", "x.tmp", ".outfield.tmp", f"{old}x", old[1:]],
    )
    for name in (old, young, earlier, *others):
        (tmp_path / name).write_bytes(b"something")
    (tmp_path / folder).mkdir()
    (tmp_path / link).symlink_to("x.tmp")
    for name in (old, earlier, folder, *others):
        os.utime(tmp_path / name, (time.time() - 90_000,) * 2)
    write_bytes(tmp_path / "file", b"new")
    assert names(tmp_path) == sorted([young, *others, folder, link, "file"])


def test_two_writers_at_once(tmp_path):
    """The second finds the first's file, which is alive, and leaves it alone."""

    def outer(file):
        file.write(b"outer")
        write_bytes(tmp_path / "other", b"inner")
        write_bytes(tmp_path / "file", b"inner")

    write_atomically(tmp_path / "file", outer)
    assert names(tmp_path) == ["file", "other"]
    assert (tmp_path / "file").read_bytes() == b"outer"


def test_what_is_put_in_place_is_on_the_disk(tmp_path, monkeypatch):
    synced = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda f: (synced.append((os.fstat(f).st_ino, os.fstat(f).st_size)), fsync(f)))

    def move(source, target):
        assert synced[-1] == (os.stat(source).st_ino, 6)
        replace(source, target)

    monkeypatch.setattr(os, "replace", move)
    write_bytes(tmp_path / "file", b"bytes!")
    assert (tmp_path / "file").read_bytes() == b"bytes!"


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
    with pytest.raises(of.StorageError, match=r"cannot write .*none/file: No such file or directory"):
        write_new(tmp_path / "none" / "file", b"")


def test_a_new_file_on_a_system_without_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError("no links here")))
    assert write_new(tmp_path / "file", b"old")
    assert not write_new(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]
