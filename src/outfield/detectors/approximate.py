"""The distance to the k-th nearest row among those that an index of faiss finds, for banks too large to look at all of them.

An index looks at a part of the rows, so that a neighbour may be missed and the distance be too large, never too small. Which
part is decided by distances between rows less their mean, in float32; the distances that are given come from the differences
themselves, in float64, so that an offset which all rows share spoils neither.

- "ivf": rows are put into √N lists by k-means, and the lists with the nearest centres are looked at.
- "hnsw": a graph of near rows is followed from row to row. Threads build it together, so that two builds may differ.

The index is made anew from the rows whenever it is needed: what a file holds is never handed to faiss's reader.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from outfield.detectors.neighbours import SPARE, Neighbours
from outfield.extras import library

INDEXES = ("ivf", "hnsw")
LEAST_IN_A_LIST = 39
"""Rows that k-means wants for each centre; faiss complains of fewer."""
MOST_FOR_A_LIST = 64
"""Rows of which k-means learns a centre, at most."""
LINKS = 32
"""Links of a row in the graph."""


class ApproximateNeighbours:
    """Rows to which distances are asked, on the CPU.

    Args:
        rows: (M, D), float32. They are kept, not copied, but faiss keeps a copy of its own.
        kind: "ivf" or "hnsw".
        probes: How many lists, or rows on the way, are looked at; 0 for a sixteenth of the lists, or twice as many rows as are
            asked for and 64 at least.
    """

    def __init__(self, rows: Tensor, kind: str, probes: int = 0) -> None:
        self.all = Neighbours(rows.cpu())
        self.kind, self.probes = kind, probes
        self.index = _ivf(self.all) if kind == "ivf" else _hnsw(self.all)

    def kth_distance(self, z: Tensor, k: int) -> Tensor:
        """The k-th smallest distance of points z (N, D) to the rows that are found (N,), float32, where z is.

        Points for which fewer than k rows are found are compared with all rows.
        """
        points = z.cpu()
        centred = self.all.centred(points)
        values, index = self._search(centred, k)
        known = index[:, k - 1] >= 0
        found = torch.empty(len(points), dtype=torch.float32)
        some = known.nonzero()[:, 0]
        squares, _ = self.all.kth_among(points[some], k, values[some], index[some], self.error(centred[some]))
        found[some] = squares[:, 0].sqrt().float()
        if len(some) < len(points):
            found[~known] = self.all.kth_distance(points[~known], k)
        return found.to(z.device)

    def distances(self, z: Tensor, k: int) -> Tensor:
        """Distances to the nearest rows that are found (N, at least k), ascending, float64, infinite where there are too few."""
        points = z.cpu()
        _, index = self._search(self.all.centred(points), k)
        squares = torch.full(index.shape, torch.inf, dtype=torch.float64)
        which, place = (index >= 0).nonzero(as_tuple=True)
        squares[which, place] = self.all.squares(points, which, index[which, place])
        return squares.sqrt().sort(1).values

    def error(self, z: Tensor) -> Tensor:
        """How far rounding may move −½ ‖z' − b'‖² of each centred point z' (N, D), in whatever order it is summed → (N, 1).

        With γ as in :meth:`Neighbours.error` the sum is off by γ ‖z' − b'‖² at most, and what rounding z' and b' does to the
        differences adds less than that for (‖z'‖ + ‖b'‖)², which is larger.
        """
        terms, unit = z.shape[1] + 8, torch.finfo(torch.float32).eps / 2
        length: Tensor = z.double().norm(dim=1, keepdim=True)
        return terms * unit / (1 - terms * unit) * (length + self.all.radius).square()

    def _search(self, centred: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """−½ ‖z' − b'‖² of the rows that are found, descending, and the rows, −1 where there are no more: both (N, count)."""
        count = min(k + SPARE, len(self.all.rows))
        self._look_at(count)
        squares, index = self.index.search(centred.numpy(), count)
        return torch.from_numpy(squares) / -2, torch.from_numpy(index)

    def _look_at(self, count: int) -> None:
        if self.kind == "ivf":
            self.index.nprobe = self.probes or math.ceil(self.index.nlist / 16)
        else:
            self.index.hnsw.efSearch = max(count, self.probes or max(2 * count, 64))


def _ivf(known: Neighbours) -> Any:
    """Lists of rows by their nearest centre; centres are learned from rows spread evenly over all."""
    faiss: Any = library("faiss", extra="faiss")
    count, width = known.rows.shape
    lists = max(1, min(math.isqrt(count), count // LEAST_IN_A_LIST))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(width), width, lists)
    chosen = torch.linspace(0, count - 1, min(count, MOST_FOR_A_LIST * lists), dtype=torch.float64).long()
    index.train(known.centred(known.rows[chosen]).numpy())
    return _filled(index, known)


def _hnsw(known: Neighbours) -> Any:
    faiss: Any = library("faiss", extra="faiss")
    return _filled(faiss.IndexHNSWFlat(known.rows.shape[1], LINKS), known)


def _filled(index: Any, known: Neighbours) -> Any:
    for piece in known.rows.split(known.bank_rows):
        index.add(known.centred(piece).numpy())
    return index
