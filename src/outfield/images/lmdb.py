"""Encoded images in an LMDB, as LSUN is published."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outfield.errors import FileFormatError
from outfield.extras import library
from outfield.files.atomic import check_readable
from outfield.images.files import EncodedImages

LMDB_IN_USE = threading.Lock()
"""Held while one is open: a second thread must not open it too."""


class LmdbImages(EncodedImages):
    """Encoded images in an LMDB, by key.

    An LMDB may be opened only once in a process, and a handle is of no use to a forked one; so it is opened for each image,
    which takes a small part of the time of decoding, and nothing has to be shared with the workers of a DataLoader.

    Args:
        folder: of the LMDB.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with _reading_lmdb(folder) as transaction:
            keys = [key.hex() for key in transaction.cursor().iternext(keys=True, values=False)]
        super().__init__(keys)

    def where(self, index: int) -> str:
        return f"{self.folder}, key {bytes.fromhex(self.names[index])!r},"

    def content(self, index: int) -> bytes:
        with _reading_lmdb(self.folder) as transaction:
            return bytes(transaction.get(bytes.fromhex(self.names[index]), default=b""))


@contextmanager
def _reading_lmdb(folder: Path) -> Iterator[Any]:
    lmdb = library("lmdb", extra="lsun")
    check_readable(folder / "data.mdb")
    try:
        with (
            LMDB_IN_USE,
            lmdb.open(str(folder), readonly=True, lock=False, readahead=False, create=False) as database,
            database.begin() as transaction,
        ):
            _check_whole(folder, database)
            yield transaction
    except lmdb.Error as error:
        raise FileFormatError(f"{folder} is truncated, or is not an LMDB ({error})") from error


def _check_whole(folder: Path, database: Any) -> None:
    """Refuse an LMDB that was cut short: it is mapped into memory, and a look behind its end would end the process."""
    needed = (database.info()["last_pgno"] + 1) * database.stat()["psize"]
    size = (folder / "data.mdb").stat().st_size
    if size < needed:
        raise FileFormatError(f"{folder} is truncated: it has {size:,} of {needed:,} bytes")
