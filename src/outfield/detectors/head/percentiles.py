"""Exact percentiles of more numbers than fit into memory, by counting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

BITS = 16
"""How many bits of a number one pass finds."""
SHIFTS = (48, 32, 16, 0)
"""Where they stand in it, pass by pass."""
LOW_BITS = torch.iinfo(torch.int64).max
"""All bits but the sign."""


def percentiles(pieces: Callable[[], Iterable[Tensor]], wanted: Sequence[float]) -> list[float]:
    """Percentiles of all numbers, exact: those of ``numpy.percentile``, with a line between neighbouring numbers.

    A float64 and the integer that its bits spell are in the same order (once negative ones are turned around), so that four
    passes, each counting the next 16 bits of those numbers that agree with what is known, find the number of any rank. Memory
    is 65,536 counters for each rank.

    Args:
        pieces: Gives the same floating numbers, finite and at least one, in tensors of any shape, each time that it is called.
        wanted: From 0 to 100 each.
    """
    total = sum(piece.numel() for piece in pieces())
    positions = [(total - 1) * percent / 100 for percent in wanted]
    ranks = sorted({int(rank) for position in positions for rank in (math.floor(position), math.ceil(position))})
    found = dict(zip(ranks, _of_ranks(pieces, ranks), strict=True))
    results = []
    for position in positions:
        low, high = found[math.floor(position)], found[math.ceil(position)]
        results.append(low + (high - low) * (position - math.floor(position)))
    return results


def _of_ranks(pieces: Callable[[], Iterable[Tensor]], ranks: Sequence[int]) -> list[float]:
    """The numbers of these ranks, from 0 for the smallest."""
    known = [0] * len(ranks)  # the first bits of each number, as an integer
    rest = list(ranks)  # the rank among the numbers that begin so
    for shift in SHIFTS:
        first = shift == SHIFTS[0]
        lowest = -(1 << (BITS - 1)) if first else 0  # the first bits have a sign
        counts: dict[int, Tensor] = {}
        for piece in pieces():
            keys = _ordered(piece)
            for begin in set(known):
                here = keys if first else keys[(keys >> (shift + BITS)) == begin]
                digits = (here >> shift) - (begin << BITS) - lowest
                count = torch.bincount(digits, minlength=1 << BITS).cpu()
                counts[begin] = counts[begin] + count if begin in counts else count
        for i, begin in enumerate(known):
            below = counts[begin].cumsum(0)
            digit = int(torch.searchsorted(below, rest[i], right=True))
            rest[i] -= int(below[digit - 1]) if digit else 0
            known[i] = (begin << BITS) + digit + lowest
    return [float(value) for value in _numbers(torch.tensor(known, dtype=torch.int64))]


def _ordered(piece: Tensor) -> Tensor:
    """Integers (n,) in the order of the numbers."""
    bits = piece.reshape(-1).double().contiguous().view(torch.int64)
    return torch.where(bits < 0, bits ^ LOW_BITS, bits)


def _numbers(keys: Tensor) -> Tensor:
    """What :func:`_ordered` was made of."""
    return torch.where(keys < 0, keys ^ LOW_BITS, keys).view(torch.float64)
