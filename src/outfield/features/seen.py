"""A source of features with another of its fields in their place, so that any detector can work on any stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from torch import Tensor

from outfield.errors import InputError, MissingFieldError
from outfield.features.fields import FIELDS, spaces
from outfield.features.set import FeatureSet, FeatureSource


class Seen(FeatureSource):
    """The rows of ``source`` with its field ``name`` called features; made by :meth:`FeatureSource.on`.

    Other fields whose rows are points are not here, nor is what belongs to the features themselves.

    Attributes:
        fields: The field of the source that stands behind each name here.
    """

    def __init__(self, source: FeatureSource, name: str) -> None:
        if name not in spaces():
            raise InputError(f"on is {name!r:.100}; it must be one of {', '.join(spaces())}")
        if name not in source.shapes:
            raise MissingFieldError(f"there is no field {name!r} here; there are {', '.join(source.shapes)}")
        self.source, self.picks_rows = source, source.picks_rows
        others = [other for other in source.row_fields if not FIELDS[other].is_space]
        self.fields = {"features": name, **{other: other for other in others}}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        found = self.source.shapes
        return {name: found[field] for name, field in self.fields.items()}

    @property
    def about(self) -> dict[str, str]:
        return self.source.about

    @property
    def names(self) -> tuple[str, ...] | None:
        return self.source.names

    def batches(self, size: int, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
        """The fields in consecutive pieces of ``size`` rows."""
        chosen = self._chosen(names)
        return (
            {name: piece[self.fields[name]] for name in chosen}
            for piece in self.source.batches(size, [self.fields[name] for name in chosen])
        )

    def rows(self, index: Sequence[int] | np.ndarray | Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The fields at chosen rows (n,), in the order of ``index``."""
        chosen = self._chosen(names)
        found = self.source.rows(index, [self.fields[name] for name in chosen])
        return {name: found[self.fields[name]] for name in chosen}

    def in_memory(self) -> FeatureSet:
        """All of it as a FeatureSet."""
        return self.source.in_memory().on(self.fields["features"])
