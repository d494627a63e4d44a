"""Atomic writing: a reader finds the old file or the whole new one, whatever happens to the writer.

A new file is written beside its place, under a name that says on which machine, and is locked as long as its writer lives. The
next write to a folder removes what killed writers left there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import secrets
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from outfield.errors import StorageError
from outfield.files.paths import PathLike, as_path, reason, resolved

try:
    import fcntl
except ImportError:  # Windows does not let a file go that somebody holds, which serves as the lock
    fcntl = None  # type: ignore[assignment]

SCRATCH_NAME = re.compile(r"\.outfield-([0-9a-f]{12})-[0-9a-f]{16}\.tmp")
"""Names of new files: the machine, and a random number."""
A_DAY = 86_400.0
"""Seconds after which a new file of another machine counts as abandoned: not every shared folder shares its locks."""


def write_atomically(path: PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Call ``write`` with a new file, open in binary, then put it in the place of ``path``.

    When anything fails, the new file is gone and what stood at ``path`` stays.
    """
    checked = as_path(path)
    target = resolved(checked)
    with _write_errors(checked), new_file(target.parent) as new:
        write(new.file)
        new.move_to(target)


def write_bytes(path: PathLike, content: bytes) -> None:
    """Write ``content`` to ``path``, atomically."""
    write_atomically(path, lambda file: file.write(content))


def write_new(path: PathLike, content: bytes) -> bool:
    """Write ``content`` to ``path`` unless something is there; whether it was written.

    Of several that try at once, one succeeds; on a file system without links the later one may win.
    """
    target = as_path(path)
    with _write_errors(target), new_file(target.parent) as new:
        new.file.write(content)
        new.flush()
        try:
            os.link(new.name, target)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if target.exists():
                return False
            os.replace(new.name, target)
    return True


def write_npz(path: PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to an ``.npz``, atomically; they may have any names, also "file", which numpy.savez refuses."""

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)

    write_atomically(path, write)


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {reason(error)}; nothing was changed") from error


class Scratch:
    """A new file in the folder where it will be, open in binary as ``file``; made by :func:`new_file`."""

    def __init__(self, folder: Path) -> None:
        while True:
            self.name = folder / f".outfield-{_machine()}-{secrets.token_hex(8)}.tmp"
            descriptor = os.open(self.name, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o666)
            held = _lock(descriptor)
            if held is None or (held and self.name.exists()):
                break
            os.close(descriptor)  # somebody took it for abandoned in the moment before it was locked
        self.file: BinaryIO = open(descriptor, "w+b")  # noqa: SIM115

    def flush(self) -> None:
        """Wait until the content is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def move_to(self, path: Path, to_disk: bool = True) -> None:
        """Put the file in the place of ``path``."""
        self.flush() if to_disk else self.file.flush()
        os.replace(self.name, path)


@contextlib.contextmanager
def new_file(folder: Path) -> Iterator[Scratch]:
    """A new file in ``folder``, which is gone afterwards unless it was moved to its place."""
    _remove_leftovers(folder)
    scratch = Scratch(folder)
    try:
        yield scratch
    finally:
        with contextlib.suppress(OSError):  # what cannot be written now is not wanted any more
            scratch.file.close()
        with contextlib.suppress(OSError):
            scratch.name.unlink()


def _remove_leftovers(folder: Path) -> None:
    """Remove the new files of writers that were killed; never those of living ones, and never a file of somebody else."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            match = SCRATCH_NAME.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError), open(entry.path, "r+b") as file:
                    old = time.time() - os.fstat(file.fileno()).st_mtime > A_DAY
                    if (match[1] == _machine() or old) and _lock(file.fileno()):
                        os.unlink(entry.path)  # no name is used twice: it is this file, or is gone


def _lock(descriptor: int) -> bool | None:
    """Hold the file until it is closed; False if somebody else does, None if it cannot be held here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # AttributeError: there is no fcntl
        return None
    return True


@functools.cache
def _machine() -> str:
    """This machine, since it was started: names are not unique, and locks do not outlive a start."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        identity = platform.node()
    return hashlib.sha256(identity.encode()).hexdigest()[:12]
