"""The distance to the k-th nearest row, exactly, at about the price of one matrix product.

With c the mean of the rows b, z' = z − c and b' = b − c, the nearest rows have the largest closeness z'·b' − ½ ‖b'‖², which for
all of them is one product; whatever offset the rows share has gone from it before it is rounded. Rounding moves a closeness by
at most E, see :meth:`Neighbours.error`, and so the k-th largest of them, too. A row whose closeness is more than 2 E above the
k-th as computed is certainly nearer than the k-th neighbour, one more than 2 E below is certainly farther; only the few between
them can be it, and their distances are taken from the differences themselves, in float64.

Where too many lie between them to be sure, the product is taken once more in float64, whose E is far smaller; and where not
even that decides, as among many rows that all but coincide, every distance is taken from its difference.

For banks too large to look at all rows, :class:`ApproximateNeighbours` lets an index of faiss find most of the nearest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from outfield.config import require_number
from outfield.detectors.base import Detector
from outfield.errors import TooFewSamplesError
from outfield.extras import library
from outfield.features import FeatureSource, normalise
from outfield.modes import rounded_products

TABLE_BYTES = {"cpu": 2**28, "cuda": 2**30}  # size of the largest table of closenesses held at once
BANK_ROWS = 2**16  # rows looked at together, at most
BANK_NUMBERS = 2**25  # numbers of rows looked at together, at most: 256 MiB in float64
# numbers of rows, at most, of which faiss keeps a copy of its own, 1 GiB; it gains nothing on larger banks
INDEX_NUMBERS = 2**28
FAISS_POINTS = 4096  # points that faiss looks at together
# how many rows more than k are looked at: as many may lie within rounding of the k-th before a slower way is taken
SPARE = 14
NUMBERS_AT_ONCE = 2**22  # numbers of differences held at once
# of faiss: lists of rows by k-means, of which those with the nearest centres are looked at; a graph of near rows
INDEXES = ("ivf", "hnsw")
LEAST_IN_A_LIST = 39  # rows that k-means wants for each centre; faiss complains of fewer
MOST_FOR_A_LIST = 64  # rows of which k-means learns a centre, at most
LINKS = 32  # links of a row in the graph


class Neighbours:
    """Rows (M, D), float32, kept and not copied, to which exact distances are asked; on the CPU faiss may look for them."""

    def __init__(self, rows: Tensor, faiss: bool = False) -> None:
        self.rows, self.faiss = rows, faiss and rows.numel() <= INDEX_NUMBERS
        self.bank_rows = max(1, min(BANK_ROWS, BANK_NUMBERS // rows.shape[1]))
        pieces = rows.split(self.bank_rows)
        total = torch.stack([piece.sum(0, dtype=torch.float64) for piece in pieces]).sum(0)
        self.centre = (total / len(rows)).float()
        self.half_squares = torch.cat([self.centred(piece, torch.float64).square().sum(1) / 2 for piece in pieces])
        self.radius = float((2 * self.half_squares.max()).sqrt())

    def kth_distance(self, z: Tensor, k: int) -> Tensor:
        """‖z − b_(k)‖ of each point z (N, D), float32 → (N,), float32, k counted from 1: as float64 would give it."""
        squares = torch.empty(len(z), 1, dtype=torch.float64, device=z.device)
        left = torch.arange(len(z), device=z.device)
        rounded = rounded_products(z.device) and not self.faiss  # then E says nothing of float32
        for dtype in [torch.float64] if rounded else [torch.float32, torch.float64]:
            unsure = [left[:0]]
            for some in _parts(left, self._at_once(dtype)):
                squares[some], sure = self._kth_square(z[some], k, dtype)
                unsure.append(some[~sure])
            left = torch.cat(unsure)
        for some in _parts(left, self._at_once(torch.float64)):
            squares[some] = self._by_differences(z[some], k)
        return squares[:, 0].sqrt().float()

    def _kth_square(self, z: Tensor, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """‖z − b_(k)‖² (N, 1), float64, by a product in ``dtype``, and whether it is certainly that (N,)."""
        values, index, error = self._candidates(z, k, dtype)
        above = values.double() - values[:, k - 1 : k].double()
        points, places = (above.abs() <= 2 * error).nonzero(as_tuple=True)
        squares = torch.full_like(above, torch.inf)
        squares[points, places] = self.squares(z, points, index[points, places])
        rank = k - 1 - (above > 2 * error).sum(1, keepdim=True)
        found = squares.sort(1).values.gather(1, rank)
        # Rows that were not looked at may be nearer, but by 8 E at most: nothing to a float32, or nothing at all.
        all_seen = values.shape[1] == len(self.rows) or above[:, -1:] < -2 * error
        return found, (all_seen | (found == 0) | (8 * error <= 2**-26 * found))[:, 0]

    def _by_differences(self, z: Tensor, k: int) -> Tensor:
        """The same from every difference: exact, and some hundred times as slow."""
        best = torch.empty(len(z), 0, dtype=torch.float64, device=z.device)
        for piece in self.rows.split(self.bank_rows):
            distances = torch.cdist(z.double(), piece.double(), compute_mode="donot_use_mm_for_euclid_dist")
            best = torch.cat([best, distances], 1)
            best = best.topk(min(k, best.shape[1]), dim=1, largest=False).values
        return best[:, -1:].square()

    def error(self, z: Tensor, dtype: torch.dtype) -> Tensor:
        """E of each centred point z (N, D) → (N, 1): how far rounding may move a closeness computed in ``dtype``.

        A sum of D products, in whatever order, is off by at most γ ‖z'‖ ‖b'‖, with γ = n u / (1 − n u), u the unit roundoff and
        n = D + 8; the offset adds γ ½ ‖b'‖².
        What rounding z' does to all closenesses alike does not matter; the rest of it, and what rounding b' does, is
        u ‖b'‖ (‖z'‖ + ‖b'‖) at most. The last summand is for products below the smallest float.
        """
        length: Tensor = z.double().norm(dim=1, keepdim=True)
        least = (z.shape[1] + 8) * torch.finfo(dtype).tiny
        share = (z.shape[1] + 8) * torch.finfo(dtype).eps / 2
        return share / (1 - share) * self.radius * (length + self.radius) + least

    def _candidates(self, z: Tensor, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """The largest closenesses of each point, :data:`SPARE` more than k where there are, descending, their rows, and E."""
        centred, count = self.centred(z, dtype), min(k + SPARE, len(self.rows))
        if self._by_faiss(dtype):
            found = self._index.search(_with_column(centred, centred.new_ones(len(centred))), count)
            values, index = map(torch.from_numpy, found)
        else:
            values, index = merged(self._closest(centred, count), count)
        return values, index, self.error(centred, dtype)

    def _closest(self, z: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The largest closenesses of centred points, and their rows, of some rows at a time."""
        for start in range(0, len(self.rows), self.bank_rows):
            piece = self.centred(self.rows[start : start + self.bank_rows], z.dtype)
            offsets = -self.half_squares[start : start + self.bank_rows].to(z.dtype)
            values, index = torch.addmm(offsets, z, piece.T).topk(min(count, len(piece)), dim=1)
            yield values, index + start

    def _by_faiss(self, dtype: torch.dtype) -> bool:
        return self.faiss and dtype == torch.float32

    def _at_once(self, dtype: torch.dtype) -> int:
        """Points for which there is room in a table of closenesses, which faiss does not hold."""
        if self._by_faiss(dtype):
            return FAISS_POINTS
        row = min(len(self.rows), self.bank_rows) * dtype.itemsize
        return max(1, TABLE_BYTES.get(self.rows.device.type, 2**28) // row)

    @functools.cached_property
    def _index(self) -> Any:
        faiss: Any = library("faiss", extra="faiss")
        index = faiss.IndexFlatIP(self.rows.shape[1] + 1)
        for piece, halves in zip(self.rows.split(self.bank_rows), self.half_squares.split(self.bank_rows), strict=True):
            index.add(_with_column(self.centred(piece), -halves.float()))
        return index

    def squares(self, z: Tensor, points: Tensor, rows: Tensor) -> Tensor:
        """‖z_i − b_j‖² of pairs of indices i and j (P,), from the differences, float64."""
        at_once = max(1, NUMBERS_AT_ONCE // z.shape[1])
        pairs = zip(points.split(at_once), rows.split(at_once), strict=True)
        return torch.cat([(z[i].double() - self.rows[j].double()).square().sum(1) for i, j in pairs])

    def centred(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Rows (n, D) less the mean of all rows that are known."""
        return rows.to(dtype) - self.centre.to(dtype)


class ApproximateNeighbours:
    """Rows (M, D), float32, to which distances are asked on the CPU; faiss looks at a part of them, so that one may be too large.

    Which part is decided by distances between rows less their mean, in float32; the distances that are given come from the
    differences themselves, in float64, so that an offset which all rows share spoils neither. The index is built from the rows:
    what a file holds is never handed to faiss's reader. Threads build a graph together, so that two builds may differ.
    """

    def __init__(self, rows: Tensor, kind: str, probes: int = 0) -> None:
        faiss: Any = library("faiss", extra="faiss")
        self.all, self.kind, self.probes = Neighbours(rows.cpu()), kind, probes
        count, width = rows.shape
        if kind == "ivf":
            lists = max(1, min(math.isqrt(count), count // LEAST_IN_A_LIST))
            self.index = faiss.IndexIVFFlat(faiss.IndexFlatL2(width), width, lists)
            chosen = torch.linspace(0, count - 1, min(count, MOST_FOR_A_LIST * lists), dtype=torch.float64).long()
            self.index.train(self.all.centred(self.all.rows[chosen]).numpy())
        else:
            self.index = faiss.IndexHNSWFlat(width, LINKS)
        for piece in self.all.rows.split(self.all.bank_rows):
            self.index.add(self.all.centred(piece).numpy())

    def kth_distance(self, z: Tensor, k: int) -> Tensor:
        """As :meth:`Neighbours.kth_distance`, of the rows that are found; of all rows where those are fewer than k."""
        found = self.distances(z, k)[:, k - 1].float()
        if len(few := found.isinf().nonzero()[:, 0]):
            found[few] = self.all.kth_distance(z.cpu()[few], k)
        return found.to(z.device)

    def distances(self, z: Tensor, k: int) -> Tensor:
        """Distances to the nearest rows that are found (N, at least k), ascending, float64, infinite where there are too few."""
        points = z.cpu()
        count = min(k + SPARE, len(self.all.rows))
        if self.kind == "ivf":
            self.index.nprobe = self.probes or math.ceil(self.index.nlist / 16)
        else:
            self.index.hnsw.efSearch = max(count, self.probes or max(2 * count, 64))
        index = torch.from_numpy(self.index.search(self.all.centred(points).numpy(), count)[1])
        squares = torch.full(index.shape, torch.inf, dtype=torch.float64)
        which, place = (index >= 0).nonzero(as_tuple=True)
        squares[which, place] = self.all.squares(points, which, index[which, place])
        return squares.sqrt().sort(1).values


class BankDetector(Detector):
    """Base of the detectors that keep all training rows, normalised, as ``bank_`` (N, D), float32."""

    fits_in_pieces = True
    learned: ClassVar[tuple[str, ...]] = ("bank float32 N D",)

    k: int = 1  # how many rows there must be at least; a setting of some

    def _check_settings(self) -> None:
        require_number("k", self.k, least=1, whole=True)

    def _fit(self, train: FeatureSource) -> None:
        if self.k > len(train):
            raise TooFewSamplesError(f"k is {self.k} but there are only {len(train)} training samples; lower k")
        self._keep(self._gathered(train, "features", normalise))

    def _keep(self, bank: Tensor) -> None:
        self.bank_ = bank
        self._moved()

    def _gathered(self, train: FeatureSource, field: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What ``make`` makes of a field of all rows (N, …), which is read piece by piece."""
        table, done = torch.empty(0), 0
        for rows in (make(piece) for (piece,) in self._read(train, field)):
            table = table if done else rows.new_empty(len(train), *rows.shape[1:])
            table[done : done + len(rows)] = rows
            done += len(rows)
        return table

    @functools.cached_property
    def _neighbours(self) -> Neighbours | ApproximateNeighbours:
        """The bank as distances are asked of it; made when it is first needed, on the device."""
        return Neighbours(self.bank_)

    def _moved(self) -> None:
        super()._moved()
        self.__dict__.pop("_neighbours", None)


def merged(pieces: Iterable[tuple[Tensor, Tensor]], count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest values of all pieces (n, m), descending, and the indices that came with them."""

    def both(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        values = torch.cat([one[0], other[0]], 1)
        values, chosen = values.topk(min(count, values.shape[1]), dim=1)
        return values, torch.cat([one[1], other[1]], 1).gather(1, chosen)

    return functools.reduce(both, pieces)


def _with_column(rows: Tensor, column: Tensor) -> np.ndarray:
    """For faiss: the inner product of (z, 1) and (b, −½ ‖b‖²) is the closeness."""
    return torch.cat([rows, column[:, None]], 1).numpy()


def _parts(rows: Tensor, size: int) -> tuple[Tensor, ...]:
    return rows.split(size) if len(rows) else ()
