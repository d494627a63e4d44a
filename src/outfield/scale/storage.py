"""Files on this machine, or at any address that fsspec knows (``s3://``, ``gs://``, ``file://``, …)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from outfield.errors import InputError, MissingExtraError, StorageError, as_ours
from outfield.extras import library
from outfield.files import open_to_read, write_bytes, write_new

# What file systems say of a file that changes with its content; the first that is there is taken.
STAMPS = ("ETag", "etag", "md5Hash", "generation", "mtime", "LastModified", "last_modified", "created")


@dataclass(frozen=True)
class Place:
    """A file or folder: its file system of fsspec, its path there, and as the user wrote it."""

    system: Any
    path: str
    shown: str

    @classmethod
    def of(cls, address: str) -> Place:
        if not isinstance(address, str) or not address or "\0" in address:
            raise InputError(f"address is {address!r:.100}; it must be a path, or such as s3://bucket/folder")
        fsspec = library("fsspec", extra="ray")
        try:
            system, path = fsspec.core.url_to_fs(address)
        except ImportError as error:
            kind = address.partition("://")[0]
            raise MissingExtraError(f"addresses {kind}://… need another library: {error}") from error
        except Exception as error:  # every kind of file system has kinds of errors of its own
            raise InputError(f"{address:.200} is no address that fsspec can open: {error}") from error
        return cls(system, path, address)

    @property
    def local(self) -> bool:
        return self.address.startswith("file:")

    @property
    def in_own_memory(self) -> bool:
        """Whether no other process can see it."""
        return self.address.startswith("memory:")

    @property
    def address(self) -> str:
        """An address that is the same from any folder."""
        return str(self.system.unstrip_protocol(self.path))

    @property
    def suffix(self) -> str:
        return os.path.splitext(self.path)[1].lower()

    def under(self, name: str) -> Place:
        return Place(self.system, f"{self.path.rstrip('/')}/{name}", f"{self.shown.rstrip('/')}/{name}")

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        with as_ours(f"cannot {what} {self.shown}", StorageError):
            try:
                yield
            except FileNotFoundError as error:
                raise StorageError(f"cannot {what} {self.shown}: there is no such file") from error

    def is_folder(self) -> bool:
        """Whether it is a folder, or a prefix of an object store under which there is something."""
        with self._errors("read"):
            return bool(self.system.isdir(self.path))

    def exists(self) -> bool:
        with self._errors("read"):
            return bool(self.system.exists(self.path))

    def read(self, most: int = -1) -> bytes:
        """All of an ordinary file; of one of this machine ``most`` bytes at most."""
        with self._errors("read"):
            if not self.local:
                return bytes(self.system.cat_file(self.path))
            try:
                with open_to_read(self.path) as file:
                    return file.read(most)
            except StorageError as error:
                raise StorageError(str(error).replace(self.path, self.shown, 1)) from error

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        with self._errors("read"), self.system.open(self.path, "rb") as file:
            yield file

    def write(self, content: bytes) -> None:
        """Write a file so that others see all of it or nothing."""
        with self._errors("write"):
            if self.local:
                write_bytes(Path(self.path), content)
            else:
                self.system.pipe_file(self.path, content)

    def write_first(self, content: bytes) -> None:
        """Write a file unless there is one: of several that try at once, one succeeds wherever the file system can tell."""
        with self._errors("write"), suppress(FileExistsError):
            if self.local:
                write_new(Path(self.path), content)
                return
            try:
                self.system.pipe_file(self.path, content, mode="create")
            except (TypeError, ValueError, NotImplementedError):  # it can only write over what is there
                self.system.pipe_file(self.path, content)

    def make_folder(self) -> None:
        with self._errors("make the folder"):
            self.system.makedirs(self.path, exist_ok=True)

    def names(self) -> list[str]:
        """The names in the folder itself, in alphabetical order."""
        with self._errors("read"):
            self.system.invalidate_cache(self.path)
            return sorted(str(path).rstrip("/").rpartition("/")[2] for path in self.system.ls(self.path, detail=False))

    def stamps(self) -> dict[str, str]:
        """The stamp of every file in the folder, at any depth, by its name relative to it."""
        with self._errors("read"):
            found: Mapping[str, Mapping[str, Any]] = self.system.find(self.path, detail=True)
        return {path.removeprefix(f"{self.path.rstrip('/')}/"): stamp(about) for path, about in found.items()}

    def matches(self) -> list[Place]:
        """The files that a pattern such as ``s3://bucket/part-*.parquet`` stands for, in alphabetical order."""
        with self._errors("read"):
            found = sorted(self.system.glob(self.path))
        return [Place(self.system, path, path if self.local else self.system.unstrip_protocol(path)) for path in found]

    def stamp(self) -> str:
        """Size and time of change, or what else the file system says that changes with the content."""
        with self._errors("read"):
            return stamp(self.system.info(self.path))


def stamp(about: Mapping[str, Any]) -> str:
    """Size and the first of :data:`STAMPS` in what a file system says of a file."""
    changed = next((str(about[name]) for name in STAMPS if about.get(name) is not None), "")
    return f"{about.get('size')}|{changed}"


def digest(*texts: str) -> str:
    """SHA-256 of texts, in their order."""
    sha = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogateescape")
        sha.update(f"{len(content)}|".encode() + content)
    return sha.hexdigest()
