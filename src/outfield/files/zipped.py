"""Zip archives as ``.npz`` files are: their table of contents held against the file, before anything in it is unpacked."""

from __future__ import annotations

import bisect
import contextlib
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from outfield.errors import FileFormatError, OutfieldError
from outfield.files.opened import Stamp, read_at

LONGEST_TABLE = 2**20
"""Bytes of the longest table of contents that is read: some ten thousand members."""
BEST_RATE = 1100
"""What deflate can make of one byte (1032), and a little more."""
BROKEN = (
    ValueError,
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What zipfile raises where an archive is not one."""


class Zipped:
    """A zip archive in an open file.

    Attributes:
        stamp: the file.
        members: what its table of contents says, by name.
    """

    def __init__(self, stamp: Stamp, file: io.FileIO) -> None:
        self.stamp, self.file = stamp, file
        with zip_errors(stamp):
            self.zip = zipfile.ZipFile(_Bounded(file))
            self.members = {info.filename: info for info in self.zip.infolist()}
        if len(self.members) < len(self.zip.infolist()):
            raise broken(stamp, "a name stands twice")
        self._starts: list[int] = sorted([*(info.header_offset for info in self.members.values()), self.zip.start_dir])

    def open(self, name: str) -> IO[bytes]:
        """The content of a member, unpacked as it is read; its CRC-32 is compared when the last of it is."""
        with zip_errors(self.stamp):
            return self.zip.open(self.members[name])

    def check(self, name: str) -> None:
        """Refuse a member that cannot be read, or whose sizes cannot be.

        Raises:
            FileFormatError: it is encrypted, compressed in another way than numpy does, or does not lie in the file whole.
        """
        info = self.members[name]
        if info.flag_bits & 1:
            raise FileFormatError(f"{self.stamp.path} is encrypted; write it without a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileFormatError(f"{self.stamp.path} is compressed in another way than numpy.savez_compressed does")
        if self.is_packed(name):
            possible = info.file_size <= BEST_RATE * info.compress_size
        else:
            possible = info.file_size == info.compress_size
        possible = possible and 0 <= info.header_offset < self.zip.start_dir
        if not possible or self.start(name) + info.compress_size > self._end(info.header_offset):
            raise broken(self.stamp, f"{name} does not lie in it whole")

    def _end(self, offset: int) -> int:
        """Where at the latest a member ends that begins at ``offset``."""
        return self._starts[bisect.bisect_right(self._starts, offset)]

    def is_packed(self, name: str) -> bool:
        """Whether a member is compressed."""
        return self.members[name].compress_type != zipfile.ZIP_STORED

    def start(self, name: str) -> int:
        """Where the content of a member begins in the file: behind a header that ends with two texts."""
        offset = self.members[name].header_offset
        lengths = struct.unpack("<HH", read_at(self.file, offset + 26, 4, self.stamp.path))
        return int(offset + 30 + sum(lengths))


class _Bounded:
    """An open file as zipfile wants one, which it does not close, and of which it reads no table of contents without end."""

    def __init__(self, file: io.FileIO) -> None:
        self.file, self.seek, self.tell, self.seekable = file, file.seek, file.tell, file.seekable

    def read(self, count: int = -1) -> bytes:
        if count > LONGEST_TABLE:
            raise ValueError(f"its table of contents is said to have {count:,} bytes")
        return self.file.read(count) or b""


@contextlib.contextmanager
def zip_errors(stamp: Stamp) -> Iterator[None]:
    """Turn what zipfile raises into a :class:`FileFormatError`."""
    try:
        yield
    except OutfieldError:
        raise
    except BROKEN as error:
        raise broken(stamp, str(error) or repr(error)) from error


def broken(stamp: Stamp, why: str) -> FileFormatError:
    """Of a file that is not what its name says."""
    return FileFormatError(f"{stamp.path} is truncated, or is not an .npz archive of plain arrays ({why})")
