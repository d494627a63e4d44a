"""Features copied to a temporary file, so that their rows can be read in any order.

The file has no name: nothing of it is left when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import StorageError
from outfield.features.set import FeatureSet, FeatureSource
from outfield.files.opened import fill
from outfield.files.paths import reason

ROWS_AT_ONCE = 8192
WAYS_OUT = "set TMPDIR to a folder with more room, or load the features with in_memory()"


class CopiedFeatures(FeatureSource):
    """The features (N, D) of another source, in a temporary file; made by :func:`copied`."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, file: Any) -> None:
        self.shape, self.dtype, self.file = shape, dtype, file
        self.row_bytes = shape[1] * dtype.itemsize

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"features": self.shape}

    def batches(self, size: int, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
        """The features in consecutive pieces of ``size`` rows."""
        self._chosen(names)
        for start in range(0, len(self), size):
            rows = self._room(min(size, len(self) - start))
            fill(self.file, _bytes(rows), start * self.row_bytes, "the temporary copy")
            yield {"features": rows}

    def rows(self, index: Sequence[int] | np.ndarray | Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The features at chosen rows (n,), in the order of ``index``: one small read each."""
        self._chosen(names)
        numbers = self._row_numbers(index)
        rows = self._room(len(numbers))
        for place in np.argsort(numbers, kind="stable").tolist():
            fill(self.file, _bytes(rows[place]), int(numbers[place]) * self.row_bytes, "the temporary copy")
        return {"features": rows}

    def in_memory(self) -> FeatureSet:
        """All of it as a FeatureSet."""
        (whole,) = self.batches(len(self))
        return FeatureSet(**whole)

    def _room(self, rows: int) -> Tensor:
        return torch.empty(rows, self.shape[1], dtype=self.dtype)


def _bytes(rows: Tensor) -> memoryview:
    return memoryview(rows.reshape(-1).view(torch.uint8).numpy().data)


@contextlib.contextmanager
def copied(data: FeatureSource) -> Iterator[CopiedFeatures]:
    """The features of ``data`` in a temporary file, as long as the context lasts.

    Raises:
        StorageError: there is no room for it; the message names the folder and the ways out.
    """
    with _new_file() as file:
        copy: CopiedFeatures | None = None
        for piece in data.batches(ROWS_AT_ONCE, ["features"]):
            rows = piece["features"].contiguous()
            if copy is None:
                copy = CopiedFeatures(data.shapes["features"], rows.dtype, file)
                _check_room(copy)
            _append(file, _bytes(rows), copy)
        assert copy is not None  # a source has at least one row
        yield copy


def _new_file() -> Any:
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError as error:
        raise StorageError(f"no temporary file could be made: {reason(error)}; {WAYS_OUT}") from error


def _check_room(copy: CopiedFeatures) -> None:
    """Find out before the work whether a copy will fit."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < len(copy) * copy.row_bytes:
        raise _full(copy, f"only {free:,} bytes are free there")


def _append(file: Any, content: memoryview, copy: CopiedFeatures) -> None:
    done = 0
    try:
        while done < len(content):
            done += file.write(content[done:])
    except OSError as error:
        raise _full(copy, reason(error)) from error


def _full(copy: CopiedFeatures, why: str) -> StorageError:
    needed = len(copy) * copy.row_bytes
    return StorageError(
        f"rows of this file cannot be picked one by one, and a temporary copy of its features, {needed:,} bytes, does not fit "
        f"into {tempfile.gettempdir()}: {why}; {WAYS_OUT}"
    )
