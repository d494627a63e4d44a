"""Encoded images to pixels, by Pillow: raster formats only, of a size that can be held; what becomes of broken ones.

Pillow tells a format by its content, whatever the name of the file; it would start other programs for some of them
(Ghostscript for PostScript) and is therefore only asked for :data:`FORMATS`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from outfield.errors import FileFormatError, InputError, OutfieldError, StorageError
from outfield.extras import library

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # As Pillow calls them
PIXELS_AT_MOST = 178_956_970  # Of one image, where Pillow too takes it for a decompression bomb: half a gigabyte
BYTES_AT_MOST = 2**30  # Of one encoded image
# What an image that cannot be read does: end the work with an error, or be left out and told
ON_ERROR = ("fail", "skip")
ORIENTATION = 0x0112  # The EXIF entry that tells how a camera was held
# What Pillow must do for each value of it, from 2 on; from 5 on height and width change places
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")


def decode(content: bytes, where: str) -> np.ndarray:
    """An encoded image as uint8 (H, W, 3).

    It is turned as its EXIF entry says, so that it lies as people see it. Grey and palette become colour, an alpha channel is
    dropped, CMYK is converted, and of several frames the first counts. Grey of 16 bits is scaled to 8 (divided by 257 and
    rounded); of 16 bits a colour channel Pillow takes the upper 8.

    Raises:
        FileFormatError: It is broken, of another format, or grey with more than 16 bits.
        InputError: It has more than :data:`PIXELS_AT_MOST` pixels, or memory is too small for them.
    """
    with as_image(io.BytesIO(content), where) as image:
        return pixels_of(image, where)


def pixels_of(image: Any, where: str) -> np.ndarray:
    """An image that Pillow opened or made, as uint8 (H, W, 3): what :func:`decode` makes of its file."""
    orientation = _orientation(image)
    if image.mode[0] in "IF":  # Pillow would cut such values off at 255: a white picture, and no error
        image = _of_8_bits(image, where)
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")  # what Pillow asks for, with a warning, before the alpha channel is dropped
    image = image.convert("RGB")
    if orientation > 1:
        image = image.transpose(library("PIL.Image", extra="images").Transpose[TURNS[orientation - 2]])
    return np.array(image)


def _of_8_bits(image: Any, where: str) -> Any:
    """Grey of 16 bits in 8: 65535 is white. Pillow reads it as integers of 16 bits, or of 32 out of PNG and PGM."""
    if not (image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))):
        raise FileFormatError(
            f"{where} has more than 16 bits a channel, or floats ({image.mode}); save it with 8 or 16"
        )
    values = np.asarray(image).astype(np.int64)
    return library("PIL.Image", extra="images").fromarray(((values + 128) // 257).clip(0, 255).astype(np.uint8))


def size_of(file: BinaryIO, where: str) -> tuple[int, int]:
    """Height and width of what :func:`decode` gives, going by the beginning of the file."""
    with as_image(file, where) as image:
        lies = _orientation(image) >= 5
        return (image.width, image.height) if lies else (image.height, image.width)


@contextmanager
def as_image(file: BinaryIO, where: str) -> Iterator[Any]:
    """An image that Pillow has not decoded yet; whatever it raises becomes an error of ours."""
    pillow = library("PIL.Image", extra="images")
    try:
        if not file.read(1):
            raise FileFormatError(f"{where} is empty: the file has no content")
        file.seek(0)
        with pillow.open(file, formats=FORMATS) as image:
            if image.width * image.height > PIXELS_AT_MOST:
                raise _too_large(where, f"it has {image.width} × {image.height}")
            yield image
    except OutfieldError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise _too_large(where, error) from error
    except MemoryError as error:
        raise InputError(f"there is too little memory to decode {where}; make it smaller") from error
    except Exception as error:  # Pillow's readers of broken files raise nearly anything
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"cannot read {where}: {error.strerror}") from error
        known = not isinstance(error, pillow.UnidentifiedImageError)
        reason = str(error) or type(error).__name__ if known else f"known formats are {', '.join(FORMATS)}"
        raise FileFormatError(f"{where} is truncated, or is not an image ({reason})") from error


def _too_large(where: str, reason: object) -> InputError:
    return InputError(f"{where} is too large: an image may have {PIXELS_AT_MOST:,} pixels ({reason}); make it smaller")


def _orientation(image: Any) -> int:
    """How the camera was held, 1 to 8 as EXIF counts; 1 where nothing has to be turned. TIFF is turned by Pillow itself."""
    content = image.info.get("exif")
    if image.format == "TIFF" or not isinstance(content, bytes):
        return 1
    orientation = 1
    with contextlib.suppress(Exception):  # a broken entry must not make a good picture unreadable
        exif = library("PIL.Image", extra="images").Exif()
        exif.load(content)
        orientation = exif.get(ORIENTATION)
    return orientation if orientation in range(2, 9) else 1


class Skipped(NamedTuple):
    """One image, or folder of images, that was left out: the name of the file, or the number of the image, and why."""

    name: str
    reason: str


def summary(skipped: Sequence[Skipped], total: int, where: str) -> str:
    """One sentence about what was left out.

    >>> summary([Skipped("a.png", "a.png is truncated")], 10, "photos")
    '1 of 10 images of photos could not be read and is left out: a.png is truncated'
    """
    verb = "is" if len(skipped) == 1 else "are"
    shown = "; ".join(one.reason for one in skipped[:3])
    more = f"; and {len(skipped) - 3:,} others" if len(skipped) > 3 else ""
    return f"{len(skipped):,} of {total:,} images of {where} could not be read and {verb} left out: {shown}{more}"
