"""A sheet of examples: one picture with a row of images for each name."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from outfield.errors import InputError
from outfield.extras import library

CELL = 96
"""Height and width of an example in pixels."""
GAP = 6
MARGIN = 24
NAMES = 128
"""Width of the column with the names."""
PAPER, INK, FAINT = (255, 255, 255), (28, 32, 38), (112, 120, 130)


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
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


def encoded(image: np.ndarray) -> bytes:
    """One image, uint8 (H, W, 3), as a PNG."""
    file = io.BytesIO()
    library("PIL.Image", extra="images").fromarray(np.ascontiguousarray(image)).save(file, "PNG")
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
