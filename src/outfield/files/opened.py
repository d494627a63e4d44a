"""Files opened to be read: ordinary ones only, by plain reads, and a change of them meanwhile is found.

Nothing is mapped into memory: what was read stays as it is when the file is overwritten, and a file that is cut short is
an error, not the end of the process.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from outfield.errors import FileFormatError, StorageError
from outfield.files.atomic import PathLike

AT_ONCE = 2**22
"""Bytes read in one go; what was read is still near the processor when its digest is taken."""


@dataclass(frozen=True)
class Stamp:
    """A file as it was when it was opened; a change of it is found."""

    path: Path
    device: int
    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: PathLike) -> Stamp:
        """Of a file that may be read."""
        with open_to_read(path) as file:
            return cls.of_opened(path, file)

    @classmethod
    def of_opened(cls, path: PathLike, file: io.FileIO) -> Stamp:
        """Of a file that is open; ``path`` is what messages call it."""
        status = os.fstat(file.fileno())
        return cls(Path(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def open(self) -> io.FileIO:
        """The same file once more, to be read."""
        with contextlib.suppress(StorageError):
            file = open_to_read(self.path)
            if Stamp.of_opened(self.path, file) == self:
                return file
            file.close()
        raise self._changed()

    def check(self, file: io.FileIO | None = None) -> None:
        """Raise a :class:`FileFormatError` if the file, open or at its path, is not what it was."""
        if file is None:
            self.open().close()
        elif Stamp.of_opened(self.path, file) != self:
            raise self._changed()

    def _changed(self) -> FileFormatError:
        return FileFormatError(f"{self.path} changed while it was being read; open it again once it is written")


def open_to_read(path: PathLike) -> io.FileIO:
    """An ordinary file, opened; a pipe or a device is refused and never waited for.

    Raises:
        StorageError: there is no such file, it is not an ordinary one, or it may not be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError as error:
        raise StorageError(f"cannot read {path}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {_reason(error)}") from error
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return io.FileIO(descriptor, "r")
    os.close(descriptor)
    raise StorageError(f"cannot read {path}: it is {'a folder' if stat.S_ISDIR(kind) else 'not an ordinary file'}")


def fill(file: io.FileIO, view: memoryview, start: int, path: PathLike) -> None:
    """Read the bytes from ``start`` on into all of ``view``.

    Raises:
        FileFormatError: the file ends before.
        StorageError: the disk failed.
    """
    done = 0
    try:
        file.seek(start)
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise FileFormatError(f"{path} is truncated: it ended at byte {start + done:,} while it was being read")
            done += count
    except OSError as error:
        raise StorageError(f"cannot read {path}: {_reason(error)}") from error


def read_at(file: io.FileIO, start: int, length: int, path: PathLike) -> bytes:
    """``length`` bytes from ``start`` on, few enough to be held twice."""
    content = bytearray(length)
    fill(file, memoryview(content), start, path)
    return bytes(content)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
