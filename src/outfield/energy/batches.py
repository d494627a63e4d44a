"""Training rows, normalised: a tensor on the device, or rows on disk that are read batch by batch.

Rows of a Parquet or compressed file cannot be picked one by one; they are first copied to a temporary file. That file has no
name: nothing of it is left when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.config import require_choice
from outfield.energy.chains import PROJECTIONS
from outfield.errors import StorageError, as_ours
from outfield.features import FeatureSet, FeatureSource, normalise
from outfield.files import Fingerprint
from outfield.modes import limited_worker

ROWS_AT_ONCE = 8192
WAYS_OUT = "set TMPDIR to a folder with more room, or load the features with in_memory()"


class RowsOnDisk:
    """L2-normalised float32 rows (N, D) of features on disk, given on a device; indexed like a tensor, by rows."""

    dtype = torch.float32

    def __init__(self, source: FeatureSource, device: torch.device) -> None:
        self.source, self.device = source, device
        self.shape = source.shapes["features"]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        if isinstance(index, slice):
            index = torch.arange(len(self), device="cpu")[index]
        return self.given(self.read(index.cpu()))

    def read(self, index: Tensor) -> Tensor:
        """The features at an index (…) on the CPU as they are in the file (…, D), ready to be sent to the device."""
        rows = self._picked(index.flatten()).view(*index.shape, -1)
        return rows.pin_memory() if self.device.type == "cuda" else rows

    def _picked(self, index: Tensor) -> Tensor:
        return self.source.rows(index, ["features"])["features"]

    def given(self, rows: Tensor) -> Tensor:
        """What :meth:`read` gave, normalised, on the device, which is not waited for."""
        moved = rows.to(self.device, non_blocking=True)
        return normalise(moved.flatten(0, -2)).view(rows.shape)

    def pieces(self) -> Iterator[Tensor]:
        for piece in self.source.batches(ROWS_AT_ONCE, ["features"]):
            yield normalise(piece["features"].to(self.device))


class _CopiedRows(RowsOnDisk):
    """The same of a source whose rows cannot be picked, by way of a copy in a file."""

    def __init__(self, source: FeatureSource, device: torch.device, file: Any) -> None:
        super().__init__(source, device)
        for piece in source.batches(ROWS_AT_ONCE, ["features"]):
            rows = piece["features"].numpy()
            what = f"{rows[0].nbytes * len(self):,} bytes, does not fit into {tempfile.gettempdir()}"
            told = f"rows of this file cannot be picked one by one, and a temporary copy of its features, {what}"
            with as_ours(told, StorageError, OSError, after=f"; {WAYS_OUT}"):
                file.write(np.ascontiguousarray(rows).data)
                file.flush()
        self.copy = np.memmap(file, rows.dtype, "r", shape=self.shape)

    def _picked(self, index: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(self.copy[index.numpy()]))


Rows = Tensor | RowsOnDisk


@contextlib.contextmanager
def rows_of(data: FeatureSource, device: torch.device) -> Iterator[Rows]:
    """The normalised features of ``data``: on the device, or, of a stream, on disk."""
    if isinstance(data, FeatureSet):
        z = torch.empty(data.shapes["features"], dtype=torch.float32, device=device)
        for start, piece in zip(range(0, len(data), ROWS_AT_ONCE), RowsOnDisk(data, device).pieces(), strict=True):
            z[start : start + len(piece)] = piece
        yield z
    elif data.picks_rows:
        yield RowsOnDisk(data, device)
    else:
        with as_ours("no temporary file could be made", StorageError, OSError, after=f"; {WAYS_OUT}"):
            file = tempfile.TemporaryFile()  # noqa: SIM115
        with file:
            yield _CopiedRows(data, device, file)


class Batches:
    """Batches of ``size`` rows in a known order; of rows on disk the next is read while the device works on this one."""

    def __init__(self, z: Rows, size: int) -> None:
        self.z, self.size = z, size
        self.orders: Tensor | None = None
        self.coming: dict[int, Future[Tensor]] = {}
        self.reader = limited_worker("rows")  # its thread starts with the first read

    def take(self, orders: Tensor, number: int) -> Tensor:
        """The rows (S, B, D) of the batch ``number``, counted from 0, in the orders (S, N) of S fits."""
        if isinstance(self.z, Tensor):
            return self.z[self._of(orders, number)]
        if orders is not self.orders:
            self.orders, self.there, self.coming = orders, orders.cpu(), {}
        found = self.coming.pop(number, None) or self._begin(self.z, number)
        if (number + 2) * self.size <= orders.shape[1]:
            self.coming = {number + 1: self._begin(self.z, number + 1)}
        return self.z.given(found.result())

    def _of(self, orders: Tensor, number: int) -> Tensor:
        return orders[:, number * self.size : (number + 1) * self.size]

    def _begin(self, z: RowsOnDisk, number: int) -> Future[Tensor]:
        return self.reader.submit(z.read, self._of(self.there, number))


def fingerprint_of_rows(z: Rows) -> str:
    """SHA-256 of the rows, the same in memory and on disk."""
    digest = Fingerprint()
    digest.begin("z", z.dtype, tuple(z.shape))
    for piece in [z] if isinstance(z, Tensor) else z.pieces():
        digest.update(piece.cpu())
    return digest.hexdigest()


def projection_for(name: str, z: Rows) -> str:
    """The name of a projection; "auto" is "relu_sphere" where no entry of the training rows is negative, else "sphere"."""
    if name == "auto":
        pieces = [z] if isinstance(z, Tensor) else z.pieces()
        return "relu_sphere" if all(bool((piece >= 0).all()) for piece in pieces) else "sphere"
    require_choice("projection", name, ("auto", *PROJECTIONS))
    return name
