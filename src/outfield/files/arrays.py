"""Arrays in files: safetensors, ``.npy`` and ``.npz``, found by their headers, their checksums verified while the bytes are read.

The libraries read the headers; nothing is unpickled. The bytes are read here, from plain files: a memory map would end
the process where a file is cut short, and the pread of safetensors 0.8 reads a whole tensor for each row.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from outfield.errors import FileFormatError, InputError, StorageError, as_ours
from outfield.files.paths import PathLike, as_path, open_to_read, using

# Types of numbers by their names in safetensors files
DTYPES = {
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "BOOL": torch.bool,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "C64": torch.complex64,
    "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
HEADER_NAME = "outfield"  # metadata entry of a file of ours that holds its header
HEADER_MEMBER = "outfield_header"  # array of an ``.npz`` of ours that holds its header
AT_ONCE = 2**22  # bytes read in one go; they are still near the processor when their digest is taken
PIECE = 2**26  # bytes of a tensor that are copied at once to be digested


class NotInRowsError(InputError):
    """The rows of an array do not lie one after the other in its file, so that it can only be read whole."""


@dataclass(frozen=True)
class Stamp:
    """A file as it was when it was opened; later changes of it are errors."""

    path: Path
    device: int
    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: PathLike, file: io.FileIO | None = None) -> Stamp:
        """Of the file at ``path``, or of an open one that messages call so."""
        with using(path, file) as opened:
            status = os.fstat(opened.fileno())
        if not status.st_size:
            raise FileFormatError(f"{path} is empty: the file has no content")
        return cls(Path(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def open(self) -> io.FileIO:
        """The same file once more, to be read."""
        with contextlib.suppress(StorageError):
            file = open_to_read(self.path)
            if Stamp.of(self.path, file) == self:
                return file
            file.close()
        raise self._changed()

    def check(self, file: io.FileIO | None = None) -> None:
        """Raise a :class:`FileFormatError` if the file, open or at its path, is not what it was."""
        if file is None:
            self.open().close()
        elif Stamp.of(self.path, file) != self:
            raise self._changed()

    def _changed(self) -> FileFormatError:
        return FileFormatError(f"{self.path} changed while it was being read; open it again once it is written")


def fill(content: Any, view: memoryview, path: PathLike) -> None:
    """Read the next bytes into all of ``view``."""
    done = 0
    with read_errors(path, "a file that can be read"):
        while done < len(view):
            count = content.readinto(view[done : done + AT_ONCE])
            if not count:
                raise FileFormatError(f"{path} is truncated: it ended while being read")
            done += count


class Fingerprint:
    """SHA-256 over names, types, shapes and bytes of tensors, which may come in pieces; names must ascend."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def begin(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """The next tensor's bytes follow."""
        self._sha.update(f"{name}|{dtype}|{shape}|".encode())

    def update(self, content: Tensor | np.ndarray) -> None:
        """More bytes of it: of a contiguous tensor of any type, or bytes as they are."""
        if isinstance(content, np.ndarray):
            self._sha.update(content.data)
        elif content.numel():
            flat = content.reshape(-1)
            if flat.stride(0) != 1:  # a single number may have any stride and be called contiguous
                flat = flat.clone(memory_format=torch.contiguous_format)
            self._sha.update(flat.view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        """The digest of all that came."""
        return self._sha.hexdigest()


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes; what lies on a GPU is never copied whole."""
    digest = Fingerprint()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.begin(name, tensor.dtype, tuple(tensor.shape))
        for piece in tensor.reshape(-1).split(max(1, PIECE // tensor.itemsize)):
            digest.update(piece.cpu())
    return digest.hexdigest()


@dataclass
class Proof:
    """Whether a pass over an array's bytes has shown that they are those that were written."""

    proved: bool = True  # also where the file says nothing of them
    digest: str | None = None  # that they had when they were written; members of an archive have a CRC-32 besides


@dataclass(frozen=True, kw_only=True)
class StoredArray:
    """An array in a file."""

    stamp: Stamp
    name: str
    dtype: np.dtype[Any] | torch.dtype  # numpy's where the file is numpy's, which knows byte orders
    shape: tuple[int, ...]
    offset: int  # of its first byte in the file, or in the member
    member: str | None = None  # of an archive
    start: int | None = (
        0  # of the member in the file; None where it is packed: its rows can be read in their order only
    )
    columns_first: bool = False  # as Fortran has it
    proof: Proof = field(default_factory=Proof)

    @property
    def picks_rows(self) -> bool:
        """Whether any row can be read without those before it."""
        return self.start is not None

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def check_size(self, there: int) -> None:
        """Refuse a shape that no array has, and one that does not fit the bytes that are there."""
        extent = self.dtype.itemsize * math.prod(max(side, 1) for side in self.shape)
        if extent >= 2**63 or min(self.shape, default=0) < 0 or self.size != there:
            raise FileFormatError(f"{self.stamp.path} is truncated: {there:,} bytes for an array of shape {self.shape}")

    def check_rows(self) -> None:
        """Refuse an array that cannot be read in rows: objects, or columns one after the other."""
        self.check_objects()
        if self.columns_first:
            raise NotInRowsError(f"{self.stamp.path} lies column by column; save numpy.ascontiguousarray of it")

    def check_objects(self) -> None:
        """Refuse an array that would have to be unpickled."""
        if isinstance(self.dtype, np.dtype) and self.dtype.hasobject:
            raise FileFormatError(f"{self.stamp.path} holds objects, which are never unpickled; save plain arrays")

    def entry(self) -> Tensor | np.ndarray:
        """One entry, 0, with as many dimensions as the array: what an array of its type is taken for."""
        return self._shaped(np.zeros(self.dtype.itemsize, np.uint8), (1,) * len(self.shape))

    @contextlib.contextmanager
    def rows(self, file: io.FileIO | None = None) -> Iterator[RowReader]:
        """Its rows from the first to the last; ``file`` where it is open already."""
        with self.stamp.open() if file is None else contextlib.nullcontext(file) as opened:
            yield RowReader(self, opened)

    def read(self, file: io.FileIO | None = None) -> Tensor | np.ndarray:
        """All of it, proved, in memory of its own."""
        self.check_objects()
        with self.rows(file) as reader:
            room = reader.bytes(self.size)
        return self._shaped(room, self.shape[::-1]).T if self.columns_first else self._shaped(room, self.shape)

    def pick(self, numbers: np.ndarray) -> Tensor | np.ndarray:
        """The rows with these numbers (n,), one small read each; the whole array is proved before."""
        if not self.proof.proved:
            with self.rows() as reader:
                while reader.left:
                    reader.bytes(min(reader.left, AT_ONCE))
        room, width, first = _room(len(numbers) * self.row_bytes), self.row_bytes, (self.start or 0) + self.offset
        with self.stamp.open() as file:
            for place in np.argsort(numbers, kind="stable").tolist():
                file.seek(first + int(numbers[place]) * width)
                fill(file, memoryview(room.data)[place * width : (place + 1) * width], self.stamp.path)
        return self._shaped(room, (len(numbers), *self.shape[1:]))

    def _shaped(self, room: np.ndarray, shape: tuple[int, ...]) -> Tensor | np.ndarray:
        if not isinstance(self.dtype, torch.dtype):
            return room.view(self.dtype).reshape(shape)
        filled = torch.from_numpy(room).view(self.dtype) if len(room) else torch.empty(0, dtype=self.dtype)
        return filled.reshape(shape)


class RowReader:
    """One pass over an array. Its last rows are given only when the whole array was what was written."""

    def __init__(self, array: StoredArray, file: io.FileIO) -> None:
        self.array, self.file, self.left, self.path = array, file, array.size, array.stamp.path
        self.digest: Fingerprint | None = None
        if array.proof.digest is not None and not array.proof.proved:
            self.digest = Fingerprint()
            self.digest.begin(array.name, torch.as_tensor(array.entry()).dtype, array.shape)
        with read_errors(self.path):
            self.content: Any = file
            file.seek(array.offset)
            if array.member is not None:  # whose CRC-32 zipfile compares when its last byte is read
                self.content = zipfile.ZipFile(file).open(array.member)  # noqa: SIM115
                self.content.read(array.offset)

    def read(self, rows: int) -> Tensor | np.ndarray:
        """The next rows (n, …)."""
        return self.array._shaped(self.bytes(rows * self.array.row_bytes), (rows, *self.array.shape[1:]))

    def bytes(self, size: int) -> np.ndarray:
        """The next bytes (size,)."""
        room = _room(size)
        for start in range(0, size, AT_ONCE):
            piece = room[start : start + AT_ONCE]
            fill(self.content, memoryview(piece.data), self.path)
            if self.digest is not None:
                self.digest.update(piece)
            self.left -= len(piece)
        if not self.left:
            self.array.stamp.check(self.file)
            if self.digest is not None:
                check_digest(self.path, self.array.proof.digest, self.digest.hexdigest(), f"its {self.array.name}")
            self.array.proof.proved = True
        return room


def check_digest(path: PathLike, written: str | None, found: str, what: str) -> None:
    """Refuse a file whose content has another digest than the one written into it."""
    if written != found:
        raise FileFormatError(f"{path} was changed after it was written: its checksum does not match {what}")


def _room(size: int) -> np.ndarray:
    """Memory (size,) in bytes, aligned as torch has it, so that equal numbers give equal results to the bit."""
    return torch.empty(size, dtype=torch.uint8).numpy()


@contextlib.contextmanager
def read_errors(path: PathLike, what: str = "an .npz archive of arrays") -> Iterator[None]:
    """Turn what libraries raise of a broken file into a :class:`FileFormatError`."""
    with as_ours(f"{path} is truncated, or is not {what}"), as_ours(f"cannot read {path}", StorageError, OSError):
        yield


class ArrayFile(NamedTuple):
    """The arrays of a file, by name, and its metadata."""

    arrays: dict[str, StoredArray]
    metadata: dict[str, str]


def find_tensors(path: PathLike, file: io.FileIO | None = None) -> ArrayFile:
    """What the header of a safetensors file says; ``file`` where it is open already."""
    from safetensors import safe_open

    path, arrays = as_path(path), {}
    with using(path, file) as opened, read_errors(path, "a safetensors file"):
        stamp, again = Stamp.of(path, opened), Path(f"/dev/fd/{opened.fileno()}")
        by_name = not again.exists()  # else it is the same file also where another takes its place meanwhile
        with safe_open(path if by_name else again, "numpy", backend="pread") as found:
            offset = 8 + int.from_bytes(bytes_at(opened, 0, 8, path), "little")
            for name in found.offset_keys():  # one after the other, without gaps: safetensors saw to it
                said = found.get_slice(name)
                if said.get_dtype() not in DTYPES:
                    raise FileFormatError(f"{path} holds {said.get_dtype()} in {name!r}; known are {', '.join(DTYPES)}")
                dtype, shape = DTYPES[said.get_dtype()], tuple(said.get_shape())
                array = StoredArray(stamp=stamp, name=name, dtype=dtype, shape=shape, offset=offset)
                array.check_size(array.size)
                arrays[name] = array
                offset += array.size
            metadata = found.metadata() or {}
        stamp.check(None if by_name else opened)
    return ArrayFile(arrays, metadata)


def bytes_at(file: io.FileIO, start: int, count: int, path: PathLike) -> bytes:
    """Some bytes of a file."""
    content = bytearray(count)
    file.seek(start)
    fill(file, memoryview(content), path)
    return bytes(content)


def find_npy(path: PathLike) -> StoredArray:
    """Where the array of an ``.npy`` file lies."""
    path = as_path(path)
    with open_to_read(path) as file, read_errors(path, "an .npy file"):
        stamp = Stamp.of(path, file)
        return _array(stamp, path.stem, file, stamp.size)


def find_npz(path: PathLike, file: io.FileIO | None = None) -> ArrayFile:
    """Where the arrays of an ``.npz`` lie; ``file`` where it is open already."""
    path, arrays = as_path(path), {}
    with using(path, file) as opened:
        stamp = Stamp.of(path, opened)
        with read_errors(path):
            archive = zipfile.ZipFile(opened)
            for info in archive.infolist():
                name, start = info.filename.removesuffix(".npy"), None
                with archive.open(info) as content:
                    array = _array(stamp, name, content, info.file_size)
                if info.compress_type == zipfile.ZIP_STORED:
                    lengths = struct.unpack("<26xHH", bytes_at(opened, info.header_offset, 30, path))
                    start = (
                        info.header_offset + 30 + sum(lengths)
                    )  # after the member's name and what else is said there
                if name in arrays:
                    raise FileFormatError(f"{path} holds two arrays {name!r}")
                arrays[name] = replace(array, member=info.filename, start=start, proof=Proof(proved=False))
        ours = arrays.pop(HEADER_MEMBER, None)
        return ArrayFile(arrays, {} if ours is None else {HEADER_NAME: str(ours.read(opened))})


def _array(stamp: Stamp, name: str, content: IO[bytes] | io.FileIO, size: int) -> StoredArray:
    """The array whose ``.npy`` of this size begins here."""
    one, two = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
    read = {(1, 0): one, (2, 0): two, (3, 0): two}  # the third differs from the second in the names of columns only
    shape, turned, dtype = read[np.lib.format.read_magic(content)](content)
    turned = turned and len(shape) > 1
    array = StoredArray(stamp=stamp, name=name, dtype=dtype, shape=shape, offset=content.tell(), columns_first=turned)
    if not dtype.hasobject:
        array.check_size(size - array.offset)
    return array


def read_npz(path: PathLike) -> dict[str, np.ndarray]:
    """All arrays of an ``.npz``."""
    with open_to_read(path) as file:
        return {name: np.asarray(array.read(file)) for name, array in find_npz(path, file).arrays.items()}


def read_tensors(path: PathLike) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of any safetensors file, unproved."""
    with open_to_read(path) as file:
        found = find_tensors(path, file)
        return found.metadata, {name: torch.as_tensor(array.read(file)) for name, array in found.arrays.items()}
