"""The one door for paths: what a path is, where can be read and written, and which endings a file may have."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outfield.errors import InputError, StorageError

PathLike = str | os.PathLike[str]


def as_path(value: Any, name: str = "path") -> Path:
    """A checked path."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name} is {value!r:.100}; it must be a path: a text or a pathlib.Path")
    try:
        text = os.fspath(value)
        if not isinstance(text, str):
            raise InputError(f"{name} is {value!r:.100}, a path in bytes; pass os.fsdecode of it")
        os.fsencode(text)
    except (TypeError, UnicodeEncodeError) as error:
        raise InputError(f"{name} is {value!r:.100}, which cannot be a path: {error}") from error
    if not text:
        raise InputError(f"{name} is empty; it must be a path")
    if "\0" in text:
        raise InputError(f"{name} is {text!r:.100}; a path has no NUL character")
    return Path(text)


def check_ending(path: PathLike, endings: Sequence[str], name: str = "path") -> Path:
    """Refuse an output of another ending than those that will do; returns the path."""
    checked = as_path(path, name)
    if checked.suffix not in endings:
        *most, last = endings
        listed = f"{', '.join(most)} or {last}" if most else last
        raise InputError(f"{name} is {str(checked)!r}; the name of this file must end in {listed}")
    return checked


def check_output(path: PathLike, endings: Sequence[str] | None = None, name: str = "path") -> Path:
    """Find out before long work whether ``path`` can be written after it; returns it."""
    checked = as_path(path, name) if endings is None else check_ending(path, endings, name)
    target = resolved(checked)
    if not target.parent.is_dir():
        raise StorageError(f"cannot write {checked}: there is no folder {target.parent}{_hint(checked)}")
    if not os.access(target.parent, os.W_OK):
        raise StorageError(f"cannot write {checked}: the folder {target.parent} is not writable")
    return checked


def check_writable(path: PathLike) -> None:
    """:func:`check_output` for a file of any ending."""
    check_output(path)


def resolved(path: Path) -> Path:
    """Where a file is written: a link stays a link, and its target is replaced."""
    try:
        target = path.resolve()
        try:
            kind = target.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return target  # the folder is looked at when the file is made
        if not stat.S_ISREG(kind):
            raise FileExistsError("it is there and is not an ordinary file")
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise StorageError(f"cannot write {path}: {reason(error)}") from error
    return target


def check_readable(path: PathLike) -> None:
    """Raise a :class:`StorageError` unless ``path`` is a file that may be read."""
    os.close(open_descriptor(path))


def open_descriptor(path: PathLike) -> int:
    """A descriptor of an ordinary file, to be read; a pipe or a device is refused and never waited for."""
    checked = as_path(path)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(checked, flags)
    except FileNotFoundError as error:
        raise StorageError(f"cannot read {checked}: there is no such file{_hint(checked)}") from error
    except OSError as error:
        raise StorageError(f"cannot read {checked}: {reason(error)}") from error
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    raise StorageError(f"cannot read {checked}: it is {'a folder' if stat.S_ISDIR(kind) else 'not an ordinary file'}")


def make_folder(path: PathLike) -> None:
    """Make a folder and those it lies in, where they are not there."""
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
