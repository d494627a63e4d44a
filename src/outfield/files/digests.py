"""Digests of arrays: what they are taken over, and how an array that is read is compared with the one that was written.

A seal belongs to one array of a file. ``begin`` starts a comparison that the bytes are given to in their order, in pieces
of any size, as they are read for use; ``finish`` compares. So what is read is proved in the same pass, and nothing else
has to be read for it.
"""

from __future__ import annotations

import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from outfield.errors import FileFormatError
from outfield.files.paths import PathLike

PIECE = 2**26
"""Bytes of a tensor that are copied at once to be digested."""


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
            flat = content.reshape(-1)
            if flat.stride(0) != 1:  # a single number may have any stride and be called contiguous
                flat = flat.clone(memory_format=torch.contiguous_format)
            self._sha.update(flat.view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        """The digest of all that came."""
        return self._sha.hexdigest()


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    digest = Fingerprint()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.begin(name, tensor.dtype, tuple(tensor.shape))
        for piece in _pieces(tensor):
            digest.update(piece.cpu().contiguous())
    return digest.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Rows of a tensor in turn, so that what lies on a GPU or is not contiguous is never copied whole."""
    if tensor.dim() == 0 or not tensor.numel():
        yield tensor
        return
    row = tensor[0].numel() * tensor.element_size()
    yield from tensor.split(max(1, PIECE // row))


def check_digest(path: PathLike, written: str, found: str, what: str = "its content") -> None:
    """Refuse a file whose content has another digest than the one written into it."""
    if written != found:
        raise FileFormatError(f"{path} was changed after it was written: its checksum does not match {what}")


class Comparison(Protocol):
    """The bytes of one array, as they are read, on their way to be compared."""

    def update(self, content: np.ndarray) -> None:
        """The next bytes (n,), uint8."""

    def finish(self) -> None:
        """Raise a :class:`FileFormatError` unless all that came is what was written."""


class Seal(ABC):
    """What an array was when it was written.

    Attributes:
        proved: whether the array was read whole and compared, so that it need not be again.
    """

    def __init__(self, path: PathLike) -> None:
        self.path, self.proved = path, False

    @abstractmethod
    def begin(self) -> Comparison | None:
        """A comparison for one pass over the array; None where beginning was enough."""


class DigestSeal(Seal):
    """The SHA-256 of one array: its name, type, shape and bytes."""

    def __init__(self, path: PathLike, written: str, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        super().__init__(path)
        self.written, self.name, self.dtype, self.shape = written, name, dtype, shape

    def begin(self) -> Comparison:
        digest = Fingerprint()
        digest.begin(self.name, self.dtype, self.shape)
        return _Running(lambda content: digest.update(torch.from_numpy(content)), lambda: self._compare(digest))

    def _compare(self, digest: Fingerprint) -> None:
        check_digest(self.path, self.written, digest.hexdigest(), f"its {self.name}")
        self.proved = True


class ArchiveSeal(Seal):
    """The CRC-32 that an archive has of one member: a header, already read, and the array's bytes."""

    def __init__(self, path: PathLike, written: int, name: str, header: bytes) -> None:
        super().__init__(path)
        self.written, self.name, self.header = written, name, header

    def begin(self) -> Comparison:
        total = zlib.crc32(self.header)

        def update(content: np.ndarray) -> None:
            nonlocal total
            total = zlib.crc32(content.data, total)

        return _Running(update, lambda: self._compare(total))

    def _compare(self, total: int) -> None:
        check_digest(self.path, str(self.written), str(total), f"its {self.name}")
        self.proved = True


class WholeSeal(Seal):
    """One digest over all arrays of a file, as earlier versions wrote it: everything is read before anything is used.

    Args:
        path: the file.
        compare: reads all of it and raises a :class:`FileFormatError` unless it is what was written.
    """

    def __init__(self, path: PathLike, compare: Callable[[], None]) -> None:
        super().__init__(path)
        self.compare = compare

    def begin(self) -> None:
        self.compare()
        self.proved = True


class _Running:
    def __init__(self, update: Callable[[np.ndarray], None], finish: Callable[[], None]) -> None:
        self.update, self.finish = update, finish
