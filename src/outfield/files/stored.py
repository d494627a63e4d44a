"""Arrays in files: found by their headers, read in rows or whole into memory of their own, and proved while they are read."""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from outfield.errors import FileFormatError, InputError, StorageError
from outfield.files.digests import Seal
from outfield.files.opened import AT_ONCE, Stamp, fill


class NotInRowsError(InputError):
    """The rows of an array do not lie one after the other in its file, so that it can only be read whole."""


class Bytes(Protocol):
    """The bytes of an array, from the first to the last."""

    def fill(self, view: memoryview) -> None:
        """Put the next bytes into all of ``view``."""


@dataclass(frozen=True, kw_only=True)
class StoredArray(ABC):
    """An array in a file.

    Attributes:
        stamp: the file.
        dtype: of an entry; numpy's where the file is numpy's, which knows byte orders, else torch's.
        shape: of the array.
        columns_first: whether the array lies in the file column by column, as Fortran has it.
        seal: what it was when it was written, if the file says so.
    """

    picks_rows: ClassVar[bool]
    """Whether any row can be read without those before it."""

    stamp: Stamp
    dtype: np.dtype[Any] | torch.dtype
    shape: tuple[int, ...]
    columns_first: bool = False
    seal: Seal | None = None

    @abstractmethod
    def bytes_of(self, file: io.FileIO) -> Bytes:
        """Its bytes in the open file."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """Its type as torch has it.

        Raises:
            FileFormatError: torch has no such type.
        """
        if isinstance(self.dtype, torch.dtype):
            return self.dtype
        try:
            return torch.from_numpy(np.empty(0, self.dtype)).dtype
        except (TypeError, ValueError) as error:
            raise FileFormatError(
                f"{self.stamp.path} holds numbers of the type {self.dtype}, which torch has not"
            ) from error

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def extent(self) -> int:
        """What its strides go up to, which must be a number that numpy and torch can hold even where a side is 0."""
        return self.dtype.itemsize * math.prod(max(side, 1) for side in self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def blank(self, rows: int) -> np.ndarray:
        """Room for the bytes of so many rows."""
        return _room(self.stamp, rows * self.row_bytes)

    def view(self, buffer: np.ndarray) -> Tensor | np.ndarray:
        """Bytes of rows as rows (n, …)."""
        return self._shaped(buffer, (len(buffer) // self.row_bytes, *self.shape[1:]))

    def rows(self) -> RowReader:
        """Its rows from the first to the last, to be used in a ``with`` statement.

        Raises:
            NotInRowsError: they do not lie one after the other.
        """
        self.check_rows()
        return RowReader(self)

    def check_rows(self) -> None:
        """Raise a :class:`NotInRowsError` unless its rows lie one after the other."""
        if self.columns_first:
            raise NotInRowsError(
                f"{self.stamp.path} holds an array column by column; save numpy.ascontiguousarray of it"
            )

    def read(self, file: io.FileIO | None = None) -> Tensor | np.ndarray:
        """All of it, proved, in memory of its own.

        Args:
            file: the open file where several arrays are read from one; the caller then checks that it did not change.
        """
        if file is None:
            with self.stamp.open() as opened:
                found = self.read(opened)
                self.stamp.check(opened)
                return found
        room = _room(self.stamp, self.size)
        _Pass(self, file).fill(room)
        if self.columns_first:
            return self._shaped(room, self.shape[::-1]).T
        return self._shaped(room, self.shape)

    def prove(self) -> None:
        """Read all of it once and compare it with what was written, unless that was done before."""
        if self.seal is not None and not self.seal.proved:
            for _ in self.pieces():
                pass

    def pieces(self) -> Iterator[np.ndarray]:
        """Its bytes (n,), uint8, some at a time; each piece is overwritten by the next."""
        with self.stamp.open() as file:
            passing = _Pass(self, file)
            room = _room(self.stamp, AT_ONCE)
            while passing.left:
                piece = room[: passing.left]
                passing.fill(piece)
                yield piece
            self.stamp.check(file)

    def _shaped(self, buffer: np.ndarray, shape: tuple[int, ...]) -> Tensor | np.ndarray:
        if not isinstance(self.dtype, torch.dtype) and self.dtype.kind == "U":
            self._check_text(buffer)
        if isinstance(self.dtype, torch.dtype):
            flat = torch.from_numpy(buffer).view(self.dtype) if len(buffer) else torch.empty(0, dtype=self.dtype)
            return flat.reshape(shape)
        array: np.ndarray = buffer.view(self.dtype).reshape(shape)
        return array

    def _check_text(self, buffer: np.ndarray) -> None:
        """Refuse letters that no text has, which numpy would only find later."""
        assert isinstance(self.dtype, np.dtype)
        letters = buffer.view(np.dtype(np.uint32).newbyteorder(self.dtype.byteorder))
        if letters.max(initial=0) >= 0x110000:
            raise FileFormatError(f"{self.stamp.path} is broken: it holds letters that no text has")


@dataclass(frozen=True, kw_only=True)
class ArrayOnDisk(StoredArray):
    """An array whose bytes lie in the file as they are, from ``offset`` on."""

    picks_rows = True

    offset: int

    def bytes_of(self, file: io.FileIO) -> Bytes:
        return _Plain(self, file)

    def fill(self, file: io.FileIO, buffer: np.ndarray, row: int) -> None:
        """Read the rows from ``row`` on into ``buffer``, as many as go into it, unproved (see :meth:`prove`)."""
        fill(file, memoryview(buffer.data), self.offset + row * self.row_bytes, self.stamp.path)


class _Plain:
    def __init__(self, array: ArrayOnDisk, file: io.FileIO) -> None:
        self.array, self.file, self.at = array, file, array.offset

    def fill(self, view: memoryview) -> None:
        fill(self.file, view, self.at, self.array.stamp.path)
        self.at += len(view)


class _Pass:
    """One pass over the bytes of an array, compared with what was written when the last of them were read."""

    def __init__(self, array: StoredArray, file: io.FileIO) -> None:
        self.left, self.bytes = array.size, array.bytes_of(file)
        self.comparison = None if array.seal is None or array.seal.proved else array.seal.begin()
        if not self.left:
            self._end()

    def fill(self, buffer: np.ndarray) -> None:
        """The next bytes, into all of ``buffer``."""
        for start in range(0, len(buffer), AT_ONCE):
            piece = buffer[start : start + AT_ONCE]
            self.bytes.fill(memoryview(piece.data))
            if self.comparison is not None:
                self.comparison.update(piece)
            self.left -= len(piece)
            if not self.left:
                self._end()

    def _end(self) -> None:
        if self.comparison is not None:
            self.comparison.finish()


class RowReader:
    """Rows of an array in their order. The last of them are given only when the whole array was what was written."""

    def __init__(self, array: StoredArray) -> None:
        self.array = array

    def __enter__(self) -> Self:
        self.file = self.array.stamp.open()
        try:
            self.passing = _Pass(self.array, self.file)
        except BaseException:
            self.file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()

    def read(self, rows: int) -> Tensor | np.ndarray:
        """The next rows (n, …)."""
        buffer = self.array.blank(rows)
        self.passing.fill(buffer)
        if not self.passing.left:
            self.array.stamp.check(self.file)
        return self.array.view(buffer)


def _room(stamp: Stamp, size: int) -> np.ndarray:
    """Memory (size,) in bytes, aligned as torch has it, so that equal numbers give equal results to the bit."""
    try:
        return torch.empty(size, dtype=torch.uint8).numpy()
    except RuntimeError as error:
        raise StorageError(f"cannot read {stamp.path}: {size:,} bytes of memory could not be had") from error
