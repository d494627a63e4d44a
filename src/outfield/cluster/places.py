"""Files wherever they lie: on this machine, or at any address that fsspec knows (``s3://``, ``gs://``, ``file://``, …)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from outfield.errors import InputError, MissingExtraError, OutfieldError, StorageError
from outfield.extras import library
from outfield.files.atomic import write_bytes, write_new
from outfield.files.paths import reason

STAMPS = ("ETag", "etag", "md5Hash", "generation", "mtime", "LastModified", "last_modified", "created")
"""What file systems tell of a file that changes with its content; the first of them that is told is taken."""
OWN_MEMORY = ("memory",)
"""Protocols whose files only the process that wrote them can see."""


@dataclass(frozen=True)
class Place:
    """A file or folder.

    Attributes:
        system: the file system, of fsspec.
        path: as that file system calls it.
        shown: as the user wrote it.
    """

    system: Any
    path: str
    shown: str

    @classmethod
    def of(cls, address: str) -> Place:
        """The place at an address, or at a path of this machine.

        Raises:
            InputError: there is no such kind of address.
            MissingExtraError: fsspec, or what it needs for this kind of address, is not installed.
        """
        if not isinstance(address, str) or not address or "\0" in address:
            raise InputError(
                f"address is {address!r:.100}; it must be a path, or an address such as s3://bucket/folder"
            )
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
        """Whether it lies in the file system of this machine."""
        return "file" in self._protocols

    @property
    def in_own_memory(self) -> bool:
        """Whether no other process can see it."""
        return any(kind in OWN_MEMORY for kind in self._protocols)

    @property
    def _protocols(self) -> tuple[str, ...]:
        kind = self.system.protocol
        return (kind,) if isinstance(kind, str) else tuple(kind)

    @property
    def address(self) -> str:
        """What leads to it from any folder."""
        return str(self.system.unstrip_protocol(self.path))

    @property
    def suffix(self) -> str:
        """The ending of its name, in small letters."""
        return os.path.splitext(self.path)[1].lower()

    def under(self, name: str) -> Place:
        """What is called ``name`` in this folder."""
        return Place(self.system, f"{self.path.rstrip('/')}/{name}", f"{self.shown.rstrip('/')}/{name}")

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Errors of any file system as one of ours."""
        try:
            yield
        except OutfieldError:
            raise
        except FileNotFoundError as error:
            raise StorageError(f"cannot {what} {self.shown}: there is no such file or folder") from error
        except OSError as error:
            raise StorageError(f"cannot {what} {self.shown}: {reason(error)}") from error
        except Exception as error:  # clients of object stores raise nearly anything
            raise StorageError(f"cannot {what} {self.shown}: {type(error).__name__}: {error}") from error

    def is_folder(self) -> bool:
        """Whether it is a folder, or a prefix of an object store under which there is something."""
        with self._told("read"):
            return bool(self.system.isdir(self.path))

    def exists(self) -> bool:
        """Whether there is something."""
        with self._told("read"):
            return bool(self.system.exists(self.path))

    def read(self) -> bytes:
        """All of a file."""
        with self._told("read"):
            return bytes(self.system.cat_file(self.path))

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """A file, to be read here and there."""
        with self._told("read"), self.system.open(self.path, "rb") as file:
            yield file

    def write(self, content: bytes) -> None:
        """Put a file there, so that others see all of it or nothing: object stores show what was written whole, and no sooner."""
        with self._told("write"):
            if self.local:
                write_bytes(Path(self.path), content)
            else:
                self.system.pipe_file(self.path, content)

    def write_first(self, content: bytes) -> None:
        """Put a file there unless there is one: of several that try at once, one succeeds wherever the file system can tell."""
        with self._told("write"):
            if self.local:
                write_new(Path(self.path), content)
                return
            try:
                self.system.pipe_file(self.path, content, mode="create")
            except FileExistsError:
                return
            except (TypeError, ValueError, NotImplementedError):  # it can only write over what is there
                self.system.pipe_file(self.path, content)

    def make_folder(self) -> None:
        """Make it a folder where it is none."""
        with self._told("make the folder"):
            self.system.makedirs(self.path, exist_ok=True)

    def names(self) -> list[str]:
        """What lies in the folder itself, in alphabetical order."""
        with self._told("read"):
            self.system.invalidate_cache(self.path)
            return sorted(str(path).rstrip("/").rpartition("/")[2] for path in self.system.ls(self.path, detail=False))

    def files(self) -> dict[str, Mapping[str, Any]]:
        """Every file in the folder, at any depth, by its name relative to it, and what the file system tells of it."""
        start = self.path.rstrip("/") + "/"
        with self._told("read"):
            found: Mapping[str, Mapping[str, Any]] = self.system.find(self.path, detail=True)
        return {path.removeprefix(start): told for path, told in found.items() if path.startswith(start)}

    def matches(self) -> list[Place]:
        """The files that a pattern such as ``s3://bucket/part-*.parquet`` stands for, in alphabetical order."""
        with self._told("read"):
            found = sorted(self.system.glob(self.path))
        return [
            Place(self.system, path, path if self.local else str(self.system.unstrip_protocol(path))) for path in found
        ]

    def stamp(self) -> str:
        """Size, and what else tells that a file was changed."""
        with self._told("read"):
            return stamp(self.system.info(self.path))


def stamp(told: Mapping[str, Any]) -> str:
    """Size and the first of :data:`STAMPS` of what a file system tells of a file."""
    changed = next((str(told[name]) for name in STAMPS if told.get(name) is not None), "")
    return f"{told.get('size')}|{changed}"


def joined(root: str, name: str) -> str:
    """The address of a name that stands in a list: of its own where it is one, else in the folder ``root``.

    >>> joined("file:///photos", "a/b.png"), joined("file:///photos", "s3://bucket/b.png")
    ('file:///photos/a/b.png', 's3://bucket/b.png')
    """
    return name if "://" in name or os.path.isabs(name) else f"{root.rstrip('/')}/{name}"


def digest(*texts: str) -> str:
    """SHA-256 of texts, in their order."""
    sha = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogateescape")
        sha.update(f"{len(content)}|".encode() + content)
    return sha.hexdigest()
