"""Named arrays in ``.safetensors``, ``.npz`` and ``.npy`` files: read whole, or found on disk to be read in rows.

Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from outfield.errors import FileFormatError, InputError
from outfield.files import atomic, storage
from outfield.files.atomic import PathLike
from outfield.files.digests import WholeSeal, check_digest
from outfield.files.opened import Stamp
from outfield.files.stored import ArrayOnDisk, NotInRowsError

DIGEST = "outfield_sha256"
"""Name of the array in an ``.npz`` of ours that holds the digest of the others."""
BROKEN = (ValueError, OSError, EOFError, KeyError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise where an archive is not one."""


Choose = Callable[[list[str]], Mapping[str, str]]
"""Which arrays of a file are wanted, by their names: name in the file → what to call it; an error where they are not there."""


def read_npz(path: PathLike, choose: Choose | None = None) -> dict[str, np.ndarray]:
    """Arrays of an ``.npz``: those that are wanted, or all of them; checked where the file is one of ours."""
    atomic.check_readable(path)
    with _npz_errors(path):
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise FileFormatError(f"{path} holds a single array, not an .npz archive")
        with file:
            names = [name for name in file.files if name != DIGEST]
            wanted = {name: name for name in names} if choose is None else choose(names)
            arrays = {name: file[name] for name in wanted}
            if DIGEST in file.files and set(wanted) == set(names):
                content = storage.fingerprint({name: torch.from_numpy(array) for name, array in arrays.items()})
                check_digest(path, str(file[DIGEST]), content)
            return {called: arrays[name] for name, called in wanted.items()}


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
    found = ArrayOnDisk(stamp=stamp, offset=offset + file.tell(), dtype=dtype, shape=tuple(shape))
    if file.tell() + math.prod(shape) * dtype.itemsize > length:
        raise FileFormatError(f"{stamp.path} is truncated: it should hold an array of shape {tuple(shape)}")
    return found


def find_npz(path: PathLike, choose: Choose) -> dict[str, ArrayOnDisk]:
    """Where the wanted arrays of an ``.npz`` lie."""
    stamp = Stamp.of(path)
    with _npz_errors(path), zipfile.ZipFile(path) as archive, open(path, "rb") as raw:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        digest = str(np.load(archive.open(members.pop(DIGEST)), allow_pickle=False)) if DIGEST in members else None
        wanted = choose(list(members))
        found = {called: _member(stamp, archive, raw, members[name]) for name, called in wanted.items()}
    if digest is None or set(wanted) != set(members):
        return found
    seal = WholeSeal(path, lambda: check_digest(path, digest, storage.fingerprint_on_disk(found)))
    return {name: replace(array, seal=seal) for name, array in found.items()}


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
