"""Which image files lie in a folder: at any depth, each once, through links too, but never round in circles."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from outfield.errors import StorageError
from outfield.files.paths import PathLike, reason
from outfield.images.skipped import Skipped

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
"""What the name of an image file ends with, in small or capital letters."""

Identity = tuple[int, int]
"""Device and number of a folder on it: the same under every name."""


def image_names(folder: PathLike, refused: list[Skipped] | None = None) -> Iterator[str]:
    """Image files in a folder at any depth, relative to it, with forward slashes; hidden ones are left out.

    Links to files count under each of their names. A folder is read once: under its own name if it lies here, else under that
    of a link to it. A link to a folder that this one lies in is not followed.

    Args:
        folder: Where to look.
        refused: Gets what would be an error, which then is left out.

    Raises:
        StorageError: A folder may not be read, or what is named like an image is not an ordinary file (a pipe, a link to
            nowhere), so that a part of the set would be missing.
    """
    seen = {_identity(above) for above in Path(folder).resolve().parents}
    own, linked = deque([""]), deque[str]()
    while own or linked:
        inner = own.popleft() if own else linked.popleft()
        try:
            identity = _identity(Path(folder) / inner)
            entries = [] if identity in seen else _entries(Path(folder) / inner)
        except StorageError as error:
            _refuse(inner, error, refused if inner else None)
            continue
        seen.add(identity)
        for entry in entries:
            name = f"{inner}/{entry.name}" if inner else entry.name
            if _is_folder(entry):
                (linked if entry.is_symlink() else own).append(name)
            elif entry.name.lower().endswith(ENDINGS):
                try:
                    _check_ordinary(entry)
                except StorageError as error:
                    _refuse(name, error, refused)
                else:
                    yield name


def _refuse(name: str, error: StorageError, refused: list[Skipped] | None) -> None:
    if refused is None:
        raise error
    refused.append(Skipped(name, str(error)))


def sub_folders(folder: PathLike) -> list[str]:
    """Names of the folders that lie in a folder themselves, not by a link, and are not hidden."""
    return [entry.name for entry in _entries(Path(folder)) if entry.is_dir(follow_symlinks=False)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder and is not hidden, in the order of names."""
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise StorageError(f"cannot read {folder}: {reason(error)}") from error


def _identity(folder: Path) -> Identity:
    try:
        status = os.stat(folder)
    except OSError as error:
        raise StorageError(f"cannot read {folder}: {reason(error)}") from error
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _check_ordinary(entry: os.DirEntry[str]) -> None:
    try:
        ordinary = entry.is_file()
    except OSError:
        ordinary = False
    if not ordinary:
        raise StorageError(f"cannot read {entry.path}: it is not an ordinary file, nor a link to one; remove it")
