"""Normalised training rows: a tensor on the device, or rows on disk that are read as they are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from outfield.energy.copied import ROWS_AT_ONCE, copied
from outfield.energy.projection import normalise, resolve
from outfield.features.set import FeatureSet, FeatureSource
from outfield.files import storage


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
        rows = self.source.rows(index.flatten().cpu(), ["features"])["features"]
        return normalise(rows.to(self.device)).view(*index.shape, -1)

    def pieces(self) -> Iterator[Tensor]:
        """All rows, in order."""
        for piece in self.source.batches(ROWS_AT_ONCE, ["features"]):
            yield normalise(piece["features"].to(self.device))


Rows = Tensor | RowsOnDisk


@contextlib.contextmanager
def rows_of(data: FeatureSource, device: torch.device) -> Iterator[Rows]:
    """The normalised features of ``data``: on the device, or, of a stream, on disk.

    Rows of a Parquet or compressed file cannot be picked one by one, so its features are first copied to a temporary file.
    """
    if isinstance(data, FeatureSet):
        z = torch.empty(data.shapes["features"], dtype=torch.float32, device=device)
        for start, piece in zip(range(0, len(data), ROWS_AT_ONCE), RowsOnDisk(data, device).pieces(), strict=True):
            z[start : start + len(piece)] = piece
        yield z
    elif not data.picks_rows:
        with copied(data) as copy:
            yield RowsOnDisk(copy, device)
    else:
        yield RowsOnDisk(data, device)


def fingerprint(z: Rows) -> str:
    """SHA-256 of the rows, the same in memory and on disk."""
    digest = storage.Fingerprint()
    digest.begin("z", z.dtype, tuple(z.shape))
    for piece in [z] if isinstance(z, Tensor) else z.pieces():
        digest.update(piece.cpu())
    return digest.hexdigest()


def projection_for(name: str, z: Rows) -> str:
    """:func:`outfield.energy.projection.resolve` for rows in memory or on disk: one that takes "auto" looks at all of them."""
    pieces = [z] if isinstance(z, Tensor) else z.pieces()
    resolved = {resolve(name, piece) for piece in pieces} if name == "auto" else {resolve(name, z[:1])}
    return "sphere" if resolved == {"sphere", "relu_sphere"} else resolved.pop()
