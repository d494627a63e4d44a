"""FeatureSource: what every place that rows come from has in common, in memory, on disk or seen through another field."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from outfield.errors import InputError, MissingFieldError
from outfield.features.fields import FIELDS
from outfield.files import checks

if TYPE_CHECKING:
    from outfield.features.set import FeatureSet


class FeatureSource(ABC):
    """Where detectors read features from: a :class:`FeatureSet` in memory or an :class:`outfield.FeatureStream` on disk.

    Every batch that leaves it holds: two-dimensional finite floating features, matching lengths, integer labels that start
    at 0, tensors on the CPU.
    """

    picks_rows: bool = True
    """Whether :meth:`rows` can be used."""

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the fields that are present, by name: (N, width), of labels (N,)."""

    def __len__(self) -> int:
        return self.shapes["features"][0]

    @abstractmethod
    def batches(self, size: int, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
        """The fields in consecutive pieces of ``size`` rows, the last perhaps shorter.

        Args:
            size: rows of a piece.
            names: which fields; all that are present if None.
        """

    @abstractmethod
    def rows(self, index: Sequence[int] | np.ndarray | Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The fields at chosen rows (n,), in the order of ``index``; for shuffled batches."""

    @abstractmethod
    def in_memory(self) -> FeatureSet:
        """All of it as a FeatureSet."""

    @property
    def about(self) -> dict[str, str]:
        """What is known of where it comes from, such as the name of each stage, in words."""
        return {}

    @property
    def names(self) -> tuple[str, ...] | None:
        """What each row is called, such as the file of its image; None where nobody said."""
        return None

    def constant(self, name: str) -> Tensor | None:
        """A field that is the same for all rows, such as ``head_weight``; None where it is not there."""
        return None

    def on(self, name: str) -> FeatureSource:
        """The same rows with the field ``name``, a stage for instance, in the place of the features.

        Raises:
            InputError: It is not a field whose rows are points.
            MissingFieldError: It is not here.
        """
        from outfield.features.seen import Seen

        return self if name == "features" else Seen(self, name)

    @property
    def row_fields(self) -> tuple[str, ...]:
        """The names of the fields here that have a row for each sample."""
        return tuple(name for name in self.shapes if FIELDS[name].per_row)

    def _chosen(self, names: Iterable[str] | None) -> tuple[str, ...]:
        if names is None:
            return self.row_fields
        try:
            chosen = () if isinstance(names, str) else tuple(names)
        except TypeError:
            chosen = ()
        if not chosen:
            raise InputError(
                f"names is {names!r:.100}; it must be a list of fields, any of {', '.join(self.row_fields)}, or None for all"
            )
        present = self.row_fields
        for name in chosen:
            if not isinstance(name, str) or name not in present:
                raise MissingFieldError(
                    f"there is no field {name!r:.100} with a row for each sample here; there are {', '.join(present)}"
                )
        return chosen

    def _row_numbers(self, index: Any) -> np.ndarray:
        """An index (n,) as int64, counted from 0."""
        numbers = checks.as_tensor("the index of rows", index).numpy()
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise InputError(f"rows are chosen by a vector of integers; got {numbers.dtype} of shape {numbers.shape}")
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise InputError(f"rows go from 0 to {len(self) - 1}; got {int(numbers.min())} to {int(numbers.max())}")
        return numbers.astype(np.int64)
