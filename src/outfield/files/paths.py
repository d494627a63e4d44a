"""Paths and files: what may be read and written, and writing that is atomic.

A reader finds the old file or the whole new one, whatever happens to the writer. A new file is written beside its place, under
a name that says on which machine, and is locked as long as its writer lives. The next write to a folder removes what killed
writers left there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import platform
import re
import secrets
import stat
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from outfield.errors import InputError, StorageError

try:
    import fcntl
except ImportError:  # Windows does not let a file go that somebody holds, which serves as the lock
    fcntl = None  # type: ignore[assignment]

PathLike = str | os.PathLike[str]
SCRATCH_NAME = re.compile(r"\.outfield-([0-9a-f]{12})-[0-9a-f]{16}\.tmp")
"""Names of new files: the machine, and a random number."""
A_DAY = 86_400.0
"""Seconds after which a new file of another machine counts as abandoned: not every shared folder shares its locks."""


def as_path(value: Any, name: str = "path") -> Path:
    """A checked path."""
    try:
        text = os.fspath(value)
        os.fsencode(text)
    except (TypeError, UnicodeEncodeError) as error:
        raise InputError(f"{name} is {value!r:.100}; it must be a path: a text or a pathlib.Path") from error
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{name} is {value!r:.100}; it must be a path: a text, not empty and without NUL characters")
    return Path(text)


def check_ending(path: PathLike, endings: Sequence[str], name: str = "path") -> Path:
    """The path of an output whose name has one of these endings."""
    checked = as_path(path, name)
    if checked.suffix not in endings:
        *most, last = endings
        listed = f"{', '.join(most)} or {last}" if most else last
        raise InputError(f"{name} is {str(checked)!r}; the name of this file must end in {listed}")
    return checked


def check_output(path: PathLike, endings: Sequence[str] | None = None, name: str = "path") -> Path:
    """The path of an output that can be written, as far as can be known before long work."""
    checked = as_path(path, name) if endings is None else check_ending(path, endings, name)
    folder = _resolved(checked).parent
    if not folder.is_dir():
        raise StorageError(f"cannot write {checked}: there is no folder {folder}{_hint(checked)}")
    if not os.access(folder, os.W_OK):
        raise StorageError(f"cannot write {checked}: the folder {folder} is not writable")
    return checked


def _resolved(path: Path) -> Path:
    """Where a file is written: a link stays a link, and its target is replaced."""
    try:
        target = path.resolve()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISREG(target.stat().st_mode):
                raise FileExistsError("it is there and is not an ordinary file")
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise StorageError(f"cannot write {path}: {reason(error)}") from error
    return target


def check_readable(path: PathLike) -> None:
    """Raise a :class:`StorageError` unless ``path`` is a file that may be read."""
    open_to_read(path).close()


def open_to_read(path: PathLike) -> io.FileIO:
    """An ordinary file, opened; a pipe or a device is refused and never waited for."""
    checked = as_path(path)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(checked, flags)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        why = f"there is no such file{_hint(checked)}" if missing else reason(error)
        raise StorageError(f"cannot read {checked}: {why}") from error
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return io.FileIO(descriptor, "r")
    os.close(descriptor)
    raise StorageError(f"cannot read {checked}: it is {'a folder' if stat.S_ISDIR(kind) else 'not an ordinary file'}")


def using(path: PathLike, file: io.FileIO | None) -> contextlib.AbstractContextManager[io.FileIO]:
    """A file for a ``with`` statement: opened and closed there, unless it is open already."""
    return open_to_read(path) if file is None else contextlib.nullcontext(file)


def make_folder(path: PathLike) -> None:
    """Make a folder and its parents, unless they are there."""
    folder = as_path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {folder}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """What a system's error says, without its number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _hint(path: Path) -> str:
    return "; ~ is not expanded here, use pathlib.Path.expanduser" if path.parts[0].startswith("~") else ""


# Writing


def write_atomically(path: PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Call ``write`` with a new file, open in binary, then put it in the place of ``path``.

    When anything fails, the new file is gone and what stood at ``path`` stays.
    """
    checked = as_path(path)
    target = _resolved(checked)
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
            if not _lock(descriptor) or self.name.exists():
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


def _lock(descriptor: int) -> bool:
    """Hold the file until it is closed; False if somebody else does, or if it cannot be held here."""
    with contextlib.suppress(OSError, AttributeError):  # AttributeError: there is no fcntl
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@functools.cache
def _machine() -> str:
    """This machine, since it was started: names are not unique, and locks do not outlive a start."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        identity = platform.node()
    return hashlib.sha256(identity.encode()).hexdigest()[:12]
