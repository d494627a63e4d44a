"""FeatureStream: features on disk, read piece by piece with plain reads, for data larger than memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from outfield.config import require_number
from outfield.errors import FileFormatError, InputError, as_ours
from outfield.features import formats
from outfield.features.fields import FIELDS, agreed_sizes, check_known
from outfield.features.formats import Places, unpacked
from outfield.features.set import FeatureSet, FeatureSource
from outfield.features.source import Rows, checked_names, rebatched
from outfield.features.table_files import opened, parquet_file
from outfield.files import NotInRowsError, PathLike, Stamp, find_npy
from outfield.percent import counted

ROWS_AT_ONCE = 8192  # rows of a Parquet file decoded together


def open_features(path: PathLike, **beside: PathLike | None) -> FeatureStream:
    """Features on disk as a source that detectors fit and score from, without loading them.

    Only headers are read here. The values are checked when they are read, as :class:`FeatureSet` checks them; those of a
    file that Outfield wrote are compared with their checksums, field by field, at the end of the first pass over them.

    Args:
        path: ``.safetensors``, ``.npz`` (``FILE.npz#SET`` for one set of several), ``.parquet``, or an ``.npy`` with the
            features alone.
        beside: ``.npy`` files with other fields, by the name of the field, that go with an ``.npy`` of features.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It is truncated, or does not hold a FeatureSet.
        InputError: Its arrays have wrong shapes or types, or lie in the file column by column.
    """
    check_known(beside)
    file, part = formats.split_source(path)
    formats.check_ending(file, part, formats.STREAMED, "streamed from")
    given = {name: value for name, value in beside.items() if value is not None}
    if "features" in given:
        raise InputError(f"features is {given['features']!r:.100}, but {file} holds them; name one of them")
    if given and file.suffix != ".npy":
        raise InputError(f"{file} holds every field; {' and '.join(given)} can be given with an .npy of features only")
    if file.suffix == ".parquet":
        return _ParquetStream(file)
    arrays, about, names = formats.find(file, part)
    return _ArrayStream({**arrays, **{name: find_npy(place) for name, place in given.items()}}, about, names)


def open_or_read(source: str) -> FeatureSource:
    """A stream where the file allows it, else (CSV, arrays column by column) a FeatureSet in memory."""
    file, part = formats.split_source(source)
    if file.suffix not in formats.STREAMED:
        return FeatureSet.load(file, part)
    try:
        return open_features(source)
    except NotInRowsError:
        return FeatureSet.load(file, part)


class FeatureStream(FeatureSource):
    """Features on disk; made by :func:`outfield.open_features`.

    Each batch is read when it is asked for, and checked: NaN, labels out of range, a file that ends too early or changed
    since it was opened are errors that name the row or the file. Fields that are not asked for are neither read nor
    checked. Any number of passes, also at the same time, may be made.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], stamps: Iterable[Stamp], about: dict[str, str], names: Places
    ) -> None:
        self._about, self._names = about, names
        self._shapes = {name: tuple(shapes[name]) for name in FIELDS if name in shapes}
        self._stamps = tuple(dict.fromkeys(stamps))
        for name, shape in self._shapes.items():
            FIELDS[name].check_shape(shape)
        self._sizes = agreed_sizes(self._shapes)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(self._shapes)

    @property
    def about(self) -> dict[str, str]:
        return dict(self._about)

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        found = unpacked({name: array.read() for name, array in self._names.items()})
        with as_ours(str(self._stamps[0].path), FileFormatError, InputError):
            return checked_names(found, len(self))

    def __repr__(self) -> str:
        others = "".join(f", {name}" for name in self._shapes if name != "features")
        width = self._shapes["features"][1]
        return f"FeatureStream({self._stamps[0].path}: {counted(len(self), 'sample')}, features {width}-d{others})"

    def batches(self, size: int, names: Iterable[str] | None = None) -> Iterator[dict[str, Tensor]]:
        """See :meth:`FeatureSource.batches`; memory grows with ``size``.

        Raises:
            InputError: values that a FeatureSet would refuse; the message names the row.
            FileFormatError: the file ends too early, was changed, or does not match its checksum.
            StorageError: the disk failed.
        """
        require_number("size", size, least=1, whole=True)
        return self._checked_pieces(size, self._chosen(names))

    def _checked_pieces(self, size: int, chosen: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
        self._check_unchanged()
        start = 0
        for piece in self._pieces(size, chosen):
            yield {name: FIELDS[name].checked(value, self._sizes, start) for name, value in piece.items()}
            start += len(piece[chosen[0]])
        self._check_unchanged()

    @abstractmethod
    def _pieces(self, size: int, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """Unchecked arrays, ``size`` rows at a time."""

    def rows(self, index: Rows, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        raise InputError(f"{self._stamps[0].path} is packed, so no row is picked one by one; use in_memory()")

    def _check_unchanged(self) -> None:
        for stamp in self._stamps:
            stamp.check()

    def in_memory(self) -> FeatureSet:
        (whole,) = self._pieces(len(self), self.row_fields)
        constants: dict[str, Any] = {name: self.constant(name) for name in self._shapes if name not in self.row_fields}
        self._check_unchanged()
        return FeatureSet(**whole, **constants, about=self._about, names=self.names)


class _ArrayStream(FeatureStream):
    """Arrays whose rows lie one after the other in files."""

    def __init__(self, arrays: Places, about: dict[str, str], names: Places) -> None:
        shapes = {name: array.shape for name, array in arrays.items()}
        super().__init__(shapes, [array.stamp for array in arrays.values()], about, names)
        self._arrays = arrays
        self.picks_rows = all(array.picks_rows for array in arrays.values())
        for name, array in arrays.items():
            array.check_rows()
            FIELDS[name].tensor(array.entry())  # a type that cannot be features

    def constant(self, name: str) -> Tensor | None:
        if name in self.row_fields or name not in self._arrays:
            return None
        array = self._arrays[name]
        with array.rows() as reader:
            return FIELDS[name].checked(reader.read(array.shape[0]), self._sizes)

    def _pieces(self, size: int, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        with ExitStack() as stack:
            readers = {name: stack.enter_context(self._arrays[name].rows()) for name in names}
            for start in range(0, len(self), size):
                yield {name: reader.read(min(size, len(self) - start)) for name, reader in readers.items()}

    def rows(self, index: Rows, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        if not self.picks_rows:
            return super().rows(index, names)
        numbers, picked = self._row_numbers(index), {}
        for name in self._chosen(names):
            field, found = FIELDS[name], self._arrays[name].pick(numbers)
            try:
                picked[name] = field.checked(found, self._sizes, 0)
            except InputError:
                for place, number in enumerate(numbers.tolist()):  # the message is to name the row of the file
                    field.checked(found[place : place + 1], self._sizes, number)
                raise
        return picked


class _ParquetStream(FeatureStream):
    """A Parquet file, decoded some thousand rows at a time."""

    picks_rows = False

    def __init__(self, path: Path) -> None:
        stamp = Stamp.of(path)
        with opened(stamp) as content, parquet_file(content) as file:
            self._columns = formats.columns_by_field(path, file.schema_arrow.names)
            rows = file.metadata.num_rows
            if not rows:
                raise InputError(f"{path} has no rows; at least one is needed")
            first = next(file.iter_batches(1, columns=self._wanted(tuple(self._columns))))
            values = formats.values_of(path, first, self._columns)
        super().__init__({name: (rows, *value.shape[1:]) for name, value in values.items()}, [stamp], {}, {})

    def _wanted(self, names: Iterable[str]) -> list[str]:
        return [column for name in names for column in self._columns[name]]

    def _pieces(self, size: int, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """Pieces of ``size`` rows, whatever the row groups are."""
        return rebatched(self._decoded(names), size, np.concatenate)

    def _decoded(self, names: tuple[str, ...]) -> Iterator[dict[str, np.ndarray]]:
        (stamp,) = self._stamps
        with opened(stamp) as content, parquet_file(content) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=self._wanted(names)):
                values = formats.values_of(stamp.path, batch, {name: self._columns[name] for name in names})
                for name, value in values.items():
                    if value.shape[1:] != self._shapes[name][1:]:
                        raise InputError(f"{stamp.path}: the lists in column {name!r} must have the same length")
                yield values
