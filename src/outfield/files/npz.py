"""``.npz`` archives: arrays found by their headers before anything is unpacked; those not compressed are read where they lie.

An archive of ours holds the same header as our safetensors files, as the text ``outfield_header``; earlier versions wrote
one digest of all arrays, ``outfield_sha256``.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import FileFormatError
from outfield.files import headers
from outfield.files.atomic import write_atomically
from outfield.files.digests import ArchiveSeal, WholeSeal, check_digest, fingerprint
from outfield.files.headers import Header
from outfield.files.npy import MAGIC, NUMBERS, check_size, read_header
from outfield.files.opened import Stamp, open_to_read, read_at
from outfield.files.paths import PathLike, as_path, check_ending
from outfield.files.storage import fingerprint_on_disk, sealed
from outfield.files.stored import ArrayOnDisk, Bytes, StoredArray
from outfield.files.zipped import Zipped, broken, zip_errors

HEADER = "outfield_header"
"""Name of the text in an archive of ours that is its header."""
DIGEST = "outfield_sha256"
"""Name of the text, in archives of earlier versions, that is the digest of all arrays together."""
LONGEST_TEXT = 2**20
"""Bytes of the longest of these texts, at four a letter."""
AT_ONCE = 2**20
"""Bytes unpacked in one go."""


def write_archive(path: PathLike, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and a JSON-ready header to an ``.npz``; :func:`outfield.files.storage.write` in another format."""
    check_ending(path, (".npz",))
    text = np.array(headers.make_header(kind, header, tensors))
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    # The header comes first, so that a table of contents that lost its end is found.
    write_atomically(path, lambda file: np.savez(file, **{HEADER: text}, **arrays))  # type: ignore[arg-type]


@contextlib.contextmanager
def open_archive(path: PathLike, kind: str | None = None) -> Iterator[Archive]:
    """Open an ``.npz``.

    Args:
        path: the file.
        kind: what it must hold if it is one of ours.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it is truncated, changed, of another kind, or not an archive of arrays.
    """
    path = as_path(path)
    with open_to_read(path) as file:
        stamp = Stamp.of_opened(path, file)
        if read_at(file, 0, min(len(MAGIC), stamp.size), path) == MAGIC:
            raise FileFormatError(f"{path} holds a single array, not an .npz archive")
        archive = Archive(stamp, file)
        if archive.header is not None and kind is not None:
            archive.header.check_kind(kind)
        yield archive


def read_npz(path: PathLike) -> dict[str, np.ndarray]:
    """All arrays of an ``.npz``, of numbers or of text."""
    with open_archive(path) as archive:
        return archive.read(archive.find(archive.names, NUMBERS + "U"))


class Archive:
    """An ``.npz`` file, open; made by :func:`open_archive`.

    Attributes:
        names: of its arrays, without what is ours.
        header: of an archive of ours.
    """

    def __init__(self, stamp: Stamp, file: io.FileIO) -> None:
        self.stamp, self.file, self.zip = stamp, file, Zipped(stamp, file)
        self._members = {name.removesuffix(".npy"): name for name in self.zip.members}
        if len(self._members) < len(self.zip.members):
            raise broken(stamp, "a name stands twice")
        header, digest = (self._members.pop(name, None) for name in (HEADER, DIGEST))
        self.header = None if header is None else Header.parse(stamp.path, self._text(header))
        self._digest = None if digest is None else self._text(digest)
        self.names = list(self._members)
        if self.header is not None:
            self.header.check_names(self.names)

    def find(self, names: Iterable[str], kinds: str = NUMBERS) -> dict[str, StoredArray]:
        """Where some of its arrays lie, and what they were when they were written.

        Args:
            names: which.
            kinds: of dtype that are taken, as numpy abbreviates them.

        Raises:
            FileFormatError: one is no array, or its size is not what its header says.
            InputError: one is of another kind.
        """
        found = {name: self._array(name, kinds) for name in names}
        if self.header is not None:
            return sealed(self.header, found)
        if self._digest is None:
            return found
        whole = {name: found.get(name) or self._array(name, kinds) for name in self.names}
        seal = WholeSeal(self.stamp.path, lambda: self._check_whole(fingerprint_on_disk(whole)))
        return {name: replace(array, seal=seal) for name, array in found.items()}

    def read(self, found: Mapping[str, StoredArray]) -> dict[str, np.ndarray]:
        """Arrays that :meth:`find` found, whole."""
        together = self._digest is not None and found.keys() == self._members.keys()
        if together:  # compared below, so that each is read once
            found = {name: replace(array, seal=None) for name, array in found.items()}
        arrays = {name: np.asarray(array.read(self.file)) for name, array in found.items()}
        self.stamp.check(self.file)
        if together:
            self._check_whole(fingerprint({name: torch.from_numpy(array) for name, array in arrays.items()}))
        return arrays

    def _check_whole(self, content: str) -> None:
        check_digest(self.stamp.path, str(self._digest), content)

    def _array(self, name: str, kinds: str) -> StoredArray:
        member = self._members[name]
        self.zip.check(member)
        with zip_errors(self.stamp), self.zip.open(member) as content:
            header = read_header(self.stamp.path, content.read, kinds)
        about: dict[str, Any] = {"stamp": self.stamp, "dtype": header.dtype, "shape": header.shape}
        about["columns_first"] = header.columns_first
        info, begin = self.zip.members[member], len(header.raw)
        if self.zip.is_packed(member):
            found: StoredArray = PackedArray(**about, member=member, begin=begin)
        else:
            seal = ArchiveSeal(self.stamp.path, info.CRC, name, header.raw)
            found = ArrayOnDisk(**about, offset=self.zip.start(member) + begin, seal=seal)
        check_size(found, info.file_size - begin)
        if self._digest is not None:
            found.torch_dtype  # noqa: B018  we never wrote a type that torch has not
        return found

    def _text(self, member: str) -> str:
        """A member of ours that holds one text."""
        self.zip.check(member)
        if self.zip.members[member].file_size > LONGEST_TEXT:
            raise broken(self.stamp, f"{member} is too long")
        with zip_errors(self.stamp), self.zip.open(member) as content:
            header = read_header(self.stamp.path, content.read, "U")
            text = content.read(LONGEST_TEXT)
            if header.shape or len(text) != header.dtype.itemsize:
                raise broken(self.stamp, f"{member} is not a text")
            return text.decode("utf-32-be" if header.dtype.byteorder == ">" else "utf-32-le").rstrip("\0")


@dataclass(frozen=True, kw_only=True)
class PackedArray(StoredArray):
    """An array that is compressed, so that its rows can be read in their order only.

    Attributes:
        member: of the archive.
        begin: where in the unpacked member the array begins.
    """

    picks_rows = False

    member: str
    begin: int

    def bytes_of(self, file: io.FileIO) -> Bytes:
        return _Unpacked(self, file)


class _Unpacked:
    def __init__(self, array: PackedArray, file: io.FileIO) -> None:
        self.stamp, self.member = array.stamp, array.member
        self.content: IO[bytes] = Zipped(array.stamp, file).open(array.member)
        with zip_errors(self.stamp):
            self.content.read(array.begin)

    def fill(self, view: memoryview) -> None:
        done = 0
        with zip_errors(self.stamp):
            while done < len(view):
                piece = self.content.read(min(AT_ONCE, len(view) - done))
                if not piece:
                    raise broken(self.stamp, f"{self.member} ends too early")
                view[done : done + len(piece)] = piece
                done += len(piece)
