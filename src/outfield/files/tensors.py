"""The layout of safetensors files: an eight-byte length, a JSON header of names, types, shapes and offsets, then the bytes.

Written and read by plain writes and reads; a header is held against the file's real size before memory is asked for.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

from outfield.errors import FileFormatError, InputError
from outfield.files.opened import Stamp, open_to_read, read_at
from outfield.files.paths import PathLike, as_path
from outfield.files.stored import ArrayOnDisk

DTYPES = {
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
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LARGEST_HEADER = 2**25
"""Bytes of the longest JSON header that is read."""
MOST_SIDES = 64
"""Dimensions of an array: as many as torch has."""


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file by its header: where its tensors lie, and its metadata."""

    stamp: Stamp
    arrays: dict[str, ArrayOnDisk]
    metadata: dict[str, str]


def find_tensors(path: PathLike, file: io.FileIO | None = None) -> TensorFile:
    """What the header of a safetensors file says, held against the file.

    Args:
        path: the file.
        file: the same, where it is open already.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it is truncated, or not a safetensors file.
    """
    path = as_path(path)
    if file is None:
        with open_to_read(path) as opened:
            return find_tensors(path, opened)
    stamp = Stamp.of_opened(path, file)
    if stamp.size < 8:
        raise _broken(path, f"it has {stamp.size:,} bytes")
    (length,) = struct.unpack("<Q", read_at(file, 0, 8, path))
    if 8 + length > stamp.size:
        raise _broken(path, "its header does not end")
    if length > LARGEST_HEADER:
        raise _broken(path, f"its header is said to have {length:,} bytes")
    header = parse_json(path, read_at(file, 8, length, path))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken(path, "its metadata are not texts")
    arrays = {name: _array(stamp, 8 + length, name, entry) for name, entry in header.items()}
    _check_places(stamp, 8 + length, arrays)
    return TensorFile(stamp, arrays, metadata)


def parse_json(path: PathLike, content: bytes | str) -> dict[str, Any]:
    """A JSON object in which no name stands twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name stands twice")
        return found

    try:
        text = content if isinstance(content, str) else content.decode()
        found = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise _broken(path, str(error)) from error
    if not isinstance(found, dict):
        raise _broken(path, "its header is not an object")
    return found


def _array(stamp: Stamp, offset: int, name: str, entry: Any) -> ArrayOnDisk:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (*shape, start, end))
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(stamp.path, f"{error!r} in {name!r}") from error
    if not whole or not isinstance(dtype, str) or len(shape) > MOST_SIDES:
        raise _broken(stamp.path, f"type, shape or place of {name!r} are none")
    if dtype not in DTYPES:
        raise FileFormatError(
            f"{stamp.path} holds numbers of the type {dtype} in {name!r}; known are {', '.join(DTYPES)}"
        )
    found = ArrayOnDisk(stamp=stamp, offset=offset + start, dtype=DTYPES[dtype], shape=shape)
    if end - start != found.size or found.extent >= 2**63:
        raise FileFormatError(f"{stamp.path} is truncated: it should hold a tensor of shape {shape}")
    return found


def _check_places(stamp: Stamp, offset: int, arrays: Mapping[str, ArrayOnDisk]) -> None:
    """Refuse tensors that overlap, and bytes that belong to none."""
    for array in sorted(arrays.values(), key=lambda array: (array.offset, array.size)):
        if array.offset != offset:
            raise _broken(stamp.path, "its tensors do not lie one after the other")
        offset += array.size
    if offset != stamp.size:
        raise _broken(stamp.path, f"its tensors end at byte {offset:,} of {stamp.size:,}")


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write contiguous tensors on the CPU to an open file."""
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise InputError(f"{name} holds {tensor.dtype}, which safetensors files do not")
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name in names:
        shape, dtype = list(tensors[name].shape), tensors[name].dtype
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LARGEST_HEADER:
        raise InputError(
            f"the names and settings to be written take {len(text):,} bytes; at most {LARGEST_HEADER:,} can be"
        )
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        if tensors[name].numel():
            file.write(tensors[name].reshape(-1).view(torch.uint8).numpy().data)


def _broken(path: PathLike, why: str) -> FileFormatError:
    return FileFormatError(f"{path} is truncated or is not a safetensors file ({why})")
