"""One fit by several processes: each takes its share of every batch, and gradients are added up over all of them.

Every process draws the random numbers of the whole batch from the same generator and uses those of its own rows, so that a row's
chain is the same whoever follows it: the result is that of one process up to rounding, for any number of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from outfield.energy.chains import Random
from outfield.errors import InputError


@dataclass(frozen=True)
class Share:
    """Which of several processes this is.

    Attributes:
        rank: counted from 0.
        count: how many there are.
    """

    rank: int
    count: int

    def rows(self, n: int) -> slice:
        """Its rows of a batch of n.

        >>> [Share(rank, 3).rows(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
        """
        return slice(n * self.rank // self.count, n * (self.rank + 1) // self.count)

    def add_up(self, tensor: Tensor) -> None:
        """Put the sum over all processes in the place of a tensor."""
        distributed.all_reduce(tensor)

    def joined(self, rows: Tensor, n: int) -> Tensor:
        """The rows (n, D) of a batch, of which this process has its share."""
        whole = rows.new_zeros(n, *rows.shape[1:])
        whole[self.rows(n)] = rows
        self.add_up(whole)
        return whole

    def check_equal(self, digest: str, what: str) -> None:
        """Refuse to begin where processes have different data.

        Raises:
            InputError: a digest is not that of the other processes.
        """
        found: list[str] = [""] * self.count
        distributed.all_gather_object(found, digest)
        if len(set(found)) > 1:
            raise InputError(f"{what} are not the same in all {self.count} processes; give each of them the same data")


_CURRENT: ContextVar[Share | None] = ContextVar("share", default=None)


def current() -> Share | None:
    """This process's share of fits that are made now; None where each process fits for itself."""
    return _CURRENT.get()


@contextmanager
def sharing(share: Share) -> Iterator[Share]:
    """Fits of energies that are made in the context are shared with other processes, which make the same ones."""
    token = _CURRENT.set(share)
    try:
        yield share
    finally:
        _CURRENT.reset(token)


@contextmanager
def data_parallel() -> Iterator[Share]:
    """Fits of energies that are made in the context are made by all processes of ``torch.distributed`` together.

    All of them call ``fit`` with the same data and settings, as ``torchrun`` starts them, and get the same detector.

    Raises:
        InputError: ``torch.distributed`` is not initialised.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        raise InputError("there are no processes to share a fit with; call torch.distributed.init_process_group first")
    with sharing(Share(distributed.get_rank(), distributed.get_world_size())) as share:
        yield share


class SharedRandom(Random):
    """Random numbers for the chains of some rows of a batch: those that the rows have where all chains are followed together.

    Args:
        generator: equal in all processes.
        moves: how many there will be.
        rows: of the whole batch.
        mine: which of them these chains are.
    """

    def __init__(self, generator: torch.Generator, moves: int, rows: int, mine: slice) -> None:
        super().__init__(generator, moves)
        self.rows, self.mine = rows, mine

    def normal(self, z: Tensor) -> Tensor:
        return super().normal(z.new_empty(()).expand(self.rows, *z.shape[1:]))[self.mine]

    def uniform(self, z: Tensor) -> Tensor:
        return super().uniform(z.new_empty(()).expand(self.rows, *z.shape[1:]))[self.mine]
