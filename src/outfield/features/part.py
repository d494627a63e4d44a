"""Some rows of a source of features, without loading the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from outfield.config import require_number
from outfield.errors import InputError
from outfield.features.set import FeatureSet, FeatureSource


class Part(FeatureSource):
    """The rows of ``source`` at which ``mask`` (N,) is True, in their order.

    Raises:
        InputError: no row is chosen, or the mask has another length.
    """

    def __init__(self, source: FeatureSource, mask: Tensor) -> None:
        if mask.dtype != torch.bool or mask.shape != (len(source),):
            raise InputError(f"rows are chosen by {len(source)} bools; got {mask.dtype} of shape {tuple(mask.shape)}")
        if not bool(mask.any()):
            raise InputError("no row is chosen; at least one is needed")
        self.source, self.mask, self.picks_rows = source, mask.cpu(), source.picks_rows

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        found, count = self.source.shapes, int(self.mask.sum())
        return {name: (count, *shape[1:]) if name in self.source.row_fields else shape for name, shape in found.items()}

    @property
    def about(self) -> dict[str, str]:
        return self.source.about

    @property
    def names(self) -> tuple[str, ...] | None:
        known = self.source.names
        return None if known is None else tuple(known[i] for i in self.mask.nonzero()[:, 0].tolist())

    def constant(self, name: str) -> Tensor | None:
        """A field that is the same for all rows."""
        return self.source.constant(name)

    def batches(self, size: int, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
        """The fields in consecutive pieces of ``size`` rows; the source is read once, in pieces of as many rows."""
        require_number("size", size, least=1, whole=True)
        return self._pieces(size, self._chosen(names))

    def _pieces(self, size: int, names: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
        held: dict[str, Tensor] = {}
        start = 0
        for piece in self.source.batches(size, names):
            count = len(piece[names[0]])
            chosen = self.mask[start : start + count]
            start += count
            picked = {name: value[chosen] for name, value in piece.items()}
            held = {name: torch.cat([held[name], value]) if held else value for name, value in picked.items()}
            if len(held[names[0]]) >= size:
                yield {name: value[:size] for name, value in held.items()}
                held = {name: value[size:] for name, value in held.items()}
        if len(held[names[0]]):
            yield held

    def rows(self, index: Sequence[int] | np.ndarray | Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The fields at chosen rows (n,), in the order of ``index``."""
        numbers = self._row_numbers(index)
        return self.source.rows(self.mask.nonzero()[:, 0].numpy()[numbers], self._chosen(names))

    def in_memory(self) -> FeatureSet:
        """All of it as a FeatureSet."""
        return self.source.in_memory()[self.mask]
