"""What several detectors make of the same rows, made once.

The members of a sum look at the same fields, and many of them begin alike: rows are normalised, logits become float64. Rows that
are :func:`shared` keep what :func:`once` makes of them, for as long as they are there themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Make = Callable[[Tensor], Tensor]


def shared(rows: Tensor, start: int, stop: int) -> Tensor:
    """The rows from ``start`` to ``stop`` as a view that keeps what is made of it."""
    if start == 0 and stop >= len(rows) and hasattr(rows, "outfield_made"):
        return rows  # of a sum within a sum
    return _keeping(rows[start:stop])


def once(make: Make, rows: Tensor) -> Tensor:
    """``make(rows)``; of shared rows what was made the first time, which is shared, too, and which nobody may change.

    Args:
        make: a function with a name of its own, by which its result is found again.
        rows: a field (n, D), or what ``once`` made of one.
    """
    made: dict[Make, Tensor] | None = getattr(rows, "outfield_made", None)
    if made is None:
        return make(rows)
    if make not in made:
        found = make(rows)
        if found is rows:  # it is as it should be already, and would keep itself
            return rows
        made[make] = _keeping(found)
    return made[make]


def _keeping(rows: Tensor) -> Tensor:
    rows.outfield_made = {}  # type: ignore[attr-defined]
    return rows


def wide(rows: Tensor) -> Tensor:
    """The rows as float64."""
    return rows.double()


def log_total(rows: Tensor) -> Tensor:
    """log Σ_c exp(l_c) of each row l (n, K) → (n,), float64."""
    return once(wide, rows).logsumexp(1)
