"""Files of ours: safetensors with one JSON header, written atomically, proved on reading, never unpickled nor mapped.

Every file that Outfield writes holds tensors as safetensors stores them and one metadata entry ``outfield``, the header
(see :mod:`outfield.files.headers`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from outfield.errors import FileFormatError
from outfield.files import headers, repeats
from outfield.files.atomic import write_atomically
from outfield.files.digests import DigestSeal, Fingerprint, WholeSeal, fingerprint
from outfield.files.headers import Header
from outfield.files.opened import open_to_read
from outfield.files.paths import PathLike, as_path, check_ending
from outfield.files.stored import ArrayOnDisk, StoredArray
from outfield.files.tensors import TensorFile, find_tensors, write_tensors

__all__ = [
    "ENDINGS",
    "Fingerprint",
    "find",
    "fingerprint",
    "fingerprint_on_disk",
    "kind_of",
    "read",
    "read_any",
    "read_tensors",
    "sealed",
    "write",
]

ENDINGS = (".safetensors",)
"""Of the files that :func:`write` writes: detectors, thresholds, checkpoints, classifiers, runs."""
Stored = TypeVar("Stored", bound=StoredArray)
log = logging.getLogger(__name__)


def write(
    path: PathLike,
    kind: str,
    header: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    endings: Sequence[str] = ENDINGS,
    once: bool = False,
) -> None:
    """Write tensors and a JSON-ready header to ``path``.

    Args:
        path: the file.
        kind: what it holds.
        header: what is said of it.
        tensors: what is in it, by name.
        endings: that its name may have.
        once: write large tensors that are equal once; :func:`read` gives them all.

    Raises:
        InputError: its name has another ending.
        StorageError: see :func:`write_atomically`.
    """
    check_ending(path, endings)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if once:
        plain, same = repeats.without_repeats(plain)
        header = {**header, repeats.ENTRY: same} if same else header
    metadata = {headers.NAME: headers.make_header(kind, header, plain)}
    write_atomically(path, lambda file: write_tensors(file, plain, metadata))
    log.debug("wrote a %s of %d arrays to %s", kind, len(plain), path)


def read(
    path: PathLike,
    kind: str,
    entries: Mapping[str, type | tuple[type, ...]] | None = None,
    ranks: Mapping[str, int] | None = None,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file that :func:`write` wrote; returns its header and tensors.

    Args:
        path: the file.
        kind: what it must hold.
        entries: what its header must hold, and of which types; float takes integers too.
        ranks: which tensors it must hold, and of how many dimensions.

    Raises:
        StorageError: there is no such file, or it cannot be read.
        FileFormatError: it is truncated, changed, incomplete, of another kind, from a newer version, or not ours at all.
    """
    path = as_path(path)
    header, tensors = read_any(path, kind)
    if header is None:
        raise FileFormatError(
            f"{path} is a safetensors file, but not one that Outfield wrote: it has no Outfield header"
        )
    if repeats.ENTRY in header.entries:
        tensors = repeats.with_repeats(path, tensors, header.entries.pop(repeats.ENTRY))
    header.check_entries(entries or {})
    for name, rank in (ranks or {}).items():
        if name not in tensors or tensors[name].ndim != rank:
            found = f"of shape {tuple(tensors[name].shape)}" if name in tensors else "missing"
            raise FileFormatError(f"{path} is not a complete {kind}: {name} is {found}; it must have {rank} dimensions")
    return header.entries, tensors


def read_any(path: PathLike, kind: str) -> tuple[Header | None, dict[str, Tensor]]:
    """Header (None where the file is not ours) and tensors of a safetensors file, proved where it is ours."""
    path = as_path(path)
    with open_to_read(path) as file:
        found = find_tensors(path, file)
        header = _header_of(found, kind)
        old = header is not None and header.digests is None
        arrays = found.arrays if header is None or old else sealed(header, found.arrays)
        tensors = {name: torch.as_tensor(array.read(file)) for name, array in arrays.items()}
        found.stamp.check(file)
    if header is not None and old:
        header.check_whole(fingerprint(tensors))
    log.debug("read a %s of %d arrays from %s", kind, len(tensors), path)
    return header, tensors


def read_tensors(path: PathLike) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of any safetensors file, unproved."""
    path = as_path(path)
    with open_to_read(path) as file:
        found = find_tensors(path, file)
        tensors = {name: torch.as_tensor(array.read(file)) for name, array in found.arrays.items()}
        found.stamp.check(file)
    return found.metadata, tensors


def find(path: PathLike, kind: str) -> tuple[Header | None, dict[str, ArrayOnDisk]]:
    """Header (None where the file is not ours) and places of the tensors of a safetensors file.

    The header is proved here, and each tensor when it is read: see :meth:`outfield.files.stored.StoredArray.rows`. Of a
    file of an earlier version all tensors are read and compared before the first is given.
    """
    found = find_tensors(as_path(path))
    header = _header_of(found, kind)
    return header, found.arrays if header is None else sealed(header, found.arrays)


def kind_of(path: PathLike) -> str | None:
    """What a file of ours holds; None where it is a safetensors file of somebody else.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it is no safetensors file, or its header was changed.
    """
    found = find_tensors(as_path(path))
    text = found.metadata.get(headers.NAME)
    return None if text is None else Header.parse(found.stamp.path, text).kind


def _header_of(found: TensorFile, kind: str) -> Header | None:
    if headers.NAME not in found.metadata:
        if any('"sha256"' in text and '"kind"' in text for text in found.metadata.values()):
            raise FileFormatError(f"{found.stamp.path} was changed after it was written: its header has another name")
        return None
    header = Header.parse(found.stamp.path, found.metadata[headers.NAME])
    header.check_kind(kind)
    header.check_names(found.arrays)
    return header


def sealed(header: Header, arrays: Mapping[str, Stored]) -> dict[str, Stored]:
    """The arrays of a file of ours, each with what it was when it was written."""
    if header.digests is None:
        whole = WholeSeal(header.path, lambda: header.check_whole(fingerprint_on_disk(arrays)))
        return {name: replace(array, seal=whole) for name, array in arrays.items()}
    return {
        name: replace(array, seal=DigestSeal(header.path, header.digests[name], name, array.torch_dtype, array.shape))
        for name, array in arrays.items()
    }


def fingerprint_on_disk(arrays: Mapping[str, Stored]) -> str:
    """:func:`fingerprint` of arrays in files."""
    digest = Fingerprint()
    for name in sorted(arrays):
        digest.begin(name, arrays[name].torch_dtype, arrays[name].shape)
        for piece in arrays[name].pieces():
            digest.update(torch.from_numpy(piece))
    return digest.hexdigest()
