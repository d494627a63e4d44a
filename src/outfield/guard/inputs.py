"""What a guard of images is called with, as one kind of source: paths, bytes, PIL images, arrays, tensors, lists of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from outfield.errors import InputError, OutfieldError, StorageError, as_ours
from outfield.images import ImageArray, ImageFiles, ImageSource, Skipped, decode, open_images, pixels_of

KNOWN = (
    "a path, bytes of an encoded image, a file opened with 'rb', a PIL image, a numpy array (H, W, 3) or (N, H, W, 3) of "
    "uint8, a torch tensor (3, H, W) or (N, 3, H, W), a list or an iterator of these, an outfield.ImageSource or a DataLoader"
)
ARRAY = "the array"  # what images of an array are called in errors


class Given(NamedTuple):
    """Images to be judged, as bytes or as normalised tensors (N, C, h, w); ``single``: one image, not a list of one."""

    images: ImageSource | Tensor
    files: Sequence[str | None]
    single: bool


class Items(ImageSource):
    """Images of all kinds, each decoded when it is needed: paths, bytes, PIL images, arrays, or what could not be opened."""

    labels, classes, name = None, None, "images"

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = tuple(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> np.ndarray:
        item, where = self.items[index], f"image {index}" if len(self.items) > 1 else "the image"
        if isinstance(item, np.ndarray):
            return item
        if isinstance(item, Skipped):
            raise StorageError(item.reason)
        if isinstance(item, Path):
            return ImageFiles(item.parent, [item.name])[0]
        return decode(item, where) if isinstance(item, bytes) else pixels_of(item, where)


def as_given(x: Any, normalised: bool = False, on_error: str = "fail") -> Given:
    """Any of :data:`KNOWN` but iterators and DataLoaders; with "skip" what cannot be opened is an image that cannot be read."""
    if isinstance(x, Tensor):
        return _of_tensor(x, normalised)
    if isinstance(x, ImageSource):
        return Given(x, _names_of(x), False)
    if isinstance(x, list | tuple):
        return _of_list(x, normalised, on_error)
    if isinstance(x, np.ndarray) and x.ndim == 4:
        return Given(ImageArray(x, name=ARRAY), [None] * len(x), False)
    if isinstance(x, str | os.PathLike) and (os.path.isdir(x) or str(x).endswith(".npz")):
        return _of_files(x, on_error)
    item, file = _item(x)
    return Given(Items([item]), [file], True)


def one_image(x: Any) -> np.ndarray:
    """One of :data:`KNOWN` that is a single image, as uint8 (H, W, 3)."""
    given = as_given(x)
    if not given.single:
        raise InputError("prepare takes one image; give several to the guard itself")
    return cast(np.ndarray, given.images[0])


def portions(x: Iterator[Any], rows: int) -> Iterator[list[Any]]:
    """What an iterator gives, in lists of about ``rows`` images."""
    part: list[Any] = []
    count, given = 0, False
    for one in x:
        part.append(one)
        count += len(one) if isinstance(one, ImageSource) or getattr(one, "ndim", 0) == 4 else 1
        if count >= rows:
            yield part
            part, count, given = [], 0, True
    if part:
        yield part
    elif not given:
        raise InputError(f"there is no image in an iterator that gives nothing; pass {KNOWN}")


def _names_of(source: ImageSource) -> list[str | None]:
    if source.names is None:
        return [None] * len(source)
    folder = getattr(source, "folder", None)
    return [str(name) if folder is None else str(Path(folder) / name) for name in source.names]


def _of_files(x: str | os.PathLike[str], on_error: str) -> Given:
    """A folder or an .npz; what is in a folder and cannot be read is an image, too, where errors are skipped."""
    try:
        source = open_images(x, on_error=on_error)
    except OutfieldError as error:
        if on_error == "fail":
            raise
        return Given(Items([Skipped(str(x), str(error))]), [str(x)], False)
    if not isinstance(source, ImageFiles) or not (refused := source.refused):
        return as_given(source)
    items = {name: source.folder / name for name in source.names} | {one.name: one for one in refused}
    found = sorted(items.items(), key=lambda pair: pair[0].split("/"))
    return Given(Items([item for _, item in found]), [str(source.folder / name) for name, _ in found], False)


def _of_list(x: Sequence[Any], normalised: bool, on_error: str) -> Given:
    if not x:
        raise InputError(f"there is no image in an empty list; pass {KNOWN}")
    if normalised:
        parts: list[Any] = [as_given(one, True).images for one in x]
        if not all(isinstance(part, Tensor) for part in parts):
            raise InputError("normalised=True is for tensors that the network takes; in this list is something else")
        joined = torch.cat(parts)
        return Given(joined, [None] * len(joined), False)
    items: list[Any] = []
    files: list[str | None] = []
    for one in x:  # an image, or a batch or folder of several
        given = as_given(one, on_error=on_error)
        source: Any = given.images
        if isinstance(source, Items):
            items += source.items
        elif isinstance(source, ImageFiles):
            items += [source.folder / name for name in source.names]
        else:
            items += [source[index] for index in range(len(source))]
        files += given.files
    return Given(Items(items), files, False)


def _item(x: Any) -> tuple[Any, str | None]:
    """One image as what :class:`Items` holds, and its file."""
    if isinstance(x, str | os.PathLike):
        return Path(x), str(Path(x))
    if isinstance(x, bytes | bytearray | memoryview):
        return bytes(x), None
    if isinstance(x, np.ndarray):
        return ImageArray(x[None] if x.ndim == 3 else x, name=ARRAY).images[0], None  # which says what is wrong with it
    if hasattr(x, "read"):
        return _of_open_file(x)
    pillow = sys.modules.get("PIL.Image")  # who hands over its image has loaded it
    if pillow is not None and isinstance(x, pillow.Image):
        return x, getattr(x, "filename", "") or None
    how = "; of numbers in lists make an array first, numpy.array(x, dtype=numpy.uint8)" * isinstance(x, int | float)
    raise InputError(f"a guard cannot look at this {type(x).__name__}; pass {KNOWN}{how}")


def _of_open_file(x: Any) -> tuple[bytes, str | None]:
    """What is left to read of a file that was opened, and its name."""
    with as_ours(f"cannot read from the {type(x).__name__} that was given", StorageError):  # closed, or no text
        content = x.read()
    if not isinstance(content, bytes | bytearray | memoryview) or not content:
        what = "nothing" if not content else f"{type(content).__name__}, not bytes"
        raise InputError(f"the {type(x).__name__} gave {what}; open images with 'rb', and pass them unread")
    name = getattr(x, "name", None)
    return bytes(content), name if isinstance(name, str) and name else None


def _of_tensor(x: Tensor, normalised: bool) -> Given:
    if x.dim() not in (3, 4) or 0 in x.shape or (not normalised and x.shape[-3] != 3):
        raise InputError(f"the tensor has shape {tuple(x.shape)}, {x.dtype}; images are (3, H, W) or (N, 3, H, W)")
    single = x.dim() == 3
    batch = x.detach()[None] if single else x.detach()
    files: list[str | None] = [None] * len(batch)
    if normalised:
        if not x.is_floating_point():
            raise InputError(f"normalised=True, but the tensor holds {x.dtype}; networks take floating numbers")
        return Given(batch, files, single)
    images = ImageArray(np.ascontiguousarray(_as_bytes(batch).permute(0, 2, 3, 1).numpy()))
    return Given(Items([images.images[0]]) if single else images, files, single)


def _as_bytes(batch: Tensor) -> Tensor:
    """uint8 as it is; floating numbers in [0, 1] times 255, rounded: the bytes that ``ToTensor`` was given."""
    if batch.dtype == torch.uint8:
        return batch.cpu()
    least, most = float(batch.min()), float(batch.max())
    if not batch.is_floating_point() or not (least >= 0 and most <= 1):
        what = f"the tensor holds {batch.dtype} from {least:.4g} to {most:.4g}; images are uint8, or floating numbers in [0, 1]"
        raise InputError(f"{what}; for tensors that are resized and normalised already pass normalised=True")
    return batch.cpu().float().mul(255).round().to(torch.uint8)
