"""FeatureSet: what a backbone hands to every detector, checked once, here."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from outfield.config import require_number
from outfield.errors import InputError, as_ours
from outfield.features import formats
from outfield.features.fields import FIELDS, agreed_sizes, check_known
from outfield.features.source import FeatureSource, Rows, Seen, checked_about, checked_names, common_about
from outfield.files import PathLike, as_path, as_tensor
from outfield.percent import counted

if TYPE_CHECKING:
    from outfield.features.table_preprocessing import TablePreprocessing

__all__ = ["FeatureSet", "FeatureSource"]


class FeatureSet(FeatureSource):
    """Features of a set of images, and what else detectors may need of them.

    Args:
        features: Pooled penultimate features (N, D), not normalised: detectors do that.
        about: Where it comes from, texts by name such as {"views": "flip", "stage2": "layer2"}, or None. It is kept in files,
            and a detector refuses rows whose network, stage or views are others than those that it was fitted on.
        names: What each row is called (N texts), such as the file of its image, or None. They are kept in files.
        others: Any of the other fields by name, as :data:`outfield.features.fields.FIELDS` declares them: the class of each
            row, the classifier's outputs, …. Each is then an attribute, None where it was not given.

    Arrays may be numpy or torch, half to double precision. They are never changed here, and copied only where that cannot be
    helped: who writes to an array afterwards changes the set. Integers become float32, or float64 where it takes that to
    hold them exactly.

    Raises:
        InputError: NaN or infinite values, a wrong rank, lengths that differ, labels that are not integers from 0 or that
            exceed the classes of the logits, or a field that there is not.

    >>> import numpy as np, outfield as of
    >>> of.FeatureSet(np.eye(3), labels=[0, 1, 1])
    FeatureSet(3 samples, features 3-d, labels of 2 classes)
    """

    features: Tensor
    _tensors: dict[str, Tensor]
    _about: dict[str, str]
    _names: tuple[str, ...] | None
    __signature__: ClassVar[inspect.Signature]

    def __init__(
        self, features: ArrayLike | Tensor, *, about: Any = None, names: Any = None, **others: ArrayLike | Tensor | None
    ) -> None:
        if features is None:
            raise InputError("features is None; pass an array of shape (N, D)")
        check_known(others)
        given = {"features": features, **others}
        found = {name: field.tensor(given[name]) for name, field in FIELDS.items() if given.get(name) is not None}
        sizes = agreed_sizes({name: tuple(tensor.shape) for name, tensor in found.items()})
        checked = {name: FIELDS[name].checked(tensor, sizes) for name, tensor in found.items()}
        known = checked_names(names, len(checked["features"]))
        self.__dict__.update(_tensors=checked, _about=checked_about(about), _names=known)

    @classmethod
    def _of(cls, tensors: dict[str, Tensor], about: dict[str, str], names: tuple[str, ...] | None = None) -> FeatureSet:
        """A set of tensors that were checked before."""
        made = cls.__new__(cls)
        made.__dict__.update(_tensors=tensors, _about=about, _names=names)
        return made

    @property
    def names(self) -> tuple[str, ...] | None:
        return self._names

    @property
    def about(self) -> dict[str, str]:
        return dict(self._about)

    def constant(self, name: str) -> Tensor | None:
        return None if name in self.row_fields else self._tensors.get(name)

    def on(self, name: str) -> FeatureSet:
        if name == "features":
            return self
        seen = Seen(self, name)
        tensors = {own: self._tensors[field] for own, field in seen.fields.items()}
        return FeatureSet._of(tensors, seen.about, self._names)

    def __getattr__(self, name: str) -> Tensor | None:
        """A field (a tensor, or None where this set does not have it)."""
        if name in FIELDS and "_tensors" in self.__dict__:
            return self._tensors.get(name)
        raise AttributeError(f"a FeatureSet has no {name!r}; its fields are {', '.join(FIELDS)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a FeatureSet is not changed once it is made; make another with {name}=...")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in self._tensors.items()}

    def __repr__(self) -> str:
        parts = [counted(len(self), "sample")]
        for name, tensor in self._tensors.items():
            if FIELDS[name].counts is not None:
                classes = len(tensor.unique())
                parts.append(f"{name} of {classes} class{'es' * (classes != 1)}")
            else:
                parts.append(f"features {tensor.shape[1]}-d" if name == "features" else name)
        return f"FeatureSet({', '.join(parts)})"

    def __getitem__(self, rows: slice | Sequence[int] | Sequence[bool] | np.ndarray | Tensor) -> FeatureSet:
        """The chosen rows (a slice, indices or a mask) as a FeatureSet.

        Raises:
            InputError: There are no such rows, or none is chosen.
        """
        chosen = rows if isinstance(rows, slice) else as_tensor("the choice of rows", rows).numpy()
        if isinstance(chosen, np.ndarray) and chosen.ndim != 1:
            raise InputError(f"rows are a slice or a vector of integers or bools, not {rows!r:.60}; one row is [i:i+1]")
        with as_ours(f"these rows cannot be taken from {len(self)}", InputError, IndexError, TypeError, ValueError):
            numbers = np.arange(len(self))[chosen]
        forward = isinstance(rows, slice) and (rows.step is None or rows.step > 0)
        # A slice shares the memory, but torch takes only those that go forward.
        index = rows if forward else torch.from_numpy(numbers.copy())
        picked = {name: value[index] if FIELDS[name].per_row else value for name, value in self._tensors.items()}
        names = None if self._names is None else [self._names[i] for i in numbers.tolist()]
        return FeatureSet(**picked, about=self._about, names=names)

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are present, by name."""
        return dict(self._tensors)

    def batches(self, size: int, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
        require_number("size", size, least=1, whole=True)
        present, starts = {name: self._tensors[name] for name in self._chosen(names)}, range(0, len(self), size)
        return ({name: value[start : start + size] for name, value in present.items()} for start in starts)

    def rows(self, index: Rows, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        chosen = torch.from_numpy(self._row_numbers(index))
        return {name: self._tensors[name][chosen] for name in self._chosen(names)}

    def in_memory(self) -> FeatureSet:
        return self

    @classmethod
    def join(cls, parts: Iterable[FeatureSet]) -> FeatureSet:
        """Several sets as one; a field must be in all of them or in none. Names of rows are kept where all sets have them.

        Raises:
            InputError: There is none, one is something else, or their fields or widths differ.
        """
        sets = list(parts) if isinstance(parts, Iterable) else [parts]
        if not sets or not all(isinstance(part, FeatureSet) for part in sets):
            raise InputError(f"join takes a list of FeatureSets, at least one; got {parts!r:.100}")
        fields = {tuple(part.tensors()) for part in sets}
        if len(fields) > 1:
            raise InputError(f"the sets to join have different fields: {' and '.join(map(str, sorted(fields)))}")
        about = common_about([part.about for part in sets])
        joined = {}
        for name, value in sets[0].tensors().items():
            values = [part.tensors()[name] for part in sets]
            widths = {tuple(own.shape[1:]) for own in values}
            if len(widths) > 1:
                raise InputError(f"the sets to join have {name} of different widths: {sorted(widths)}")
            if not FIELDS[name].per_row and not all(torch.equal(value, own) for own in values):
                raise InputError(f"the sets to join differ in {name}; they must come from the same network")
            joined[name] = torch.cat(values) if FIELDS[name].per_row else value
        names = [name for part in sets for name in part.names or ()]
        return cls(**joined, about=about, names=names if len(names) == sum(len(part) for part in sets) else None)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        label: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        standardise: bool | TablePreprocessing = True,
        missing: str = "refuse",
    ) -> FeatureSet:
        """The rows of a table: numbers standardised, truths as 0 and 1, texts as one entry for each level.

        Args:
            frame: A DataFrame, columns by name, or the path of a CSV or Parquet file.
            label: See :meth:`outfield.TablePreprocessing.fit`, which is done here, as for the other arguments.
            columns: See there.
            standardise: See there; or what was learned on other rows, an :class:`outfield.TablePreprocessing`, which is
                applied as it is. A later frame needs that: fit one and keep it.
            missing: See there.

        Raises:
            InputError: A column cannot be used, or is not as it was where the preprocessing was learned.

        >>> of_ages = FeatureSet.from_frame({"age": [20, 30, 40], "member": [True, False, True]})
        >>> of_ages.features.shape
        torch.Size([3, 3])
        """
        from outfield.features.table_preprocessing import TablePreprocessing

        if isinstance(standardise, TablePreprocessing):
            if label is not None or columns is not None:
                raise InputError("standardise is a TablePreprocessing, which knows label and columns; leave these out")
            return standardise(frame)
        return TablePreprocessing.fit(frame, label, columns, standardise=standardise, missing=missing)(frame)

    def save(self, path: PathLike) -> None:
        """Write to ``.safetensors`` or ``.npz`` (by the ending), atomically.

        Raises:
            InputError: another ending, or a type that ``.npz`` cannot hold.
            StorageError: the file could not be written; what was there stays.
        """
        formats.write(as_path(path), self._tensors, self._about, self._names)

    @classmethod
    def load(cls, path: PathLike, part: str | None = None) -> FeatureSet:
        """Read ``.safetensors``, ``.npz``, ``.npy`` (features alone), ``.csv`` or ``.parquet``; nothing is unpickled.

        Args:
            path: The file. One written by other software is fine if its arrays or columns carry the names of the fields.
            part: For an ``.npz`` that holds several sets as ``train_features``, ``train_labels``, ``test_features`` …,
                which one ("train").

        Raises:
            StorageError: There is no such file.
            FileFormatError: It is truncated, changed, or not a FeatureSet.
            InputError: Its arrays are not valid as a FeatureSet, or its ending is unknown.
        """
        arrays, about, names = formats.read(as_path(path), part)
        return cls(**arrays, about=about, names=names)


_others = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in (*FIELDS, "about", "names")
]
FeatureSet.__signature__ = inspect.Signature(
    [inspect.Parameter("features", inspect.Parameter.POSITIONAL_OR_KEYWORD), *_others[1:]]
)
