"""Images on their way to a network: read in batches of bytes, decoded and resized by worker processes."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from outfield.backbone.preprocessing import TENSOR, Preprocessing, resize
from outfield.config import require_number
from outfield.errors import InputError, MissingExtraError, OutfieldError, StorageError
from outfield.files import as_tensor
from outfield.images import ImageArray, ImageSource, check_image
from outfield.progress import bar

BYTES_AT_ONCE = 256 * 2**20  # Pixels of an array that are copied together, at most
# Pixels that a worker process hands over together; they lie in shared memory, which is often small
BYTES_OF_A_WORKER = 32 * 2**20
FEW = 256  # So many images are decoded before worker processes have started
ROWS = 512  # Images that are resized together where all of a source are read


def read(
    images: ImageSource,
    way: Preprocessing,
    rows: int,
    workers: int | None,
    pinned: bool,
    skipped: dict[int, str] | None = None,
) -> Generator[Tensor, None, None]:
    """The images in consecutive batches of bytes (n, H, W, 3) on the CPU, or (n, h, w, channels).

    An array that needs no work of Pillow is cut in slices, and leaves with its own height and width; the device does the rest.
    Other sources are decoded one image at a time, in worker processes, and resized and cropped there.

    Args:
        images: where from.
        way: of an image into the network.
        rows: of a batch, at most.
        workers: processes that decode; 0 for none, None for as many as there are cores, up to 8.
        pinned: whether batches lie in pinned memory, from which they are copied to a GPU while it computes.
        skipped: gets the numbers of images that cannot be read, and why; if None, the first of them is an error.
    """
    if workers is not None:
        require_number("workers", workers, least=0, most=1024, whole=True)
    if isinstance(images, ImageArray) and (way.interpolation == TENSOR or way.keeps(images.size)):
        return _slices(images.images, _at_most(BYTES_AT_ONCE, images.size, rows), pinned)
    if workers is None:
        workers = 0 if len(images) < FEW else min(8, _cores())
    rows = _at_most(BYTES_AT_ONCE, way.size, rows)
    if workers:
        rows = _at_most(BYTES_OF_A_WORKER, way.size, min(rows, max(32, math.ceil(len(images) / workers))))
    return _decoded(_Batches(images, way, rows, skips=skipped is not None), workers, pinned, skipped)


def read_all(images: ImageSource, size: tuple[int, int], workers: int | None = None) -> Tensor:
    """All images as bytes (N, 3, h, w) on the CPU, channels last in memory, resized as on their way to a network.

    An array that has this size already is not copied, and must not be written to.
    """
    if isinstance(images, ImageArray) and images.size == tuple(size):
        return as_tensor("images", np.ascontiguousarray(images.images)).permute(0, 3, 1, 2)
    way = Preprocessing(size, interpolation=TENSOR)
    pixels = torch.empty(len(images), *size, 3, dtype=torch.uint8, device="cpu")
    done = 0
    with (
        bar(f"reading {images.name}", len(images), "images") as advance,
        contextlib.closing(read(images, way, ROWS, workers, pinned=False)) as batches,
    ):
        for batch in batches:
            pixels[done : done + len(batch)] = resize(batch, size)
            done += len(batch)
            advance(done)
    return pixels.permute(0, 3, 1, 2)


def _at_most(bytes_: int, size: tuple[int, int], rows: int) -> int:
    """So many images, or as many as go into so many bytes."""
    return min(rows, max(1, bytes_ // (3 * math.prod(size))))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _slices(images: np.ndarray, rows: int, pinned: bool) -> Generator[Tensor, None, None]:
    for start in range(0, len(images), rows):
        piece = images[start : start + rows]
        batch = torch.empty(piece.shape, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        np.copyto(batch.numpy(), piece)
        yield batch


class _Batches(Dataset[Any]):
    """Whole batches by number, decoded and resized, each with the numbers of images that it lacks, and why."""

    def __init__(self, images: ImageSource, way: Preprocessing, rows: int, skips: bool) -> None:
        self.images, self.way, self.rows, self.skips = images, way, rows, skips

    def __len__(self) -> int:
        return math.ceil(len(self.images) / self.rows)

    def __getitem__(self, number: int) -> tuple[Tensor, dict[int, str]] | Exception:
        chosen = range(number * self.rows, min((number + 1) * self.rows, len(self.images)))
        batch = torch.empty(len(chosen), *self.way.size, self.way.channels, dtype=torch.uint8, device="cpu")
        missing: dict[int, str] = {}
        for index in chosen:
            try:
                batch[index - chosen.start - len(missing)] = self._image(index)
            except OutfieldError as error:
                if not self.skips or isinstance(error, MissingExtraError):
                    return error  # as a value: raised, it would be handed on wrapped in the traceback of a worker
                missing[index] = str(error)
        return batch[: len(chosen) - len(missing)], missing

    def _image(self, index: int) -> Tensor:
        what = f"image {index} of {self.images.name}"
        try:
            image = self.images[index]
        except OutfieldError:
            raise
        except OSError as error:
            raise StorageError(f"cannot read {what}: {error}") from error
        except Exception as error:  # a source may be anybody's
            raise InputError(f"{what} cannot be had: {type(error).__name__}: {error}") from error
        check_image(image, what)
        try:
            return torch.from_numpy(self.way.pixels(image))
        except InputError as error:
            raise InputError(f"{what}: {error}") from error


def _decoded(
    batches: _Batches, workers: int, pinned: bool, skipped: dict[int, str] | None
) -> Generator[Tensor, None, None]:
    loader = DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        pin_memory=pinned,
        worker_init_fn=_leave_interrupts,
        generator=torch.Generator(),  # it draws a seed, which must not come from the global random state
    )
    running = iter(loader)
    found: Any = None
    try:
        for _ in range(len(batches)):
            found = next(running)
            if isinstance(found, Exception):
                break
            batch, missing = found
            if skipped is not None:
                skipped.update(missing)
            if len(batch):
                yield batch
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        what = "a process that decodes images died, perhaps for lack of (shared) memory"
        raise StorageError(f"{what}; use fewer workers than {workers}, or none (--workers 0)") from error
    finally:
        del running  # ends the workers
    if isinstance(found, Exception):
        raise found


def _leave_interrupts(worker: int) -> None:
    """Ctrl-C reaches the whole group of processes; the one that waits for the others ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
