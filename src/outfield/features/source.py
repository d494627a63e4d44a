"""FeatureSource: where rows come from, in memory or on disk; some rows of a source, or another field of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from outfield.errors import InputError, MissingFieldError
from outfield.features.fields import FIELDS, spaces
from outfield.files import as_tensor

if TYPE_CHECKING:
    from outfield.features.set import FeatureSet

# under this name a set says which network, with which preprocessing, gave its rows: a name for people, then a digest
NETWORK = "network"
# how names of rows are encoded: those of files that are no valid UTF-8 come back as they were
NAME_CODING = ("utf-8", "surrogateescape")
Rows = Sequence[int] | np.ndarray | Tensor


class FeatureSource(ABC):
    """Where detectors read features from: a :class:`FeatureSet` in memory or an :class:`outfield.FeatureStream` on disk.

    Every batch that leaves it holds: two-dimensional finite floating features, matching lengths, integer labels that start
    at 0, tensors on the CPU.
    """

    picks_rows: bool = True  # whether rows can be used

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
    def rows(self, index: Rows, names: Iterable[str] | None = None) -> dict[str, Tensor]:
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
        return self if name == "features" else Seen(self, name)

    @property
    def row_fields(self) -> tuple[str, ...]:
        """The names of the fields here that have a row for each sample."""
        return tuple(name for name in self.shapes if FIELDS[name].per_row)

    def _chosen(self, names: Iterable[str] | None) -> tuple[str, ...]:
        present = self.row_fields
        if names is None:
            return present
        chosen = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else ()
        if not chosen:
            raise InputError(f"names is {names!r:.100}; it must be a list of fields: {', '.join(present)}")
        for name in chosen:
            if name not in present:
                raise MissingFieldError(f"no field {name!r:.40} has rows of samples; there are {', '.join(present)}")
        return chosen

    def _row_numbers(self, index: Any) -> np.ndarray:
        """An index (n,) as int64, counted from 0."""
        numbers = as_tensor("the index of rows", index).numpy()
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise InputError(f"rows are chosen by a vector of integers; got {numbers.dtype} of shape {numbers.shape}")
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise InputError(f"rows go from 0 to {len(self) - 1}; got {int(numbers.min())} to {int(numbers.max())}")
        return numbers.astype(np.int64)


class Wrapped(FeatureSource):
    """Base of sources that show another ``source`` in some other way."""

    def __init__(self, source: FeatureSource) -> None:
        self.source, self.picks_rows = source, source.picks_rows

    @property
    def about(self) -> dict[str, str]:
        return self.source.about

    @property
    def names(self) -> tuple[str, ...] | None:
        return self.source.names

    def constant(self, name: str) -> Tensor | None:
        return self.source.constant(name)


class Part(Wrapped):
    """The rows of ``source`` at which ``mask`` (N,) is True, in their order."""

    def __init__(self, source: FeatureSource, mask: Tensor) -> None:
        super().__init__(source)
        if not bool(mask.any()):
            raise InputError("no row is chosen; at least one is needed")
        self.mask, self._numbers = mask.cpu(), mask.cpu().nonzero()[:, 0].numpy()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        found, count = self.source.shapes, len(self._numbers)
        return {name: (count, *shape[1:]) if FIELDS[name].per_row else shape for name, shape in found.items()}

    @property
    def names(self) -> tuple[str, ...] | None:
        known = self.source.names
        return None if known is None else tuple(known[i] for i in self._numbers)

    def batches(self, size: int, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
        pieces = zip(self.source.batches(size, self._chosen(names)), self.mask.split(int(size)), strict=True)
        chosen = ({name: value[mask] for name, value in piece.items()} for piece, mask in pieces)
        return rebatched(chosen, size, torch.cat)

    def rows(self, index: Rows, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        return self.source.rows(self._numbers[self._row_numbers(index)], self._chosen(names))

    def in_memory(self) -> FeatureSet:
        return self.source.in_memory()[self.mask]


def rebatched(
    pieces: Iterable[dict[str, Any]], size: int, join: Callable[[list[Any]], Any]
) -> Iterator[dict[str, Any]]:
    """Pieces of any lengths as pieces of ``size`` rows, the last perhaps shorter; ``join`` joins arrays of the kind they hold."""
    held: list[dict[str, Any]] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(next(iter(piece.values())))
        if count >= size:
            joined = {name: join([one[name] for one in held]) if len(held) > 1 else piece[name] for name in piece}
            for start in range(0, count - size + 1, size):
                yield {name: value[start : start + size] for name, value in joined.items()}
            rest = count % size
            held = [{name: value[len(value) - rest :] for name, value in joined.items()}]
            count = rest
    if count:
        yield {name: join([one[name] for one in held]) for name in held[0]}


class Seen(Wrapped):
    """The rows of ``source`` with its field ``name`` called features; made by :meth:`FeatureSource.on`.

    Other fields whose rows are points are not here, nor is what belongs to the features themselves. ``fields`` holds the field
    of the source that stands behind each name here.
    """

    def __init__(self, source: FeatureSource, name: str) -> None:
        super().__init__(source)
        if name not in spaces():
            raise InputError(f"on is {name!r:.100}; it must be one of {', '.join(spaces())}")
        if name not in source.shapes:
            raise MissingFieldError(f"there is no field {name!r} here; there are {', '.join(source.shapes)}")
        others = [other for other in source.row_fields if not FIELDS[other].is_space]
        self.fields = {"features": name, **{other: other for other in others}}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        found = self.source.shapes
        return {name: found[field] for name, field in self.fields.items()}

    def constant(self, name: str) -> Tensor | None:
        return None

    def batches(self, size: int, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
        fields = {name: self.fields[name] for name in self._chosen(names)}
        pieces = self.source.batches(size, fields.values())
        return ({name: piece[field] for name, field in fields.items()} for piece in pieces)

    def rows(self, index: Rows, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        fields = {name: self.fields[name] for name in self._chosen(names)}
        found = self.source.rows(index, fields.values())
        return {name: found[field] for name, field in fields.items()}

    def in_memory(self) -> FeatureSet:
        return self.source.in_memory().on(self.fields["features"])


def network_text(name: str, fingerprint: str) -> str:
    """What a set says of its network: a name for people, and a digest."""
    return f"{name[:200]} {fingerprint[:16]}".strip()


def agree(name: str, one: str, other: str) -> bool:
    """Whether two texts under a name say the same: of a network its digest counts, whatever people call it."""
    if name == NETWORK:
        return one.rpartition(" ")[2] == other.rpartition(" ")[2]
    return one == other


def common_about(sets: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What several sets say together; of a network nothing, unless all of them do."""
    first, *others = sets
    for other in others:
        same = all(agree(name, first[name], other[name]) for name in set(first) & set(other))
        if not same or (set(other) ^ set(first)) - {NETWORK}:
            raise InputError(f"the sets to join come from different places: {dict(first)} and {dict(other)}")
    return {name: text for name, text in first.items() if all(name in other for other in others)}


def checked_about(given: Any) -> dict[str, str]:
    """A copy of texts by name; of None, none."""
    found = {} if given is None else given
    if not isinstance(found, Mapping) or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise InputError(f"about is {given!r:.100}; it must be texts by name, such as {{'views': 'flip'}}")
    return dict(found)


def checked_names(given: Any, rows: int) -> tuple[str, ...] | None:
    """A name for each of the rows, or None."""
    if given is None:
        return None
    found = given.tolist() if isinstance(given, np.ndarray) else given
    names = tuple(found) if isinstance(found, Iterable) and not isinstance(found, str | Mapping) else (None,)
    try:
        "".join(names).encode(*NAME_CODING)
    except (TypeError, UnicodeEncodeError) as error:
        raise InputError(f"names is {given!r:.100}; it must be a text for each row, or None ({error})") from error
    if len(names) != rows:
        raise InputError(f"there are {len(names)} names for {rows} rows; each row has one, or none has")
    return names


def normalise(features: Tensor) -> Tensor:
    """Features of any floating type and magnitude as float32 rows of length 1 (N, D); a zero row stays zero.

    Each row is divided by its largest entry first, so that 1e30 neither overflows float32 nor its own square.
    """
    wide = features if features.dtype == torch.float64 else features.float()
    # Without abs(): a second table of this size would take seven times as long as both searches.
    largest = torch.maximum(wide.amax(dim=1, keepdim=True), -wide.amin(dim=1, keepdim=True))
    return functional.normalize((wide / largest.clamp_min(torch.finfo(wide.dtype).tiny)).float(), dim=-1)
