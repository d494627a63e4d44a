"""Images in files: a folder of them, decoded one by one by Pillow, or an ``.npz`` of arrays. Nothing is unpickled.

Pillow tells a format by its content, whatever the name of the file; it would start other programs for some of them (Ghostscript
for PostScript) and is therefore only asked for :data:`FORMATS`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from outfield.config import require_choice
from outfield.errors import FileFormatError, InputError, OutfieldError, StorageError, as_ours
from outfield.extras import library
from outfield.files import PathLike, as_path, open_to_read, read_npz
from outfield.images.image_source import ImageArray, ImageSource
from outfield.progress import bar

# What the name of an image file ends with, in small or capital letters
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
NPZ_ARRAYS = "images, uint8 (N, H, W, 3), and perhaps labels, integers (N,), and classes, the names of the classes"
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # As Pillow calls them
BYTES_AT_MOST = 2**30  # Of one encoded image
# What an image that cannot be read does: end the work with an error, or be left out and told
ON_ERROR = ("fail", "skip")
ORIENTATION = 0x0112  # The EXIF entry that tells how a camera was held


def decode(content: bytes, where: str) -> np.ndarray:
    """An encoded image as uint8 (H, W, 3).

    It is turned as its EXIF entry says. Grey, palette and CMYK become colour, an alpha channel is dropped, and of several frames
    the first counts. Grey of 16 bits is scaled to 8 (divided by 257 and rounded); of 16 bits a colour channel Pillow takes the
    upper 8.
    """
    with as_image(io.BytesIO(content), where) as image:
        return pixels_of(image, where)


def pixels_of(image: Any, where: str) -> np.ndarray:
    """An image that Pillow opened or made, as uint8 (H, W, 3): what :func:`decode` makes of its file."""
    if image.mode[0] in "IF":  # Pillow would cut such values off at 255: a white picture, and no error
        image = _of_8_bits(image, where)
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")  # what Pillow asks for, with a warning, before the alpha channel is dropped
    image = image.convert("RGB")  # a copy, which may be turned
    if "exif" in image.info:
        with contextlib.suppress(Exception):  # a broken entry must not make a good picture unreadable
            library("PIL.ImageOps", extra="images").exif_transpose(image, in_place=True)
    return np.array(image)


def _of_8_bits(image: Any, where: str) -> Any:
    """Grey of 16 bits in 8: 65535 is white. Pillow reads it as integers of 16 bits, or of 32 out of PNG and PGM."""
    if not (image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))):
        what = f"{where} has more than 16 bits a channel, or floats ({image.mode})"
        raise FileFormatError(f"{what}; save it with 8 or 16")
    values = np.asarray(image).astype(np.int64)
    made = library("PIL.Image", extra="images").fromarray(((values + 128) // 257).clip(0, 255).astype(np.uint8))
    made.info = image.info
    return made


def size_of(file: BinaryIO, where: str) -> tuple[int, int]:
    """Height and width of what :func:`decode` gives, going by the beginning of the file."""
    with as_image(file, where) as image:
        lies = False
        with contextlib.suppress(Exception):
            # TIFF says it as it lies; to look for what a PNG does not say at its beginning Pillow would decode all of it.
            known = image.format != "TIFF" and (image.format != "PNG" or "exif" in image.info)
            lies = known and image.getexif().get(ORIENTATION) in range(5, 9)
        return (image.width, image.height) if lies else (image.height, image.width)


@contextlib.contextmanager
def as_image(file: BinaryIO, where: str) -> Iterator[Any]:
    """An image that Pillow has not decoded yet; whatever it raises becomes an error of ours."""
    pillow = library("PIL.Image", extra="images")
    try:
        if not file.read(1):
            raise FileFormatError(f"{where} is empty: the file has no content")
        file.seek(0)
        with pillow.open(file, formats=FORMATS) as image:
            yield image
    except OutfieldError:
        raise
    except pillow.DecompressionBombError as error:
        raise InputError(f"{where} is too large; make it smaller ({error})") from error
    except MemoryError as error:
        raise InputError(f"there is too little memory to decode {where}; make it smaller") from error
    except Exception as error:  # Pillow's readers of broken files raise nearly anything
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"cannot read {where}: {error.strerror}") from error
        known = not isinstance(error, pillow.UnidentifiedImageError)
        reason = str(error) or type(error).__name__ if known else f"known formats are {', '.join(FORMATS)}"
        raise FileFormatError(f"{where} is truncated, or is not an image ({reason})") from error


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


# Sources of encoded images


class EncodedImages(ImageSource):
    """Images kept as JPEG, PNG and the like, each decoded when it is asked for; sizes may differ."""

    names: tuple[str, ...]

    def __init__(
        self, names: Sequence[str], labels: ArrayLike | None, name: str, classes: Sequence[str] | None
    ) -> None:
        self.names, self.name = tuple(names), name
        if not self.names:
            raise InputError(f"{name} has no images; at least one is needed")
        self._set_labels(labels, classes)

    @abstractmethod
    def content(self, index: int) -> bytes:
        """The encoded image."""

    def where(self, index: int) -> str:
        """Where it lies, for errors."""
        return self.names[index]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> np.ndarray:
        return decode(self.content(index), self.where(index))

    def opened(self, index: int) -> contextlib.AbstractContextManager[BinaryIO]:
        """The encoded image as a file, of which only the beginning may be read."""
        return io.BytesIO(self.content(index))

    @cached_property
    def size(self) -> tuple[int, int] | None:
        """Height and width where all images share them, else None; the beginnings of files tell, up to the first difference."""
        first = self._size_of(0)
        with bar(f"sizes of {self.name}", len(self), "images") as advance:
            for index in range(1, len(self)):
                if self._size_of(index) != first:
                    return None
                advance(index + 1)
        return first

    def _size_of(self, index: int) -> tuple[int, int]:
        with self.opened(index) as file:
            return size_of(file, self.where(index))

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"encoded images|{len(self)}|".encode())
        with bar(f"checksum of {self.name}", len(self), "images") as advance:
            for index, name in enumerate(self.names):
                content = self.content(index)
                digest.update(f"{name}|{len(content)}|".encode("utf-8", "surrogateescape") + content)
                advance(index + 1)
        return self._with_labels(digest)


class ImageFiles(EncodedImages):
    """Image files, by their names relative to a folder; it travels to the workers of a DataLoader as a list of names."""

    def __init__(
        self,
        folder: PathLike,
        names: Sequence[str],
        labels: ArrayLike | None = None,
        name: str | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.folder = as_path(folder, "folder")
        self.refused: tuple[Skipped, ...] = ()  # what could not be opened, where :meth:`of` was told to leave it out
        for file in names:  # which a list that came with a data set may hold
            if not isinstance(file, str) or not file or "\0" in file or file[0] == "/" or ".." in file.split("/"):
                raise InputError(f"names holds {file!r}; it must be the name of a file in {self.folder}, without ..")
        super().__init__(names, labels, name or self.folder.resolve().name, classes)

    @classmethod
    def of(cls, folder: PathLike, name: str | None = None, on_error: str = "fail") -> ImageFiles:
        """All image files in a folder, at any depth, in the order of their paths, as :func:`open_images` says.

        If the folder itself holds an image file, there are no labels. What ``on_error`` "skip" leaves out is in :attr:`refused`.
        """
        folder = as_path(folder, "folder")
        if not os.path.isdir(folder):
            raise StorageError(f"cannot read {folder}: there is no such folder")
        require_choice("on_error", on_error, ON_ERROR)
        names: list[str] = []
        refused: list[Skipped] = []
        with bar(f"looking through {folder}", unit="images") as advance:
            for found in image_names(folder, refused if on_error == "skip" else None):
                names.append(found)
                advance(len(names))
        names.sort(key=lambda found: found.split("/"))
        if not names:
            raise InputError(f"there is no image in {folder}; images end with {', '.join(IMAGE_ENDINGS)}")
        owners = [found.partition("/")[0] for found in names]
        if any("/" not in found for found in names):
            files = cls(folder, names, name=name)
        elif empty := sorted({e.name for e in _entries(folder) if e.is_dir(follow_symlinks=False)} - set(owners)):
            what = f"{folder / empty[0]} holds no image, but each sub-folder of {folder} is a class"
            raise FileFormatError(f"{what}; remove it, or name the folder above the classes")
        else:
            number = {owner: label for label, owner in enumerate(sorted(set(owners)))}
            files = cls(folder, names, [number[owner] for owner in owners], name, tuple(number))
        files.refused = tuple(refused)
        return files

    def where(self, index: int) -> str:
        return str(self.folder / self.names[index])

    def opened(self, index: int) -> contextlib.AbstractContextManager[BinaryIO]:
        return io.BufferedReader(open_to_read(self.folder / self.names[index]))

    def content(self, index: int) -> bytes:
        where = self.where(index)
        with self.opened(index) as file:
            if os.fstat(file.fileno()).st_size > BYTES_AT_MOST:
                raise InputError(f"{where} is too large: an image file may have {BYTES_AT_MOST:,} bytes")
            with as_ours(f"cannot read {where}", StorageError, OSError):
                return file.read()


def image_names(folder: PathLike, refused: list[Skipped] | None = None) -> Iterator[str]:
    """Image files in a folder at any depth, but hidden ones; each folder once, by its own name before those of links to it.

    A folder that may not be read, or an image that is no ordinary file, is an error, or goes to ``refused``.
    """
    folder = Path(folder)
    seen = {str(above) for above in folder.resolve().parents}
    own, linked = deque([""]), deque[str]()
    while own or linked:
        inner = own.popleft() if own else linked.popleft()
        place = os.path.realpath(folder / inner)
        if place in seen:
            continue
        seen.add(place)
        try:
            entries = _entries(folder / inner)
        except StorageError as error:
            if refused is None or not inner:
                raise
            refused.append(Skipped(inner, str(error)))
            continue
        for entry in entries:
            name = f"{inner}/{entry.name}" if inner else entry.name
            link = entry.is_symlink()
            if os.path.isdir(entry.path) if link else entry.is_dir():  # which knows without asking for each file
                (linked if link else own).append(name)
            elif not entry.name.lower().endswith(IMAGE_ENDINGS):
                continue
            elif os.path.isfile(entry.path) if link else entry.is_file():
                yield name
            else:
                why = f"cannot read {entry.path}: it is not an ordinary file, nor a link to one; remove it"
                if refused is None:
                    raise StorageError(why)
                refused.append(Skipped(name, why))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder and is not hidden, in the order of names."""
    with as_ours(f"cannot read {folder}", StorageError, OSError), os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)


def open_images(source: PathLike, name: str | None = None, on_error: str = "fail") -> ImageSource:
    """Images of an ``.npz`` (in memory) or of a folder (decoded one by one).

    Args:
        source: an ``.npz`` that holds ``images``, uint8 (N, H, W, 3), and perhaps ``labels`` (N,) and ``classes``, the names of
            the classes; or a folder, whose images are found at any depth. If it holds no image itself, its sub-folders are the
            classes, in alphabetical order.
        name: what to call them; the name of the file or folder if None.
        on_error: "fail" makes pipes, links to nowhere and folders that may not be read an error; "skip" leaves them out.

    Raises:
        StorageError: there is no such file or folder, or it is a file of another kind.
        FileFormatError: the ``.npz`` is truncated, holds other arrays, or pickled ones.
        InputError: its images or labels have a wrong type or shape; or the folder holds no image.
    """
    path = as_path(source, "source")
    if os.path.isdir(path):
        return ImageFiles.of(path, name, on_error)
    if not os.path.lexists(path):
        hint = ""
        if not path.suffix and len(path.parts) == 1:
            hint = f'; for a set by name, say where it is kept: find("{path}", split, folder), or --data FOLDER'
        raise StorageError(f"cannot read {path}: there is no such file or folder{hint}")
    if path.suffix.lower() != ".npz":
        raise StorageError(f"cannot read {path}: images are read from an .npz file or a folder of image files")
    arrays = read_npz(path)
    if "images" not in arrays or set(arrays) - {"images", "labels", "classes"}:
        shown = ", ".join(list(arrays)[:6]) or "nothing"
        raise FileFormatError(f"{path} holds {shown}; expected {NPZ_ARRAYS}, and nothing else")
    classes = arrays.get("classes")
    if classes is not None and (classes.ndim != 1 or classes.dtype.kind != "U"):
        raise InputError(f"{path}: classes is {classes.dtype} of shape {classes.shape}; it must be a vector of text")
    with as_ours(str(path), InputError, InputError):
        names = None if classes is None else classes.tolist()
        return ImageArray(arrays["images"], arrays.get("labels"), name or path.stem, names)
