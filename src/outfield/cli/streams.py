"""Standard output and error, whatever they are: a terminal, a pipe whose reader went away, a full disk, closed, ASCII only."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from outfield.errors import StorageError
from outfield.progress import hidden

READER_GONE = 141
"""Exit code when nobody reads our output any more, as a shell reports it for other programs (128 + SIGPIPE)."""

_PLAIN = {"→": "->", "–": "-", "−": "-", "…": "...", "×": "x", "±": "+-", "≤": "<=", "≥": ">="}


class Output(io.TextIOBase):
    """Standard output. What cannot be written is an error of ours, at once and not when the interpreter ends.

    It has no ``buffer``, so that nobody writes past it.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream behind."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("standard output is closed")
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._stream is None:
            raise StorageError("cannot write to standard output: it is closed")
        with self._errors():
            return self._stream.write(text)

    def flush(self) -> None:
        if self._stream is not None:
            with self._errors():
                self._stream.flush()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with hidden() if self.isatty() else contextlib.nullcontext():
                yield
        except OSError as error:
            self._abandon()
            if error.errno == errno.EPIPE:
                sys.exit(READER_GONE)
            raise StorageError(f"cannot write to standard output: {error.strerror or error}") from error

    def _abandon(self) -> None:
        """What is still in the buffer has nowhere to go; the interpreter would complain about it when it ends."""
        with contextlib.suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
        self._stream = None


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Make sure that every text can be written while the block runs, and that all of it has been when it ends.

    Raises:
        StorageError: Standard output is closed or full.
    """
    for descriptor in (0, 1, 2):  # one that is closed would be given to the next file that is opened
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    codecs.register_error("outfield", _as_it_is)
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="outfield")
    sys.stdout = Output(before[0])
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for as long as the program runs
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def _as_it_is(error: UnicodeError) -> tuple[bytes, int]:
    """For a character that the stream's encoding lacks: the byte of a file name that is no text, else an ASCII spelling."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    spelled = b""
    for character in error.object[error.start : error.end]:
        if 0xDC80 <= ord(character) <= 0xDCFF:
            spelled += bytes([ord(character) - 0xDC00])
        else:
            spelled += _PLAIN.get(character, character).encode("ascii", "backslashreplace")
    return spelled, error.end
