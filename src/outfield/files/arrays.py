"""Named arrays in ``.safetensors``, ``.npz`` and ``.npy`` files: read whole, or found on disk to be read in rows.

Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import FileFormatError, InputError, StorageError
from outfield.files import atomic, storage
from outfield.files.atomic import PathLike
from outfield.files.checks import FIELDS

DIGEST = "outfield_sha256"
"""Name of the array in an ``.npz`` of ours that holds the digest of the others."""
SAFETENSORS = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
}
BROKEN = (ValueError, OSError, EOFError, KeyError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise where an archive is not one."""


class NotInRowsError(InputError):
    """The rows of an array do not lie one after the other in its file, so that it can only be read whole."""


@dataclass(frozen=True)
class Stamp:
    """A file as it was when it was opened; a change of it is found."""

    path: Path
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: PathLike) -> Stamp:
        """Of a file that may be read."""
        atomic.check_readable(path)
        status = Path(path).stat()
        return cls(Path(path), status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Raise a :class:`FileFormatError` if the file is not what it was."""
        with contextlib.suppress(StorageError):
            if Stamp.of(self.path) == self:
                return
        raise FileFormatError(f"{self.path} changed while it was being read; open it again once it is written")


@dataclass(frozen=True)
class ArrayOnDisk:
    """Where an array (N, …) lies: its rows one after the other in a file.

    Attributes:
        stamp: the file.
        offset: of the first byte.
        dtype: of an entry; numpy's where the file is numpy's, which knows byte orders, else torch's.
        shape: of the array.
    """

    stamp: Stamp
    offset: int
    dtype: np.dtype[Any] | torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def blank(self, rows: int) -> np.ndarray:
        """Room for the bytes of so many rows."""
        return np.empty(rows * self.row_bytes, np.uint8)

    def fill(self, file: io.RawIOBase, buffer: np.ndarray, row: int) -> None:
        """Read the rows from ``row`` on into ``buffer``, as many as go into it."""
        view, start = memoryview(buffer.data), self.offset + row * self.row_bytes
        file.seek(start)
        done = 0
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise FileFormatError(f"{self.stamp.path} ended at byte {start + done:,} while it was being read")
            done += count

    def view(self, buffer: np.ndarray) -> Tensor | np.ndarray:
        """Bytes of rows as rows (n, …)."""
        shape = (len(buffer) // self.row_bytes, *self.shape[1:])
        if isinstance(self.dtype, torch.dtype):
            return torch.from_numpy(buffer).view(self.dtype).reshape(shape)
        return buffer.view(self.dtype).reshape(shape)


def split_source(source: str) -> tuple[Path, str | None]:
    """``FILE`` or ``FILE#SET`` as path and set; a file whose own name has a # in it is found first."""
    name, hash_sign, part = source.rpartition("#")
    if not hash_sign or Path(source).is_file():
        return Path(source), None
    return Path(name), part or None


def check_names(path: PathLike, names: Sequence[str]) -> None:
    """Refuse a file whose arrays are not the fields of a FeatureSet."""
    if set(names) - set(FIELDS) or "features" not in names:
        shown = ", ".join(names[:6]) or "nothing"
        raise FileFormatError(
            f"{path} is not a FeatureSet: it holds {shown}{', …' if len(names) > 6 else ''}; expected features and any of "
            f"{', '.join(FIELDS[1:])}{_parts_hint(names)}"
        )


def _names_of_part(path: PathLike, part: str, names: Sequence[str]) -> dict[str, str]:
    """The arrays of one set in an ``.npz`` of several: name in the file → field."""
    found = {f"{part}_{field}": field for field in FIELDS if f"{part}_{field}" in names}
    if not found:
        raise FileFormatError(f"{path} has no set {part!r}{_parts_hint(names)}")
    return found


def _parts_hint(names: Sequence[str]) -> str:
    parts = [name.removesuffix("_features") for name in names if name.endswith("_features")]
    return f"; it holds several sets, name one of them: {', '.join(parts)}" if parts else ""


def read_safetensors(path: PathLike) -> dict[str, Tensor]:
    """Tensors of a FeatureSet of ours, checked, or of any other safetensors file."""
    metadata, tensors = storage.read_tensors(path)
    if "outfield" in metadata:
        storage.parse_header(path, "FeatureSet", metadata["outfield"], tensors)
    return tensors


def read_npz(path: PathLike, part: str | None) -> dict[str, np.ndarray]:
    """Arrays of an ``.npz``, or of one set of several in it."""
    atomic.check_readable(path)
    with _npz_errors(path):
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise FileFormatError(f"{path} holds a single array, not an .npz archive")
        with file:
            if part is not None:
                return {field: file[name] for name, field in _names_of_part(path, part, file.files).items()}
            arrays = {name: file[name] for name in file.files}
            if DIGEST in arrays:
                digest = str(arrays.pop(DIGEST))
                content = storage.fingerprint({name: torch.from_numpy(array) for name, array in arrays.items()})
                storage.check_digest(path, digest, content)
            return arrays


@contextlib.contextmanager
def _npz_errors(path: PathLike) -> Iterator[None]:
    try:
        yield
    except (FileFormatError, InputError):
        raise
    except BROKEN as error:
        raise FileFormatError(f"{path} is truncated, or is not an .npz archive of plain arrays ({error})") from error


def find_npy(path: PathLike) -> ArrayOnDisk:
    """Where the array of an ``.npy`` file lies."""
    stamp = Stamp.of(path)
    try:
        with open(path, "rb") as file:
            return _npy_at(stamp, file, 0, stamp.size)
    except (FileFormatError, InputError):
        raise
    except BROKEN as error:
        raise FileFormatError(f"{path} is truncated, or is not an .npy file ({error})") from error


def _npy_at(stamp: Stamp, file: Any, offset: int, length: int) -> ArrayOnDisk:
    """The array whose ``.npy`` header ``file`` is about to read, ``length`` bytes in all that begin at ``offset``."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in readers:
        raise FileFormatError(f"{stamp.path} is of .npy version {version}; arrays of plain numbers have version 1 or 2")
    shape, columns_first, dtype = readers[version](file)
    if dtype.hasobject:
        raise FileFormatError(
            f"{stamp.path} holds pickled objects, which are never unpickled; save an array of numbers"
        )
    if dtype.kind not in "fiubc":
        raise InputError(f"{stamp.path} must hold an array of numbers; it holds {dtype}")
    if columns_first and len(shape) > 1:
        raise NotInRowsError(f"{stamp.path} holds an array column by column; save numpy.ascontiguousarray of it")
    found = ArrayOnDisk(stamp, offset + file.tell(), dtype, tuple(shape))
    if file.tell() + math.prod(shape) * dtype.itemsize > length:
        raise FileFormatError(f"{stamp.path} is truncated: it should hold an array of shape {tuple(shape)}")
    return found


def find_npz(path: PathLike, part: str | None) -> tuple[dict[str, ArrayOnDisk], str | None]:
    """Where the arrays of an ``.npz`` (or of one set of several in it) lie, and the digest where it is one of ours."""
    stamp = Stamp.of(path)
    with _npz_errors(path), zipfile.ZipFile(path) as archive, open(path, "rb") as raw:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        digest = str(np.load(archive.open(members.pop(DIGEST)), allow_pickle=False)) if DIGEST in members else None
        fields = {name: name for name in members} if part is None else _names_of_part(path, part, list(members))
        check_names(path, list(fields.values()))
        found = {field: _member(stamp, archive, raw, members[name]) for name, field in fields.items()}
    return found, None if part is not None else digest


def _member(stamp: Stamp, archive: zipfile.ZipFile, raw: io.BufferedReader, info: zipfile.ZipInfo) -> ArrayOnDisk:
    if info.compress_type != zipfile.ZIP_STORED:
        raise NotInRowsError(
            f"{stamp.path} is compressed, so that it can only be read whole; write it with numpy.savez"
        )
    raw.seek(info.header_offset + 26)
    name_length, extra_length = struct.unpack("<HH", raw.read(4))
    start = info.header_offset + 30 + name_length + extra_length
    if start + info.file_size > stamp.size:
        raise FileFormatError(f"{stamp.path} is truncated: {info.filename} does not lie in it whole")
    with archive.open(info) as member:
        return _npy_at(stamp, member, start, info.file_size)


def find_safetensors(path: PathLike) -> tuple[dict[str, ArrayOnDisk], Mapping[str, str]]:
    """Where the tensors of a safetensors file lie, and its metadata."""
    stamp = Stamp.of(path)
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if 8 + length > stamp.size:
                raise FileFormatError(f"{path} is truncated or is not a safetensors file (its header does not end)")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        found = {name: _tensor_at(stamp, 8 + length, entry) for name, entry in header.items()}
    except FileFormatError:
        raise
    except (*BROKEN, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} is truncated or is not a safetensors file ({error!r})") from error
    return found, metadata


def _tensor_at(stamp: Stamp, offset: int, entry: Mapping[str, Any]) -> ArrayOnDisk:
    start, end = entry["data_offsets"]
    shape = tuple(int(side) for side in entry["shape"])
    if entry["dtype"] not in SAFETENSORS:
        raise FileFormatError(f"{stamp.path} holds {entry['dtype']}; features are read from {', '.join(SAFETENSORS)}")
    found = ArrayOnDisk(stamp, offset + start, SAFETENSORS[entry["dtype"]], shape)
    if start < 0 or end - start != math.prod(shape) * found.dtype.itemsize or offset + end > stamp.size:
        raise FileFormatError(f"{stamp.path} is truncated: it should hold a tensor of shape {shape}")
    return found
