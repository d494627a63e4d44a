"""Counts, means and scatter of classes, gathered in one pass over pieces in float64: what the mixture is fitted from.

On the CPU each worker takes every T-th piece and runs its operations on one thread: a piece small enough for the cache is
normalised, converted, centred and multiplied before the next one arrives, and no operation waits for another worker.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from outfield.config import require
from outfield.energy.chains import identity
from outfield.errors import InputError
from outfield.modes import can_limit, limited_worker

PIECE_ROWS = 512
PIECE_NUMBERS = PIECE_ROWS * 512
"""A piece on the CPU holds at least this many rows and this many numbers: 2 MB in float64, or more where rows are wide."""
GPU_ROWS = 8192
STRIP = 128
"""Columns of the scatter computed together; its lower triangle is not computed."""
AHEAD = 4
"""Pieces that may wait for each worker."""

Prepare = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ClassStatistics:
    """Sufficient statistics of the mixture; two of them merge into that of the joined data (Chan et al. 1979).

    Attributes:
        classes: labels seen, ascending (K,), int64.
        counts: N_c (K,), float64.
        means: μ_c (K, D), float64.
        scatter: Σ_c Σ_i (z_i − μ_c)(z_i − μ_c)ᵀ (D, D), float64.
    """

    classes: Tensor
    counts: Tensor
    means: Tensor
    scatter: Tensor

    def __post_init__(self) -> None:
        tensors = (self.classes, self.counts, self.means, self.scatter)
        good = all(isinstance(one, Tensor) for one in tensors) and self.means.ndim == 2
        k, d = self.means.shape if good else (0, 0)
        if not good or [tuple(one.shape) for one in tensors] != [(k,), (k,), (k, d), (d, d)]:
            raise InputError("statistics must be tensors classes (K,), counts (K,), means (K, D) and scatter (D, D)")

    @classmethod
    def of(cls, z: Tensor, labels: Tensor) -> ClassStatistics:
        """Statistics of one batch: z (N, D) of any floating type, labels (N,).

        Raises:
            InputError: z is not a finite floating matrix with rows, or labels are not one whole number for each.
        """
        _check(z, labels)
        size = piece_rows(z.shape[1], z.device)
        return cls.over(zip(z.split(size), labels.split(size), strict=True), workers_for(len(z), z.shape[1], z.device))

    @classmethod
    def over(
        cls, pieces: Iterable[tuple[Tensor, Tensor]], workers: int = 1, prepare: Prepare = identity
    ) -> ClassStatistics:
        """Statistics of all pieces together, each seen once; memory does not grow with their number.

        Equal input gives equal bits for the same number of workers.

        Args:
            pieces: Rows (n, D) and labels (n,); at least one piece. See :func:`piece_rows` for a good n.
            workers: Number of threads that share the work, see :func:`workers_for`.
            prepare: What is done to the rows of a piece first, in its worker: (n, D) → z (n, D).

        Raises:
            InputError: there is no piece, or one does not hold finite rows and a label for each.
        """
        sums = [_Sums(prepare) for _ in range(workers)]
        if workers == 1:
            with torch.inference_mode(False):
                for rows, labels in pieces:
                    sums[0].add(rows, labels)
        else:
            _share_out(pieces, sums)
        parts = [part.statistics() for part in sums if not part.empty]
        if not parts:
            raise InputError("there are no pieces to take statistics of; at least one is needed")
        whole = functools.reduce(ClassStatistics.merge, parts)
        if not bool(torch.isfinite(whole.means).all() & torch.isfinite(whole.scatter).all()):
            raise InputError("rows hold values that are not finite, or whose squares are not; all must be finite")
        return whole

    def merge(self, other: ClassStatistics) -> ClassStatistics:
        """Statistics of both batches together.

        For each class δ = μ_b − μ_a:  μ = μ_a + δ N_b / N,  scatter = S_a + S_b + Σ_c (N_a N_b / N) δ δᵀ.
        """
        require(isinstance(other, ClassStatistics), "other", other, "an outfield.ClassStatistics")
        if self.means.shape[1] != other.means.shape[1]:
            raise InputError(f"batches of width {self.means.shape[1]} and {other.means.shape[1]} cannot be merged")
        classes = torch.cat([self.classes, other.classes]).unique()
        counts_a, means_a = self._on(classes)
        counts_b, means_b = other._on(classes)
        total = counts_a + counts_b
        delta = means_b - means_a
        share = counts_b / total
        both = (counts_a * share)[:, None] * delta
        return ClassStatistics(
            classes, total, means_a + share[:, None] * delta, self.scatter + other.scatter + both.T @ delta
        )

    def _on(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Counts and means laid out for a superset of this batch's classes (0 where a class is absent)."""
        index = torch.searchsorted(classes, self.classes)
        counts = self.counts.new_zeros(len(classes)).index_copy_(0, index, self.counts)
        means = self.means.new_zeros(len(classes), self.means.shape[1]).index_copy_(0, index, self.means)
        return counts, means


class _Sums:
    """Sums about one fixed point a_c per class, the mean of the rows of c in the first piece that has any.

    With t_c = Σ_i (z_i − a_c) over class c, one pass gives S = Σ_i (z_i − a_c)(z_i − a_c)ᵀ, and afterwards
    μ_c = a_c + t_c / N_c and scatter = S − Σ_c t_c t_cᵀ / N_c. Little cancels: a_c is a mean of rows of the class, so that
    ‖a_c − μ_c‖² ≤ N_c tr Σ_c at the worst and about tr Σ_c / n for n rows drawn at random, whatever offset rows share.
    """

    def __init__(self, prepare: Prepare) -> None:
        self.prepare = prepare
        self.empty = True

    def add(self, rows: Tensor, labels: Tensor) -> None:
        _check(rows, labels)
        z = self.prepare(rows).double()
        found, index = labels.to(z.device).unique(return_inverse=True)
        if self.empty:
            self._begin(found[:0], z[:0])
        if z.shape[1] != (width := self.totals.shape[1]):
            raise InputError(f"rows have {z.shape[1]} columns, but rows before them {width}; they must agree")
        fresh = ~torch.isin(found, self.classes)
        if bool(fresh.any()):
            self._meet(found[fresh], _class_means(z, index, len(found))[fresh])
        slots = torch.searchsorted(self.classes, found)[index]
        centred = self.points[slots]
        torch.sub(z, centred, out=centred)
        self.counts += torch.bincount(slots, minlength=len(self.classes))
        self.totals.index_add_(0, slots, centred)
        for i in range(0, len(self.squares), STRIP):
            self.squares[i : i + STRIP, i:].addmm_(centred[:, i : i + STRIP].T, centred[:, i:])

    def _begin(self, classes: Tensor, z: Tensor) -> None:
        """Tables without a class, on the device of z (0, D)."""
        self.classes, self.counts, self.points, self.totals = classes, z.new_zeros(0), z.clone(), z.clone()
        self.squares, self.empty = z.new_zeros(z.shape[1], z.shape[1]), False

    def _meet(self, classes: Tensor, points: Tensor) -> None:
        """Make room for new classes (k,) and their fixed points (k, D), in ascending order of classes."""
        self.classes, order = torch.cat([self.classes, classes]).sort()
        self.points = torch.cat([self.points, points])[order]
        self.totals = torch.cat([self.totals, torch.zeros_like(points)])[order]
        self.counts = torch.cat([self.counts, self.counts.new_zeros(len(classes))])[order]

    def statistics(self) -> ClassStatistics:
        """What the sums say, each class about its own mean."""
        away = self.totals / self.counts[:, None]
        upper = self.squares.triu()
        scatter = upper + upper.triu(1).T - away.T @ self.totals
        return ClassStatistics(self.classes, self.counts, self.points + away, scatter)


def _check(rows: Tensor, labels: Tensor) -> None:
    """Refuse a piece that is not rows (n, D) and labels (n,), at least one."""
    if not isinstance(rows, Tensor) or not rows.is_floating_point() or rows.ndim != 2 or not rows.numel():
        raise InputError(f"rows must be a floating tensor of shape (samples, width); got {_said(rows)}")
    kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if not isinstance(labels, Tensor) or labels.dtype not in kinds or labels.shape != rows.shape[:1]:
        raise InputError(f"labels must be whole numbers, a tensor of shape ({len(rows)},); got {_said(labels)}")


def _said(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _class_means(z: Tensor, index: Tensor, classes: int) -> Tensor:
    sums = z.new_zeros(classes, z.shape[1]).index_add_(0, index, z)
    return sums / torch.bincount(index, minlength=classes)[:, None]


def piece_rows(width: int, device: torch.device) -> int:
    """Rows of a piece that keep this device busy: on the CPU as many as stay in its cache."""
    return max(PIECE_ROWS, PIECE_NUMBERS // width) if device.type == "cpu" else GPU_ROWS


def workers_for(rows: int, width: int, device: torch.device) -> int:
    """Threads worth starting for this many rows: one for a GPU, or where workers cannot be kept to one core each."""
    if device.type != "cpu" or not can_limit():
        return 1
    return max(1, min(torch.get_num_threads(), rows // piece_rows(width, device)))


def _share_out(pieces: Iterable[tuple[Tensor, Tensor]], sums: list[_Sums]) -> None:
    """Piece i goes to worker i mod T, at most ``AHEAD`` of them waiting for each; the first error is raised here."""
    waiting: deque[Future[None]] = deque()
    with ExitStack() as stack:
        pools = [stack.enter_context(limited_worker("moments")) for _ in sums]
        for i, (rows, labels) in enumerate(pieces):
            if len(waiting) == AHEAD * len(sums):
                waiting.popleft().result()
            waiting.append(pools[i % len(sums)].submit(sums[i % len(sums)].add, rows, labels))
        while waiting:
            waiting.popleft().result()
