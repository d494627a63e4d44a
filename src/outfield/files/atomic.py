"""Files written atomically: a reader finds the old file or the whole new one, whatever happens to the writer."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from typing import BinaryIO

import numpy as np

from outfield.errors import StorageError
from outfield.files.paths import PathLike, as_path, check_readable, check_writable, make_folder, reason, resolved
from outfield.files.scratch import new_file, remove_leftovers

__all__ = [
    "PathLike",
    "check_readable",
    "check_writable",
    "make_folder",
    "write_atomically",
    "write_bytes",
    "write_new",
    "write_npz",
]


def write_atomically(path: PathLike, write: Callable[[BinaryIO], None]) -> None:
    """Call ``write`` with a new file, open in binary, then put that in the place of ``path``.

    A reader sees the old file or the whole new one, never a part. When anything fails, or the process is killed, the new
    file is gone and what stood at ``path`` stays.

    Raises:
        InputError: it is no path.
        StorageError: the folder does not exist, is not writable, or the disk is full.
    """
    checked = as_path(path)
    target = resolved(checked)
    try:
        remove_leftovers(target.parent)
        with new_file(target.parent) as new:
            write(new.file)
            new.move_to(target)
    except OSError as error:
        raise StorageError(f"cannot write {checked}: {reason(error)}; nothing was changed") from error


def write_bytes(path: PathLike, content: bytes) -> None:
    """Write ``content`` to ``path``, atomically."""

    def put(file: BinaryIO) -> None:
        file.write(content)

    write_atomically(path, put)


def write_new(path: PathLike, content: bytes) -> bool:
    """Write ``content`` to ``path`` where nothing is yet, atomically: of several that try at once, one succeeds
    (where the file system has links; where it has none, the later one may win).

    Returns:
        whether the file was written; what was there before stays as it is.

    Raises:
        StorageError: the folder does not exist, is not writable, or the disk is full.
    """
    target = as_path(path)
    try:
        remove_leftovers(target.parent)
        with new_file(target.parent) as new:
            new.file.write(content)
            new.move_to_new(target)
    except FileExistsError:
        return False
    except OSError as error:
        raise StorageError(f"cannot write {target}: {reason(error)}; nothing was changed") from error
    return True


def write_npz(path: PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to an ``.npz`` at ``path``, atomically; they may have any names, also "file", which numpy.savez refuses."""

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)

    write_atomically(path, write)
