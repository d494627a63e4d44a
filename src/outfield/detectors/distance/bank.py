"""Detectors that keep all training rows as a bank, and cosines to its rows, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from outfield.detectors.base import Detector, once
from outfield.detectors.distance.neighbours import ApproximateNeighbours, Neighbours, merged
from outfield.energy import normalise
from outfield.errors import FileFormatError, TooFewSamplesError
from outfield.features import FeatureSource
from outfield.modes import rounded_products

BANK_ROWS = 4096  # rows of a bank that are looked at together
# numbers of a bank, at most, whose directions are kept: for a single image they would cost more than all else
KEPT = 2**23
TABLE = 2**24  # numbers of a float32 table of cosines that are held at once, where a bank has more than BANK_ROWS rows
SPARE = 10  # how many rows more than k are looked at closely: as many may lie within rounding of the k-th
NUMBERS = 2**22  # numbers of rows that are looked at closely at once


class BankDetector(Detector):
    """Base of the detectors that keep all training rows, normalised, as ``bank_`` (N, D), float32."""

    fits_in_pieces = True
    learned: ClassVar[tuple[str, ...]] = ("bank float32 N D",)

    k: int = 1
    """How many rows there must be at least; a setting of some."""

    _made: Neighbours | ApproximateNeighbours | None = None

    def _fit(self, train: FeatureSource) -> None:
        if self.k > len(train):
            raise TooFewSamplesError(f"k is {self.k} but there are only {len(train)} training samples; lower k")
        self.bank_, self._made = self._gathered(train, "features", normalise), None

    def _gathered(self, train: FeatureSource, field: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What ``make`` makes of a field of all rows (N, …), which is read piece by piece."""
        table, done = torch.empty(0), 0
        for piece in train.batches(self.rows_at_once, (field,)):
            rows = make(piece[field].to(self.device))
            table = table if done else rows.new_empty(len(train), *rows.shape[1:])
            table[done : done + len(rows)] = rows
            done += len(rows)
        return table

    @property
    def _neighbours(self) -> Neighbours | ApproximateNeighbours:
        """The bank as distances are asked of it; made when it is first needed, on the device."""
        if self._made is None:
            self._made = self._search()
        return self._made

    def _search(self) -> Neighbours | ApproximateNeighbours:
        return Neighbours(self.bank_)

    def _moved(self) -> None:
        super()._moved()
        self._made = None

    def _load_state(self, state: dict[str, Tensor]) -> None:
        super()._load_state(state)
        if self.k > len(self.bank_):
            raise FileFormatError(f"k is {self.k}, but bank has {len(self.bank_)} rows")


def directions(rows: Tensor) -> Tensor:
    """Rows (…, D) as float64 of length 1; a zero row stays zero."""
    return functional.normalize(rows.double(), dim=-1, eps=torch.finfo(torch.float64).tiny)


def cosines(features: Tensor, bank: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The cosines of features (n, D) to the rows of a bank (M, D), in pieces of it: which rows, and a table (n, m), float64."""
    z = once(directions, once(normalise, features))
    done = 0
    for piece in _directions_of(bank):
        there = piece.to(z.device)
        yield slice(done, done + len(there)), z @ there.T
        done += len(there)


def _directions_of(bank: Tensor) -> Iterable[Tensor]:
    """:func:`directions` of a bank in pieces; those of a small one are computed once and kept with it."""
    pieces = (directions(piece) for piece in bank.split(BANK_ROWS))
    if bank.numel() > KEPT:
        return pieces
    kept: list[Tensor] | None = getattr(bank, "outfield_directions", None)
    if kept is None:
        kept = [*pieces]
        bank.outfield_directions = kept  # type: ignore[attr-defined]
    return kept


def largest_weighted(features: Tensor, bank: Tensor, weights: Tensor, k: int) -> Tensor:
    """The k largest w_i cos(z, b_i) of each row z of features (n, D) over a bank (M, D) → (n, k), float64, descending.

    On a CPU a product in float32 finds k + 10 rows of the bank, and float64 decides between those. Rounding moves a product of
    two rows by (D + 8) u at most, u the unit roundoff, and each of their lengths by half of that: where the last of the rows that
    were found is not farther than twice that below the k-th, others might be as large, and all are looked at in float64.
    """
    count = k + SPARE
    if bank.device.type != "cpu" or count >= len(bank) or rounded_products(bank.device):
        return _largest_of_all(features, bank, weights, k)
    z = once(normalise, features)
    values, index = merged(_in_float32(z, bank, weights.float(), count), count)
    found = _looked_at_closely(once(directions, z), bank, weights, index).topk(k, dim=1).values
    error = 2 * (bank.shape[1] + 8) * (torch.finfo(torch.float32).eps / 2) * weights.abs().amax()
    # Unsure also where a weight is too large for float32.
    unsure = ~(values[:, k - 1].double() - values[:, -1].double() > 2 * error)
    if bool(unsure.any()):
        found[unsure] = _largest_of_all(features[unsure], bank, weights, k)
    return found


def _largest_of_all(features: Tensor, bank: Tensor, weights: Tensor, k: int) -> Tensor:
    tables = (table * weights[part] for part, table in cosines(features, bank))
    return merged((table.topk(min(k, table.shape[1]), dim=1) for table in tables), k)[0]


def _in_float32(z: Tensor, bank: Tensor, weights: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The largest w_i z·b_i as float32 gives them, and their rows, of some rows at a time."""
    size = max(BANK_ROWS, TABLE // len(z))
    for start in range(0, len(bank), size):
        table = (z @ bank[start : start + size].T).mul_(weights[start : start + size])
        values, index = table.topk(min(count, table.shape[1]), dim=1)
        yield values, index + start


def _looked_at_closely(z: Tensor, bank: Tensor, weights: Tensor, index: Tensor) -> Tensor:
    """w_i cos(z, b_i) of each direction z (n, D) and some rows of the bank, index (n, c) → (n, c), float64."""
    at_once = max(1, NUMBERS // (index.shape[1] * z.shape[1]))
    parts = zip(z.split(at_once), index.split(at_once), strict=True)
    return torch.cat([(directions(bank[i]) @ some[:, :, None])[:, :, 0] * weights[i] for some, i in parts])
