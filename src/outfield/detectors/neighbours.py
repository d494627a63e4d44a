"""The distance to the k-th nearest row, exactly, at about the price of one matrix product.

With c the mean of the rows b, z' = z − c and b' = b − c, the nearest rows have the largest closeness z'·b' − ½ ‖b'‖², which for
all of them is one product; whatever offset the rows share has gone from it before it is rounded. Rounding moves a closeness by
at most E, see :meth:`Neighbours.error`, and so the k-th largest of them, too. A row whose closeness is more than 2 E above the
k-th as computed is certainly nearer than the k-th neighbour, one more than 2 E below is certainly farther; only the few between
them can be it, and their distances are taken from the differences themselves, in float64.

Where too many lie between them to be sure, the product is taken once more in float64, whose E is far smaller; and where not
even that decides, as among many rows that all but coincide, every distance is taken from its difference.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.modes import rounded_products

TABLE_BYTES = {"cpu": 2**28, "cuda": 2**30}
"""Size of the largest table of closenesses held at once."""
BANK_ROWS = 2**16
"""Rows looked at together, at most."""
BANK_NUMBERS = 2**25
"""Numbers of rows looked at together, at most: 256 MiB in float64."""
INDEX_NUMBERS = 2**28
"""Numbers of rows, at most, of which faiss keeps a copy of its own, 1 GiB; larger banks are given to it in pieces."""
FAISS_POINTS = 4096
"""Points that faiss looks at together."""
SPARE = 14
"""How many rows more than k are looked at: as many may lie within rounding of the k-th before a slower way is taken."""
NUMBERS_AT_ONCE = 2**22
"""Numbers of differences held at once."""


class Neighbours:
    """Rows to which distances are asked.

    Args:
        rows: (M, D), float32. They are kept, not copied.
        faiss: let that library look for the nearest rows; for rows on the CPU, where it is installed.
    """

    def __init__(self, rows: Tensor, faiss: bool = False) -> None:
        self.rows, self.faiss = rows, faiss
        self.bank_rows = max(1, min(BANK_ROWS, BANK_NUMBERS // rows.shape[1]))
        pieces = rows.split(self.bank_rows)
        total = torch.stack([piece.sum(0, dtype=torch.float64) for piece in pieces]).sum(0)
        self.centre = (total / len(rows)).float()
        self.half_squares = torch.cat([self.centred(piece, torch.float64).square().sum(1) / 2 for piece in pieces])
        self.radius = float((2 * self.half_squares.max()).sqrt())

    def kth_distance(self, z: Tensor, k: int) -> Tensor:
        """‖z − b_(k)‖ for each point z (N, D) → (N,), float32: the k-th smallest of all, as float64 would give it.

        Args:
            z: points, float32, on the device of the rows.
            k: counted from 1; at most M.
        """
        rounded = rounded_products(z.device) and not self.faiss  # then E says nothing of float32
        types = [torch.float64] if rounded else [torch.float32, torch.float64]
        squares = torch.empty(len(z), dtype=torch.float64, device=z.device)
        left = torch.arange(len(z), device=z.device)
        for dtype in types:
            unsure = [left[:0]]
            for some in _parts(left, self._at_once(dtype)):
                squares[some], sure = self._kth_square(z[some], k, dtype)
                unsure.append(some[~sure])
            left = torch.cat(unsure)
        for some in _parts(left, self._at_once(torch.float64)):
            squares[some] = self._by_differences(z[some], k)
        return squares.sqrt().float()

    def smallest_squares(self, z: Tensor, k: int) -> Tensor:
        """The k smallest ‖z − b‖² of each point z (N, D), or as many as there are rows → (N, min(k, M)), ascending, float64.

        Each is taken from its difference: where rows are shared out, the k smallest of all shares' are those of all rows.

        Args:
            z: points, float32, on the device of the rows.
            k: at least 1.
        """
        k = min(k, len(self.rows))
        rounded = rounded_products(z.device) and not self.faiss  # then E says nothing of float32
        squares = torch.empty(len(z), k, dtype=torch.float64, device=z.device)
        left = torch.arange(len(z), device=z.device)
        for dtype in [torch.float64] if rounded else [torch.float32, torch.float64]:
            unsure = [left[:0]]
            for some in _parts(left, self._at_once(dtype)):
                squares[some], sure = self._smallest(z[some], k, dtype)
                unsure.append(some[~sure])
            left = torch.cat(unsure)
        for some in _parts(left, 1):
            every = self.squares(z[some], some.new_zeros(len(self.rows)), torch.arange(len(self.rows), device=z.device))
            squares[some] = every.sort().values[None, :k]
        return squares

    def _smallest(self, z: Tensor, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The k smallest squares (N, k), of rows found by a product in ``dtype``, and whether they certainly are (N,)."""
        centred = self.centred(z, dtype)
        count = min(k + SPARE, len(self.rows))
        values, index = self._candidates(centred, count)
        points = torch.arange(len(z), device=z.device).repeat_interleave(count)
        squares = self.squares(z, points, index.reshape(-1)).reshape(len(z), count)
        below = values[:, -1].double() - values[:, k - 1].double()
        sure = (below < -2 * self.error(centred, dtype)[:, 0]) | (count == len(self.rows))
        return squares.sort(1).values[:, :k], sure

    def _at_once(self, dtype: torch.dtype) -> int:
        """Points for which there is room in a table of closenesses, which faiss does not hold."""
        if self._by_faiss(dtype):
            return FAISS_POINTS
        row = min(len(self.rows), self.bank_rows) * dtype.itemsize
        return max(1, TABLE_BYTES.get(self.rows.device.type, 2**28) // row)

    def _by_faiss(self, dtype: torch.dtype) -> bool:
        return self.faiss and dtype == torch.float32

    def error(self, z: Tensor, dtype: torch.dtype) -> Tensor:
        """E of each centred point z (N, D) → (N, 1): how far rounding may move a closeness computed in ``dtype``.

        A sum of D products, in whatever order, is off by at most γ ‖z'‖ ‖b'‖ with γ = D u / (1 − D u), u the unit roundoff; the
        offset adds γ ½ ‖b'‖². What rounding z' does to all closenesses alike does not matter; the rest of it, and what rounding
        b' does, is u ‖b'‖ (‖z'‖ + ‖b'‖) at most. Eight more terms in D cover that and the last addition; the last summand is
        for products below the smallest float.
        """
        terms, unit = self.rows.shape[1] + 8, torch.finfo(dtype).eps / 2
        length: Tensor = z.double().norm(dim=1, keepdim=True)
        relative = terms * unit / (1 - terms * unit)
        return relative * self.radius * (length + self.radius) + terms * torch.finfo(dtype).tiny

    def _kth_square(self, z: Tensor, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """‖z − b_(k)‖² (N,), float64, by a product in ``dtype``, and whether it is certainly that (N,)."""
        centred = self.centred(z, dtype)
        count = min(k + SPARE, len(self.rows))
        values, index = self._candidates(centred, count)
        error = self.error(centred, dtype)
        found, above = self.kth_among(z, k, values, index, error)
        # Rows that were not looked at may be nearer, but by 8 E at most: nothing to a float32, or nothing at all.
        all_seen = count == len(self.rows) or above[:, -1:] < -2 * error
        return found[:, 0], (all_seen | (found == 0) | (8 * error <= 2**-26 * found))[:, 0]

    def kth_among(self, z: Tensor, k: int, values: Tensor, index: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """The k-th smallest ‖z − b‖² (N, 1), float64, among some rows of each point z (N, D), from as few differences as will do.

        Args:
            z: Points.
            k: Counted from 1.
            values: Closenesses of the rows as computed (N, count), descending.
            index: The rows (N, count).
            error: How far rounding may have moved a closeness of each point (N, 1).

        Returns:
            The squares, and how far each closeness lies above the k-th as computed (N, count), float64.
        """
        above = values.double() - values[:, k - 1 : k].double()
        near = above.abs() <= 2 * error
        squares = torch.full_like(above, torch.inf)
        points, places = near.nonzero(as_tuple=True)
        squares[points, places] = self.squares(z, points, index[points, places])
        rank = k - 1 - (above > 2 * error).sum(1, keepdim=True)
        return squares.sort(1).values.gather(1, rank), above

    def _candidates(self, z: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The ``count`` largest closenesses of centred points z (N, D), descending, and their rows, both (N, count)."""
        indexed = self._by_faiss(z.dtype) and self.rows.numel() <= INDEX_NUMBERS
        return (self._closest_by_index if indexed else self._closest)(z, count)

    def _closest(self, z: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The same by products with some rows at a time."""
        best = z.new_empty(len(z), 0)
        found = torch.empty(len(z), 0, dtype=torch.int64, device=z.device)
        for start in range(0, len(self.rows), self.bank_rows):
            piece = self.centred(self.rows[start : start + self.bank_rows], z.dtype)
            offsets = -self.half_squares[start : start + self.bank_rows].to(z.dtype)
            if self._by_faiss(z.dtype):
                values, index = _closest_by_faiss(z, piece, offsets, min(count, len(piece)))
            else:
                values, index = torch.addmm(offsets, z, piece.T).topk(min(count, len(piece)), dim=1, sorted=False)
            best, found = torch.cat([best, values], 1), torch.cat([found, index + start], 1)
            best, chosen = best.topk(min(count, best.shape[1]), dim=1)
            found = found.gather(1, chosen)
        return best, found

    def _closest_by_index(self, z: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The same by an index of all rows that faiss keeps."""
        values, index = self._index.search(_with_ones(z), count)
        return torch.from_numpy(values), torch.from_numpy(index)

    @functools.cached_property
    def _index(self) -> Any:
        import faiss

        index = faiss.IndexFlatIP(self.rows.shape[1] + 1)
        for piece, halves in zip(self.rows.split(self.bank_rows), self.half_squares.split(self.bank_rows), strict=True):
            index.add(_with_offsets(self.centred(piece), -halves.float()))
        return index

    def _by_differences(self, z: Tensor, k: int) -> Tensor:
        """‖z − b_(k)‖² (N,) from every difference: exact, and some hundred times as slow."""
        best = torch.empty(len(z), 0, dtype=torch.float64, device=z.device)
        for piece in self.rows.split(self.bank_rows):
            distances = torch.cdist(z.double(), piece.double(), compute_mode="donot_use_mm_for_euclid_dist")
            best = torch.cat([best, distances], 1)
            best = best.topk(min(k, best.shape[1]), dim=1, largest=False).values
        return best[:, -1].square()

    def squares(self, z: Tensor, points: Tensor, rows: Tensor) -> Tensor:
        """‖z_i − b_j‖² of pairs of indices i and j (P,), from the differences, float64."""
        at_once = max(1, NUMBERS_AT_ONCE // z.shape[1])
        pairs = zip(points.split(at_once), rows.split(at_once), strict=True)
        return torch.cat([(z[i].double() - self.rows[j].double()).square().sum(1) for i, j in pairs])

    def centred(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Rows (n, D) less the mean of all rows that are known."""
        return rows.to(dtype) - self.centre.to(dtype)


def _closest_by_faiss(z: Tensor, rows: Tensor, offsets: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest z·b + offset of points z (N, D) and rows b (M, D), and their rows, both (N, count)."""
    import faiss

    values, index = faiss.knn(_with_ones(z), _with_offsets(rows, offsets), count, faiss.METRIC_INNER_PRODUCT)
    return torch.from_numpy(values), torch.from_numpy(index)


def _with_ones(z: Tensor) -> np.ndarray:
    """(z, 1): its inner product with (b, −½ ‖b‖²) is the closeness."""
    extended: np.ndarray = torch.cat([z, z.new_ones(len(z), 1)], 1).numpy()
    return extended


def _with_offsets(rows: Tensor, offsets: Tensor) -> np.ndarray:
    extended: np.ndarray = torch.cat([rows, offsets[:, None]], 1).numpy()
    return extended


def _parts(rows: Tensor, size: int) -> tuple[Tensor, ...]:
    """``rows`` (N,) in parts of ``size``; no part where there are none."""
    return rows.split(size) if len(rows) else ()
