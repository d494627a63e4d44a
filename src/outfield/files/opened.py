"""Files opened to be read: ordinary ones only, by plain reads, and a change of them meanwhile is found.

Nothing is mapped into memory: what was read stays as it is when the file is overwritten, and a file that is cut short is
an error, not the end of the process.
"""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

from outfield.errors import FileFormatError, StorageError
from outfield.files.paths import PathLike, open_descriptor, reason

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
    """An ordinary file, opened; see :func:`outfield.files.paths.open_descriptor` for what is refused."""
    return io.FileIO(open_descriptor(path), "r")


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
        raise StorageError(f"cannot read {path}: {reason(error)}") from error


def read_at(file: io.FileIO, start: int, length: int, path: PathLike) -> bytes:
    """``length`` bytes from ``start`` on, few enough to be held twice."""
    content = bytearray(length)
    fill(file, memoryview(content), start, path)
    return bytes(content)
