"""New files that are not yet where they belong: without a name where the system can, and with a lock where it cannot.

A file without a name is gone when its writer is killed. One with a name says on which machine it was written and is
locked as long as its writer lives; the next write to the folder removes those that nobody holds.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows does not let a file go that somebody holds, which serves as the lock
    fcntl = None  # type: ignore[assignment]

NAME = re.compile(r"\.outfield-([0-9a-f]{12})-[0-9a-f]{16}\.tmp")
"""Names of new files: the machine, and a random number."""
A_DAY = 86_400.0
"""Seconds after which what another machine left is taken for abandoned, since not every shared folder shares its locks."""


class Scratch:
    """A new file in the folder where it will be; made by :func:`new_file`.

    Attributes:
        file: open for reading and writing in binary.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name: Path | None = None
        try:
            descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
            _lock(descriptor)
        except (AttributeError, OSError):  # not every system and file system can
            descriptor = self._named()
        self.file: BinaryIO = open(descriptor, "w+b")  # noqa: SIM115

    def _named(self) -> int:
        while True:
            name = self.folder / _new_name()
            descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o666)
            if not _lock(descriptor) or name.exists():
                self.name = name
                return descriptor
            os.close(descriptor)  # somebody took it for abandoned in the moment before it was locked

    def move_to(self, path: Path, to_disk: bool = True) -> None:
        """Put the file, written and flushed, in the place of ``path``.

        Args:
            path: Where it belongs.
            to_disk: Wait until the disk has it, so that it also survives a failure of the machine.
        """
        self._finish(to_disk)
        os.replace(str(self.name), path)

    def move_to_new(self, path: Path) -> None:
        """Put the file, written and flushed, at ``path`` where nothing is yet; where there are links, of several one succeeds.

        Raises:
            FileExistsError: something is there, which stays.
        """
        self._finish(to_disk=True)
        try:
            os.link(str(self.name), path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            os.replace(str(self.name), path)

    def _finish(self, to_disk: bool) -> None:
        """See to it that all is written, and that the file has a name."""
        self.file.flush()
        if to_disk:
            os.fsync(self.file.fileno())
        if self.name is None:
            try:
                self._link()
            except OSError:  # a system that makes files without a name, but gives them none
                self._copy()

    def _link(self) -> None:
        """Give the file a name."""
        name = self.folder / _new_name()
        opened = os.open("/proc/self/fd", os.O_RDONLY)
        try:
            os.link(str(self.file.fileno()), name, src_dir_fd=opened, follow_symlinks=True)
        finally:
            os.close(opened)
        self.name = name

    def _copy(self) -> None:
        """Go on with a copy that has a name."""
        with self.file as nameless:
            self.file = open(self._named(), "w+b")  # noqa: SIM115
            nameless.seek(0)
            shutil.copyfileobj(nameless, self.file)
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file, and remove it where it has a name of its own still."""
        with contextlib.suppress(OSError):  # what cannot be written now is not wanted any more
            self.file.close()
        if self.name is not None:
            with contextlib.suppress(OSError):
                self.name.unlink()


@contextlib.contextmanager
def new_file(folder: Path) -> Iterator[Scratch]:
    """A new file in ``folder``, which is gone afterwards unless it was moved to its place."""
    scratch = Scratch(folder)
    try:
        yield scratch
    finally:
        scratch.close()


def remove_leftovers(folder: Path) -> None:
    """Remove the new files of writers that were killed; never those of living ones, and never a file of somebody else."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            match = NAME.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry.path, match[1] == _machine())


def _remove_if_abandoned(path: str, ours: bool) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        old = time.time() - os.fstat(descriptor).st_mtime > A_DAY
        if (ours or old) and _lock(descriptor):
            os.unlink(path)  # no name is used twice: it is this file, or is gone
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Hold the file until it is closed; False if somebody else does, or if it cannot be held here."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _new_name() -> str:
    return f".outfield-{_machine()}-{secrets.token_hex(8)}.tmp"


@functools.cache
def _machine() -> str:
    """This machine, since it was started: names are not unique, and locks do not outlive a start."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        identity = platform.node()
    return hashlib.sha256(identity.encode()).hexdigest()[:12]
