"""Paths that are read and written: checked before long work, written atomically."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from outfield.errors import StorageError

PathLike = str | os.PathLike[str]


def write_atomically(path: PathLike, write: Callable[[BinaryIO], None]) -> None:
    """Call ``write`` with a new file, open in binary, then put that in the place of ``path``.

    A reader sees the old file or the whole new one, never a part. When anything fails the new file is removed and what
    stood at ``path`` stays.

    Raises:
        StorageError: the folder does not exist, is not writable, or the disk is full.
    """
    path = Path(path).resolve()  # a link stays a link, and its target is replaced
    scratch = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        if path.exists() and not path.is_file():
            raise FileExistsError("it is there and is not an ordinary file")
        with open(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}; nothing was changed") from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def check_writable(path: PathLike) -> None:
    """Find out before long work whether ``path`` can be written after it.

    Raises:
        StorageError: its folder does not exist or is not writable, or something else than a file is there.
    """
    folder = Path(path).resolve().parent
    if Path(path).exists() and not Path(path).is_file():
        raise StorageError(f"cannot write {path}: it is there and is not an ordinary file")
    if not folder.is_dir():
        raise StorageError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise StorageError(f"cannot write {path}: the folder {folder} is not writable")


def make_folder(path: PathLike) -> None:
    """Make a folder and those it lies in, where they are not there.

    Raises:
        StorageError: it cannot be made, or something else is there.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {path}: {error.strerror or error}") from error


def write_bytes(path: PathLike, content: bytes) -> None:
    """Write ``content`` to ``path``, atomically."""

    def put(file: BinaryIO) -> None:
        file.write(content)

    write_atomically(path, put)


def write_npz(path: PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to an ``.npz`` at ``path``, atomically."""
    write_atomically(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def check_readable(path: PathLike) -> None:
    """Raise a :class:`StorageError` unless ``path`` is a file that may be read."""
    if Path(path).is_dir():
        raise StorageError(f"cannot read {path}: it is a folder")
    if not Path(path).is_file():
        raise StorageError(f"cannot read {path}: there is no such file")
    if not os.access(path, os.R_OK):
        raise StorageError(f"cannot read {path}: permission denied")
