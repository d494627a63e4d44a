"""Means of rows by class, gathered piece by piece in float64."""

from __future__ import annotations

import torch
from torch import Tensor


class ClassSums:
    """Gathers the sum of the rows of each class; memory grows with the number of classes, not of rows.

    Args:
        width: D.
        device: where the rows are.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.classes = torch.empty(0, dtype=torch.int64, device=device)
        self.counts = torch.empty(0, dtype=torch.int64, device=device)
        self.sums = torch.empty(0, width, dtype=torch.float64, device=device)

    def add(self, rows: Tensor, classes: Tensor) -> None:
        """Take one piece: rows (n, D), their classes (n,), perhaps none."""
        seen = torch.cat([self.classes, classes])
        self.classes, place = seen.unique(return_inverse=True)
        counts = torch.cat([self.counts, torch.ones_like(classes)])
        sums = torch.cat([self.sums, rows.double()])
        self.counts = counts.new_zeros(len(self.classes)).index_add_(0, place, counts)
        self.sums = sums.new_zeros(len(self.classes), sums.shape[1]).index_add_(0, place, sums)

    def means(self) -> tuple[Tensor, Tensor]:
        """The classes that were seen (K',), int64, ascending, and the mean of the rows of each (K', D), float64."""
        return self.classes, self.sums / self.counts[:, None]
