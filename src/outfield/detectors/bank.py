"""Training rows that are kept, and cosines to them, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from outfield.detectors.once import once
from outfield.energy.projection import normalise
from outfield.features.set import FeatureSource
from outfield.modes import rounded_products

BANK_ROWS = 4096
"""Rows of a bank that are looked at together."""
KEPT = 2**23
"""Numbers of a bank, at most, whose directions are kept: for a single image they would cost more than all else."""
TABLE = 2**24
"""Numbers of a float32 table of cosines that are held at once, where a bank has more than BANK_ROWS rows."""
SPARE = 10
"""How many rows more than k are looked at closely: as many may lie within rounding of the k-th."""
NUMBERS = 2**22
"""Numbers of rows that are looked at closely at once."""


def fill(table: Tensor, train: FeatureSource, field: str, size: int, made: Callable[[Tensor], Tensor]) -> Tensor:
    """``table`` (N, …), its rows filled with what ``made`` makes of a field, which is read ``size`` rows at a time."""
    done = 0
    for piece in train.batches(size, (field,)):
        rows = made(piece[field].to(table.device))
        table[done : done + len(rows)] = rows
        done += len(rows)
    return table


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

    Args:
        features: in any length.
        bank: normalised rows, float32, at least k.
        weights: w_i (M,), float64, of either sign.
        k: at least 1.
    """
    count = k + SPARE
    if bank.device.type != "cpu" or count >= len(bank) or rounded_products(bank.device):
        return _largest_of_all(features, bank, weights, k)
    z = once(normalise, features)
    values, index = _largest_in_float32(z, bank, weights.float(), count)
    found = _looked_at_closely(once(directions, z), bank, weights, index).topk(k, dim=1).values
    error = 2 * (bank.shape[1] + 8) * (torch.finfo(torch.float32).eps / 2) * weights.abs().amax()
    unsure = ~(
        values[:, k - 1].double() - values[:, -1].double() > 2 * error
    )  # also where a weight is too large for float32
    if bool(unsure.any()):
        found[unsure] = _largest_of_all(features[unsure], bank, weights, k)
    return found


def _largest_of_all(features: Tensor, bank: Tensor, weights: Tensor, k: int) -> Tensor:
    best = torch.empty(len(features), 0, dtype=torch.float64, device=bank.device)
    for part, table in cosines(features, bank):
        best = torch.cat([best, table * weights[part]], 1)
        best = best.topk(min(k, best.shape[1]), dim=1).values
    return best


def _largest_in_float32(z: Tensor, bank: Tensor, weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest w_i z·b_i as float32 gives them, descending, and their rows, both (n, count)."""
    size = max(BANK_ROWS, TABLE // len(z))
    best, found = z.new_empty(len(z), 0), torch.empty(len(z), 0, dtype=torch.int64)
    for start in range(0, len(bank), size):
        table = (z @ bank[start : start + size].T).mul_(weights[start : start + size])
        values, index = table.topk(min(count, table.shape[1]), dim=1)
        if start == 0:
            best, found = values, index
            continue
        best = torch.cat([best, values], 1)
        best, chosen = best.topk(min(count, best.shape[1]), dim=1)
        found = torch.cat([found, index + start], 1).gather(1, chosen)
    return best, found


def _looked_at_closely(z: Tensor, bank: Tensor, weights: Tensor, index: Tensor) -> Tensor:
    """w_i cos(z, b_i) of each direction z (n, D) and some rows of the bank, index (n, c) → (n, c), float64."""
    at_once = max(1, NUMBERS // (index.shape[1] * z.shape[1]))
    parts = zip(z.split(at_once), index.split(at_once), strict=True)
    return torch.cat([(directions(bank[i]) @ some[:, :, None])[:, :, 0] * weights[i] for some, i in parts])
