"""Stand-ins written to a folder of PNG files, as a whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from outfield.errors import InputError, StorageError
from outfield.files.paths import PathLike, as_path, reason
from outfield.images.sheet import encoded, sheet
from outfield.images.stand_ins import StandInImages
from outfield.progress import bar
from outfield.stand_in import StandIns

SHEET = "examples.png"
EXAMPLES = 8
"""Columns of the sheet of examples."""


def write_stand_ins(made: StandIns[StandInImages], folder: PathLike) -> None:
    """Write ``LEVEL/KIND/NUMBER.png`` for each image, and a sheet of examples, ``examples.png``.

    The number is that of the image in its set. The folder appears when all of it is written; when anything fails, there is
    none.

    Args:
        made: What :func:`outfield.stand_ins` gave.
        folder: Where; it must not be there yet, or be empty.

    Raises:
        InputError: The folder is there and holds something.
        StorageError: It cannot be written, or an image not be read.
    """
    total = sum(len(images) for images in made.values())

    def fill(place: Path) -> None:
        done = 0
        with bar("writing stand-ins", total, "images") as advance:
            for name, images in made.items():
                inside = place / made.levels[name] / name
                inside.mkdir(parents=True)
                for index, number in enumerate(images.chosen):
                    (inside / f"{number:06d}.png").write_bytes(encoded(images[index]))
                    done += 1
                    advance(done)
        (place / SHEET).write_bytes(examples(made))

    write_folder(folder, fill)


def examples(made: StandIns[StandInImages], columns: int = EXAMPLES) -> bytes:
    """A sheet of examples as PNG: some images, and what each kind makes of them."""
    first = next(iter(made.values()))
    shown = sorted({i * len(first) // columns for i in range(columns)})
    rows = {"images": [first.images[first.chosen[index]] for index in shown]}
    rows |= {name: [images[index] for index in shown] for name, images in made.items()}
    return sheet(rows, {"images": "as they are", **made.levels})


def write_folder(folder: PathLike, fill: Callable[[Path], None]) -> None:
    """Call ``fill`` with a new folder, then put that in the place of ``folder``, which must not be there yet, or be empty.

    Raises:
        InputError: The folder is there and holds something, or is no folder.
        StorageError: It cannot be written; nothing is left.
    """
    target = as_path(folder, "folder")
    check_free(target)
    try:
        new = target.absolute().parent / f".{target.name}.{secrets.token_hex(8)}"
        new.mkdir()
        try:
            fill(new)
            if target.is_dir():
                target.rmdir()
            os.rename(new, target)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {reason(error)}; nothing was changed") from error


def check_free(folder: Path) -> None:
    """Refuse a folder that would be written over, and a place without a folder around it.

    Raises:
        InputError: It is there and holds something, or is no folder.
        StorageError: It cannot be read, or the folder that it would lie in is not there.
    """
    try:
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise InputError(f"{folder} is no folder; name one that is not there yet, or empty")
        if os.path.isdir(folder) and next(os.scandir(folder), None) is not None:
            raise InputError(f"{folder} is there and holds something; name a folder that is not there yet, or empty")
    except OSError as error:
        raise StorageError(f"cannot read {folder}: {reason(error)}") from error
    if not os.path.isdir(folder.absolute().parent):
        raise StorageError(f"cannot write {folder}: there is no folder {folder.absolute().parent}")
