"""Files from the network: checked against a SHA-256 that is known beforehand, and only then put in their place."""

from __future__ import annotations

import hashlib
import urllib.request
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from outfield.errors import FileFormatError, StorageError, as_ours
from outfield.files.paths import PathLike, open_to_read, write_atomically
from outfield.progress import bar

LEAST, WHOLE = 8, 64  # Digits of a SHA-256 that must be known at least, and all; with fewer the connection must be safe
AT_ONCE = 2**20  # Bytes that are copied together
SECONDS = 60  # How long a server may be silent


def download_file(url: str, path: PathLike, sha256: str) -> None:
    """Download a file to ``path``, atomically, if its SHA-256 begins with these digits: at least 8, or all 64 over http."""
    opener = urllib.request.build_opener(_Redirects(sha256))
    check_address(url, sha256)

    def write(file: BinaryIO) -> None:
        request = urllib.request.Request(url, headers={"User-Agent": "outfield"})
        digest, done = hashlib.sha256(), 0
        with as_ours(f"cannot download {url}", StorageError), opener.open(request, timeout=SECONDS) as answer:
            total = int(answer.headers.get("Content-Length") or 0)
            with bar(f"downloading {Path(urlsplit(url).path).name}", total // 10**6 or None, "MB") as advance:
                while piece := answer.read(AT_ONCE):
                    done += len(piece)
                    digest.update(piece)
                    file.write(piece)
                    advance(done // 10**6)
            if done < total:
                raise ValueError(f"it sent {done:,} of {total:,} bytes")
        if not digest.hexdigest().startswith(sha256):
            raise FileFormatError(f"{url} sent another file: its SHA-256 is {digest.hexdigest()}, not {sha256}")

    write_atomically(path, write)


def sha256_of(path: PathLike) -> str:
    """The SHA-256 of a file in hexadecimal digits."""
    with open_to_read(path) as file, as_ours(f"cannot read {path}", StorageError, OSError):
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_address(url: str, sha256: str) -> None:
    """Refuse an address whose answer could be anybody's: not https, and no whole checksum to compare it with."""
    known = len(sha256) >= LEAST and not set(sha256) - set("0123456789abcdef")
    safe = ("https", "http") if len(sha256) == WHOLE else ("https",)
    if not known or urlsplit(url).scheme not in safe:
        raise StorageError(f"cannot download {url}: use https, or know all {WHOLE} digits of its SHA-256")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to another address only where that may be asked too."""

    def __init__(self, sha256: str) -> None:
        self.sha256 = sha256

    def redirect_request(self, *arguments: Any) -> urllib.request.Request | None:
        check_address(arguments[-1], self.sha256)
        return super().redirect_request(*arguments)
