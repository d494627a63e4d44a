"""Files of ours: safetensors with one JSON header, written atomically, checked on reading, never unpickled.

Layout of every file Outfield writes: tensors as safetensors stores them, and one metadata entry ``outfield`` that holds
JSON: ``{"format": 1, "kind": ..., "sha256": ..., ...}``. The digest covers the kind, the header's other entries, and
each tensor's name, type, shape and bytes, so a changed byte anywhere is found on loading.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outfield.errors import FileFormatError, StorageError
from outfield.files.atomic import PathLike, check_readable, write_atomically

FORMAT = 1


def write(path: PathLike, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and a JSON-ready header to ``path``.

    Raises:
        StorageError: see :func:`write_atomically`.
    """
    plain = _unshared({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    body = {"format": FORMAT, "kind": kind, **header}
    body["sha256"] = header_digest(body, fingerprint(plain))
    metadata = {"outfield": json.dumps(body, sort_keys=True)}
    write_atomically(path, lambda scratch: save_file(plain, scratch, metadata))


def read(path: PathLike, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a file that :func:`write` wrote; returns its header and tensors.

    Raises:
        StorageError: there is no such file, or it cannot be read.
        FileFormatError: it is truncated, changed, of another kind, from a newer version, or not ours at all.
    """
    metadata, tensors = read_tensors(path)
    if "outfield" not in metadata:
        raise FileFormatError(
            f"{path} is a safetensors file, but not one that Outfield wrote: it has no Outfield header"
        )
    return parse_header(path, kind, metadata["outfield"], tensors), tensors


def read_tensors(path: PathLike) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of any safetensors file."""
    check_readable(path)
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise FileFormatError(f"{path} is truncated or is not a safetensors file ({error})") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error


def parse_header(path: PathLike, kind: str, text: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The checked header: right kind, known format, matching digest."""
    body, digest = read_header(path, text)
    check_digest(path, digest, header_digest(body, fingerprint(tensors)))
    check_kind(path, kind, body)
    return {key: value for key, value in body.items() if key not in ("format", "kind")}


def read_header(path: PathLike, text: str) -> tuple[dict[str, Any], str]:
    """The header's entries without its digest, and the digest, which is still to be compared."""
    try:
        body = json.loads(text)
        version, digest = body["format"], body.pop("sha256")
        body["kind"]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} has a broken Outfield header ({error!r})") from error
    if version != FORMAT:
        raise FileFormatError(f"{path} is of file format {version!r}; this version of Outfield reads format {FORMAT}")
    return body, digest


def check_kind(path: PathLike, kind: str, body: Mapping[str, Any]) -> None:
    """Refuse a header of another kind of file."""
    if body["kind"] != kind:
        raise FileFormatError(f"{path} holds a {body['kind']}, not a {kind}")


def check_digest(path: PathLike, written: str, found: str) -> None:
    """Refuse a file whose content has another digest than the one written into it."""
    if written != found:
        raise FileFormatError(f"{path} was changed after it was written: its checksum does not match its content")


class Fingerprint:
    """SHA-256 over names, types, shapes and bytes of tensors, which may come in pieces; names must ascend."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def begin(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """The next tensor's bytes follow."""
        self._sha.update(f"{name}|{dtype}|{shape}|".encode())

    def update(self, content: Tensor) -> None:
        """More bytes of it, from a contiguous tensor of any type."""
        if content.numel():
            self._sha.update(content.reshape(-1).view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        """The digest of all that came."""
        return self._sha.hexdigest()


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    digest = Fingerprint()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.begin(name, tensor.dtype, tuple(tensor.shape))
        digest.update(tensor)
    return digest.hexdigest()


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, none sharing memory with another (safetensors refuses that)."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if pointer in seen else tensor
        seen.add(pointer)
    return result


def header_digest(body: Mapping[str, Any], content: str) -> str:
    """Digest of a header's entries and the fingerprint of its tensors."""
    return hashlib.sha256((json.dumps(body, sort_keys=True) + content).encode()).hexdigest()
