"""Stand-ins written to a folder of PNG files with a sheet of examples, as a whole or not at all."""

from __future__ import annotations

import io
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outfield.errors import InputError, StorageError
from outfield.extras import library
from outfield.files import PathLike, as_path, reason
from outfield.images.stand_in_sets import StandInImages
from outfield.progress import bar
from outfield.stand_in import StandIns

SHEET = "examples.png"
EXAMPLES = 8
"""Columns of the sheet of examples."""
CELL = 96
"""Height and width of an example in pixels."""
GAP = 6
MARGIN = 24
NAMES = 128
"""Width of the column with the names."""
PAPER, INK, FAINT = (255, 255, 255), (28, 32, 38), (112, 120, 130)


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
    target = as_path(folder, "folder")
    check_free(target)
    try:
        new = target.absolute().parent / f".{target.name}.{secrets.token_hex(8)}"
        new.mkdir()
        try:
            _fill(new, made)
            if target.is_dir():
                target.rmdir()
            os.rename(new, target)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {reason(error)}; nothing was changed") from error


def _fill(folder: Path, made: StandIns[StandInImages]) -> None:
    done = 0
    with bar("writing stand-ins", sum(len(images) for images in made.values()), "images") as advance:
        for name, images in made.items():
            inside = folder / made.levels[name] / name
            inside.mkdir(parents=True)
            for index, number in enumerate(images.chosen):
                (inside / f"{number:06d}.png").write_bytes(_png(images[index]))
                done += 1
                advance(done)
    first = next(iter(made.values()))
    shown = sorted({i * len(first) // EXAMPLES for i in range(EXAMPLES)})
    rows = {"images": [first.images[first.chosen[index]] for index in shown]}
    rows |= {name: [images[index] for index in shown] for name, images in made.items()}
    (folder / SHEET).write_bytes(sheet(rows, {"images": "as they are", **made.levels}))


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


def sheet(rows: Mapping[str, Sequence[np.ndarray]], notes: Mapping[str, str] | None = None) -> bytes:
    """A PNG with the images of each name in one row, small ones enlarged pixel by pixel, large ones shrunk.

    Args:
        rows: Images uint8 (H, W, 3) of any size, by the name that stands before them.
        notes: A word below a name.

    Raises:
        InputError: There is nothing to show.
        MissingExtraError: Pillow is not installed.
    """
    pillow, draw = library("PIL.Image", extra="images"), library("PIL.ImageDraw", extra="images")
    columns = max((len(images) for images in rows.values()), default=0)
    if not columns:
        raise InputError("a sheet of examples needs at least one image")
    width = 2 * MARGIN + NAMES + columns * (CELL + GAP) - GAP
    height = 2 * MARGIN + len(rows) * (CELL + GAP) - GAP
    page = pillow.new("RGB", (width, height), PAPER)
    pen, name_font, note_font = draw.Draw(page), _font(18), _font(14)
    for row, (name, images) in enumerate(rows.items()):
        top = MARGIN + row * (CELL + GAP)
        pen.text((MARGIN, top + CELL // 2 - 20), name, INK, font=name_font)
        pen.text((MARGIN, top + CELL // 2 + 4), (notes or {}).get(name, ""), FAINT, font=note_font)
        for column, image in enumerate(images):
            shown = _fitted(pillow, image)
            left = MARGIN + NAMES + column * (CELL + GAP)
            page.paste(shown, (left + (CELL - shown.width) // 2, top + (CELL - shown.height) // 2))
    return _png(page)


def _png(image: Any) -> bytes:
    """A PNG of pixels uint8 (H, W, 3), or of an image of Pillow's."""
    file = io.BytesIO()
    if isinstance(image, np.ndarray):
        image = library("PIL.Image", extra="images").fromarray(np.ascontiguousarray(image))
    image.save(file, "PNG")
    return file.getvalue()


def _fitted(pillow: Any, image: np.ndarray) -> Any:
    """An image as large as a cell allows, its shape kept; every pixel of a small one as large as the next."""
    height, width = image.shape[:2]
    scale = CELL / max(height, width)
    scale = scale if scale < 1 else CELL // max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    how = pillow.Resampling.NEAREST if scale > 1 else pillow.Resampling.LANCZOS
    return pillow.fromarray(np.ascontiguousarray(image)).resize(size, how)


def _font(size: int) -> Any:
    fonts = library("PIL.ImageFont", extra="images")
    try:
        return fonts.load_default(size)
    except TypeError:  # Pillow before 10.1 has one size
        return fonts.load_default()
