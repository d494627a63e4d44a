"""FeatureSet: what a backbone hands to every detector, checked once, here.

Everything behind this door may rely on: two-dimensional finite floating features, matching lengths, integer labels that
start at 0, tensors on the CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from outfield.config import require_number
from outfield.errors import InputError, MissingFieldError
from outfield.files import atomic, checks, storage
from outfield.files.arrays import DIGEST, check_names, read_npz
from outfield.files.checks import FIELDS


class FeatureSource(ABC):
    """Where detectors read features from: a :class:`FeatureSet` in memory or an :class:`outfield.FeatureStream` on disk.

    Every batch that leaves it holds: two-dimensional finite floating features, matching lengths, integer labels that start
    at 0, tensors on the CPU.
    """

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

    def _chosen(self, names: Iterable[str] | None) -> tuple[str, ...]:
        chosen = tuple(self.shapes) if names is None else tuple(names)
        if not chosen:
            raise InputError(f"no field was chosen; name any of {', '.join(self.shapes)}")
        for name in chosen:
            if name not in self.shapes:
                raise MissingFieldError(f"there is no field {name!r} here; there are {', '.join(self.shapes)}")
        return chosen

    def _row_numbers(self, index: Any) -> np.ndarray:
        """An index (n,) as int64, counted from 0."""
        numbers = np.asarray(index)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise InputError(f"rows are chosen by a vector of integers; got {numbers.dtype} of shape {numbers.shape}")
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise InputError(f"rows go from 0 to {len(self) - 1}; got {int(numbers.min())} to {int(numbers.max())}")
        return numbers.astype(np.int64)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class FeatureSet(FeatureSource):
    """Features of a set of images, and what else detectors may need of them.

    Args:
        features: pooled penultimate features (N, D), not normalised: detectors do that.
        labels: class of each row (N,), integers from 0.
        logits: the classifier's outputs (N, K).
        spread: spatial standard deviation of the feature map (N, D').
        odin_logits: the classifier's outputs at the ODIN-perturbed input (N, K).

    Arrays may be numpy or torch, half to double precision; they are neither copied nor changed where that can be helped.

    Raises:
        InputError: NaN or infinite values, a wrong rank, lengths that differ, labels that are not integers from 0 or that
            exceed the classes of the logits.

    >>> import numpy as np, outfield as of
    >>> of.FeatureSet(np.eye(3), labels=[0, 1, 1])
    FeatureSet(3 samples, features 3-d, labels of 2 classes)
    """

    features: Tensor
    labels: Tensor | None
    logits: Tensor | None
    spread: Tensor | None
    odin_logits: Tensor | None

    def __init__(
        self,
        features: ArrayLike | Tensor,
        *,
        labels: ArrayLike | Tensor | None = None,
        logits: ArrayLike | Tensor | None = None,
        spread: ArrayLike | Tensor | None = None,
        odin_logits: ArrayLike | Tensor | None = None,
    ) -> None:
        given = (features, labels, logits, spread, odin_logits)
        if features is None:
            raise InputError("features is None; pass an array of shape (N, D)")
        for name, value in zip(FIELDS, given, strict=True):
            checked = (
                None if value is None else checks.labels(value) if name == "labels" else checks.matrix(name, value)
            )
            object.__setattr__(self, name, checked)
        checks.check_agreement(self.shapes)
        if self.labels is not None and self.logits is not None:
            checks.labels(self.labels, classes=self.logits.shape[1])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in self.tensors().items()}

    def __repr__(self) -> str:
        parts = [f"{len(self):,} samples", f"features {self.features.shape[1]}-d"]
        if self.labels is not None:
            parts.append(f"labels of {len(self.labels.unique())} classes")
        parts += [name for name in FIELDS[2:] if getattr(self, name) is not None]
        return f"FeatureSet({', '.join(parts)})"

    def __getitem__(self, rows: slice | Sequence[int] | Sequence[bool] | np.ndarray | Tensor) -> FeatureSet:
        """The chosen rows (a slice, indices or a mask) as a FeatureSet."""
        if isinstance(rows, int):
            raise InputError(f"index {rows} would give a single row; write [{rows}:{rows + 1}] for a set of one")
        forward = isinstance(rows, slice) and (rows.step or 1) > 0
        try:
            index = rows if forward else torch.from_numpy(np.arange(len(self))[rows].copy())
        except (IndexError, TypeError, ValueError) as error:
            raise InputError(f"these rows cannot be taken from {len(self)}: {error}") from error
        return FeatureSet(**{name: value[index] for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are present, by name."""
        return {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}

    def batches(self, size: int, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
        """The fields in consecutive pieces of at most ``size`` rows, unchecked (this set was checked)."""
        require_number("size", size, least=1, whole=True)
        present = {name: getattr(self, name) for name in self._chosen(names)}
        for start in range(0, len(self), size):
            yield {name: value[start : start + size] for name, value in present.items()}

    def rows(self, index: Sequence[int] | np.ndarray | Tensor, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The fields at chosen rows (n,), in the order of ``index``."""
        chosen = torch.from_numpy(self._row_numbers(index))
        return {name: getattr(self, name)[chosen] for name in self._chosen(names)}

    def in_memory(self) -> FeatureSet:
        """This set."""
        return self

    @classmethod
    def join(cls, parts: Sequence[FeatureSet]) -> FeatureSet:
        """Several sets as one; a field must be in all of them or in none."""
        if not parts:
            raise InputError("join was given no FeatureSet; pass at least one")
        names = [tuple(part.tensors()) for part in parts]
        if len(set(names)) > 1:
            raise InputError(
                f"the sets to join have different fields: {' and '.join(str(n) for n in sorted(set(names)))}"
            )
        for name in names[0]:
            widths = {tuple(part.tensors()[name].shape[1:]) for part in parts}
            if len(widths) > 1:
                raise InputError(f"the sets to join have {name} of different widths: {sorted(widths)}")
        return cls(**{name: torch.cat([part.tensors()[name] for part in parts]) for name in names[0]})

    def save(self, path: atomic.PathLike) -> None:
        """Write to ``.safetensors`` or ``.npz`` (by the ending), atomically.

        Raises:
            InputError: another ending, or a type that ``.npz`` cannot hold.
            StorageError: the file could not be written; what was there stays.
        """
        suffix = Path(path).suffix
        if suffix == ".safetensors":
            storage.write(path, "FeatureSet", {}, self.tensors())
        elif suffix == ".npz":
            if any(value.dtype == torch.bfloat16 for value in self.tensors().values()):
                raise InputError(f"{path}: .npz cannot hold bfloat16; save as .safetensors")
            # The digest comes first, so that an index that lost its end is found.
            digest = np.array(storage.fingerprint(self.tensors()))
            arrays = {DIGEST: digest, **{name: value.numpy() for name, value in self.tensors().items()}}
            atomic.write_npz(path, arrays)
        else:
            raise InputError(
                f"{path}: a FeatureSet is saved as .safetensors or .npz, not {suffix or 'without an ending'!r}"
            )

    @classmethod
    def load(cls, path: atomic.PathLike, part: str | None = None) -> FeatureSet:
        """Read ``.safetensors`` or ``.npz``; nothing is unpickled.

        Args:
            path: the file. A file written by other software is fine if its arrays carry the names of the fields.
            part: for an ``.npz`` that holds several sets as ``train_features``, ``train_labels``, ``test_features`` …,
                which one ("train").

        Raises:
            StorageError: there is no such file.
            FileFormatError: truncated, changed, or not a FeatureSet.
            InputError: its arrays are not valid as a FeatureSet.
        """
        suffix = Path(path).suffix
        if part is not None and suffix != ".npz":
            raise InputError(f"{path}: only an .npz can hold several sets; {part!r} has no meaning here")
        if suffix == ".safetensors":
            arrays: dict[str, Any] = dict(storage.read_any(path, "FeatureSet")[1])
        elif suffix == ".npz":
            arrays = dict(read_npz(path, part))
        else:
            raise InputError(f"{path}: a FeatureSet is read from .safetensors or .npz, not {suffix or 'no ending'!r}")
        check_names(path, list(arrays))
        return cls(**arrays)
