"""Files of ours: arrays and one JSON header, written atomically, proved when they are read, never unpickled.

A file is a safetensors file with the header as the metadata entry ``outfield``, or an ``.npz`` with the header as the text
``outfield_header``. The header is ``{"format": 2, "kind": ..., "digests": {array: sha256}, "sha256": ..., ...}``: each array
has a digest of its own (name, type, shape and bytes), and ``sha256`` is the digest of the header with those digests. So the
header is proved when it is read, each array when that array is, and a changed byte anywhere is found by whoever reads it.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from outfield.errors import MALFORMED, FileFormatError, InputError, StorageError, as_ours
from outfield.files.arrays import (
    DTYPES,
    HEADER_MEMBER,
    HEADER_NAME,
    Proof,
    StoredArray,
    check_digest,
    find_npz,
    find_tensors,
    fingerprint,
)
from outfield.files.paths import PathLike, check_ending, open_to_read, using, write_atomically, write_npz

RECORD_ENDINGS = (".safetensors",)
FORMAT = 2
NARROWER = {torch.float32: torch.float16, torch.float64: torch.float32}
# Header entry of tensors that are not in the file: by the name of each, the name of the one that it equals
SAME = "same"
WORTH_SHARING = 2**16  # bytes from which on it is worth looking for an equal tensor
log = logging.getLogger(__name__)


class Record(NamedTuple):
    """What a file holds: a header, ready for JSON, and tensors by name.

    >>> inner = Record({"settings": {}}, {"means": torch.zeros(3)})
    >>> outer = Record.of({"version": 1}, detector=inner)
    >>> outer.header, list(outer.tensors)
    ({'version': 1, 'detector': {'settings': {}}}, ['detector.means'])
    >>> outer.part("detector").header
    {'settings': {}}
    """

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, header: Mapping[str, Any], **parts: Record) -> Record:
        """A record of others: the header of each stands under its name, its tensors are called ``name.…``."""
        return cls(
            {**header, **{name: part.header for name, part in parts.items()}},
            {f"{name}.{key}": value for name, part in parts.items() for key, value in part.tensors.items()},
        )

    def part(self, name: str) -> Record:
        """One of the records that :meth:`of` joined; empty where there is none."""
        return Record(self.header.get(name, {}), tensors_under(self.tensors, f"{name}."))

    def narrowed(self) -> Record:
        """The same with half as many bits: float32 becomes float16, float64 becomes float32."""
        found = {name: value.to(NARROWER.get(value.dtype, value.dtype)) for name, value in self.tensors.items()}
        for name, value in found.items():
            if not bool(value.isfinite().all()):
                raise InputError(f"{name} holds numbers that are too large for {value.dtype}".replace("torch.", ""))
        return Record(self.header, found)


def tensors_under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, by the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def write_record(
    path: PathLike, kind: str, record: Record, *, endings: Sequence[str] = RECORD_ENDINGS, once: bool = False
) -> None:
    """Write a record: an ``.npz`` where the path ends so, else a safetensors file; ``once`` writes large equal tensors once."""
    ending = check_ending(path, endings).suffix
    header = record.header
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in record.tensors.items()}
    if once:
        tensors, same = _without_repeats(tensors)
        header = {**header, SAME: same} if same else header
    digests = {name: fingerprint({name: tensor}) for name, tensor in tensors.items()}
    body = json.loads(json.dumps({**header, "format": FORMAT, "kind": kind, "digests": digests}))  # as it will be read
    text = json.dumps({**body, "sha256": _digest(body)}, sort_keys=True)
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES.values() or (ending == ".npz" and tensor.dtype == torch.bfloat16):
            raise InputError(f"{path}: {ending} cannot hold {name}, which is {tensor.dtype}".replace("torch.", ""))
    if ending == ".npz":  # the header comes first, so that a table of contents that lost its end is found
        write_npz(path, {HEADER_MEMBER: np.array(text), **{name: tensor.numpy() for name, tensor in tensors.items()}})
    else:
        write_atomically(path, lambda file: _write_tensors(file, tensors, text))
    log.debug("wrote a %s of %d arrays to %s", kind, len(tensors), path)


def _write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], text: str) -> None:
    """Not safetensors' own writer, which needs a path or holds all of the file in memory."""
    types = {dtype: name for name, dtype in DTYPES.items()}
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": {HEADER_NAME: text}}
    offset = 0
    for name in names:
        tensor, end = tensors[name], offset + tensors[name].nbytes
        header[name] = {"dtype": types[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    file.write(struct.pack("<Q", len(content)) + content)
    for name in names:
        if tensors[name].numel():
            file.write(tensors[name].reshape(-1).view(torch.uint8).numpy().data)


def _without_repeats(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors without those that equal an earlier one to the bit, and by the name of each of these that one's name."""
    kept: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    for name, one in tensors.items():
        found = next((other for other, it in kept.items() if _equal(one, it)), None)
        if found is None:
            kept[name] = one
        else:
            same[name] = found
    return kept, same


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.nbytes < WORTH_SHARING or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def read_record(path: PathLike, kind: str, entries: Mapping[str, type | tuple[type, ...]] | None = None) -> Record:
    """Read a file of this kind that :func:`write_record` wrote; ``entries`` are types that its header must have."""
    with open_to_read(path) as file:
        header, arrays = find_record(path, kind, file)
        if header is None:
            raise FileFormatError(f"{path} is not a file that Outfield wrote: it has no Outfield header")
        tensors = {name: torch.as_tensor(array.read(file)) for name, array in arrays.items()}
    tensors |= {name: tensors[other] for name, other in header.pop(SAME, {}).items()}
    for name, wanted in (entries or {}).items():
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        if type(header.get(name)) not in ((*kinds, int) if float in kinds else kinds):
            right = " or ".join(one.__name__ for one in kinds)
            found = f"{header[name]!r:.100}, not {right}" if name in header else "missing"
            raise FileFormatError(f"{path} is not a complete {kind}: {name} is {found}")
    log.debug("read a %s of %d arrays from %s", kind, len(tensors), path)
    return Record(header, tensors)


def find_record(
    path: PathLike, kind: str | None = None, file: io.FileIO | None = None
) -> tuple[dict[str, Any] | None, dict[str, StoredArray]]:
    """Header (None where the file is not ours) and arrays of a safetensors file or an ``.npz``.

    The header is proved here, and each array when it is read.
    """
    with using(path, file) as opened:
        with as_ours(f"cannot read {path}", StorageError, OSError):
            packed = opened.read(2) == b"PK"
        arrays, metadata = (find_npz if packed else find_tensors)(path, opened)
    if HEADER_NAME not in metadata:
        if any('"sha256"' in text and '"kind"' in text for text in metadata.values()):
            raise FileFormatError(f"{path} was changed after it was written: its header has another name")
        return None, arrays
    header = _parsed(path, metadata[HEADER_NAME])
    if kind is not None and header["kind"] != kind:
        raise FileFormatError(f"{path} holds a {header['kind']}, not a {kind}")
    digests = header.pop("digests")
    odd = ", ".join(sorted(set(arrays) ^ set(digests)))
    if odd:
        raise FileFormatError(f"{path} was changed after it was written: {odd:.200} was added or taken away")
    proved = {name: replace(array, proof=Proof(False, digests[name])) for name, array in arrays.items()}
    return {name: value for name, value in header.items() if name not in ("format", "kind")}, proved


def kind_of(path: PathLike) -> str | None:
    """What a file of ours holds; None where it is a safetensors file of somebody else."""
    text = find_tensors(path).metadata.get(HEADER_NAME)
    return None if text is None else str(_parsed(path, text)["kind"])


def _parsed(path: PathLike, text: str) -> dict[str, Any]:
    """The header of a file, proved."""
    with as_ours(f"{path} has a broken Outfield header", FileFormatError, *MALFORMED):
        body = json.loads(text)
        written, version = body.pop("sha256"), body["format"]
    if version != FORMAT:
        raise FileFormatError(f"{path} is of file format {version!r}; this version of Outfield reads format {FORMAT}")
    check_digest(path, written, _digest(body), "its header")
    return dict(body)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
