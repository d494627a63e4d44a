"""Files: what may be read and written, and writing atomically: a reader finds the old file or the whole new one.

A new file is written beside its place. What a killed writer left there is removed by a later write to the folder, after a day.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import stat
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from outfield.errors import InputError, StorageError, as_ours, reason

if TYPE_CHECKING:
    import numpy as np

PathLike = str | os.PathLike[str]

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet computes
SCRATCH_NAME = re.compile(r"\.outfield-[0-9a-f-]+\.tmp")  # of a file that is being written
A_DAY = 86_400.0  # Seconds after which such a file counts as abandoned


def as_path(value: Any, name: str = "path") -> Path:
    """A checked path."""
    with as_ours(f"{name} is {value!r:.100}; it must be a path", InputError, TypeError, UnicodeEncodeError):
        text = os.fspath(value)
        os.fsencode(text)
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
    folder = resolved(checked).parent
    if not folder.is_dir():
        raise StorageError(f"cannot write {checked}: there is no folder {folder}{_hint(checked)}")
    if not os.access(folder, os.W_OK):
        raise StorageError(f"cannot write {checked}: the folder {folder} is not writable")
    return checked


def resolved(path: Path) -> Path:
    """Where a file is written: a link stays a link, and its target is replaced."""
    with as_ours(f"cannot write {path}", StorageError, OSError, RuntimeError):  # RuntimeError: a loop of links
        target = path.resolve()
        if target.exists() and not target.is_file():
            raise FileExistsError("it is there and is not an ordinary file")
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
    with as_ours(f"cannot make the folder {folder}", StorageError, OSError):
        folder.mkdir(parents=True, exist_ok=True)


def _hint(path: Path) -> str:
    return "; ~ is not expanded here, use pathlib.Path.expanduser" if path.parts[0].startswith("~") else ""


def csv_cell(value: object) -> object:
    """A cell of a CSV file: text that a spreadsheet would take for a formula begins with an apostrophe, which makes it text.

    >>> csv_cell("=1+1"), csv_cell("KNN"), csv_cell(-0.5)
    ("'=1+1", 'KNN', -0.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


# Writing


def write_atomically(path: PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Call ``write`` with a new file, open in binary, then put it in the place of ``path``, or leave all as it was."""
    checked = as_path(path)
    target = resolved(checked)
    with new_file(checked, target.parent) as (file, name):
        write(file)
        file.flush()
        os.fsync(file.fileno())
        os.replace(name, target)


def write_bytes(path: PathLike, content: bytes) -> None:
    """Write ``content`` to ``path``, atomically."""
    write_atomically(path, lambda file: file.write(content))


def write_new(path: PathLike, content: bytes) -> bool:
    """Write ``content`` to ``path`` unless something is there; whether it was written.

    Of several that try at once, one succeeds; on a file system without links the later one may win.
    """
    target = as_path(path)
    with new_file(target, target.parent) as (file, name):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(name, target)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if target.exists():
                return False
            os.replace(name, target)
    return True


def write_npz(path: PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to an ``.npz``, atomically; they may have any names, also "file", which numpy.savez refuses."""
    import numpy as np  # late: the command line looks at paths before it needs any array

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)

    write_atomically(path, write)


@contextlib.contextmanager
def new_file(path: Path, folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file in a folder and its name, under which it is gone afterwards; ``path`` is what errors call it."""
    name = folder / f".outfield-{secrets.token_hex(14)}.tmp"
    with contextlib.suppress(OSError):  # another writer may be faster
        for entry in os.scandir(folder):
            ours = SCRATCH_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            if ours and time.time() - entry.stat().st_mtime > A_DAY:
                os.unlink(entry.path)
    with as_ours(f"cannot write {path}", StorageError, OSError, after="; nothing was changed"):
        try:
            with open(name, "x+b") as file:
                yield file, name
        finally:
            name.unlink(missing_ok=True)
