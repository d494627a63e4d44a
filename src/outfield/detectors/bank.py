"""Training rows that are kept, and cosines to them, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from outfield.energy.projection import normalise
from outfield.features.set import FeatureSource

BANK_ROWS = 4096
"""Rows of a bank that are looked at together."""
KEPT = 2**23
"""Numbers of a bank, at most, whose directions are kept: for a single image they would cost more than all else."""


def fill(table: Tensor, train: FeatureSource, field: str, size: int, made: Callable[[Tensor], Tensor]) -> Tensor:
    """``table`` (N, …), its rows filled with what ``made`` makes of a field, which is read ``size`` rows at a time."""
    done = 0
    for piece in train.batches(size, (field,)):
        rows = made(piece[field].to(table.device))
        table[done : done + len(rows)] = rows
        done += len(rows)
    return table


def directions(rows: Tensor) -> Tensor:
    """Rows (N, D) as float64 of length 1; a zero row stays zero."""
    return functional.normalize(rows.double(), dim=1, eps=torch.finfo(torch.float64).tiny)


def cosines(features: Tensor, bank: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The cosines of features (n, D) to the rows of a bank (M, D), in pieces of it: which rows, and a table (n, m), float64."""
    z = directions(normalise(features))
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
