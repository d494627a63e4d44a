"""What the program says: results on standard output, everything else on stderr through logging.

The library logs to loggers under "outfield" and prints nothing; the program shows them here.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import logging
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outfield.errors import OutfieldError, OutfieldWarning, StorageError
from outfield.progress import bar, hidden

if TYPE_CHECKING:
    from outfield.benchmark import BenchmarkRun
    from outfield.report import Table

log = logging.getLogger("outfield")
READER_GONE = 141
"""Exit code when nobody reads our output any more, as a shell reports it for other programs (128 + SIGPIPE)."""
NARROWEST = 30
"""Characters beside names at least, however narrow a terminal is."""

_PLAIN = {"→": "->", "–": "-", "−": "-", "…": "...", "×": "x", "±": "+-", "≤": "<=", "≥": ">="}
_WORDS = {logging.WARNING: ("warning:", "33"), logging.ERROR: ("error:", "31")}
_FOR_PYTHON = re.compile(r",? (?:or )?in Python \w+=\w+")
_FLAGS = re.compile(r"\b(download|allow_missing|labels|odin)=(True|False)\b")


class _Handler(logging.Handler):
    """One message a line; warnings and errors say what they are, in colour on a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno in _WORDS:
            word, colour = _WORDS[record.levelno]
            colourful = sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
            text = f"\x1b[1;{colour}m{word}\x1b[0m {text}" if colourful else f"{word} {text}"
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        with hidden(), contextlib.suppress(OSError, ValueError):  # nobody can be told that stderr is closed
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Show on stderr what is logged while the block runs, and warnings of ours. Other libraries' warnings are not for users."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, OutfieldWarning):
            log.warning("%s", message)

    handler, level, propagate = _Handler(), log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate


def in_options(error: OutfieldError) -> str:
    """An error's text, with options where the library speaks of arguments.

    >>> in_options(OutfieldError("download=True gets it; or labels=False"))
    '--download gets it; or --no-labels'
    >>> in_options(OutfieldError("it is downloaded with --download, in Python download=True; try it"))
    'it is downloaded with --download; try it'
    """
    text = _FOR_PYTHON.sub("", str(error))
    return _FLAGS.sub(lambda found: f"--{'' if found[2] == 'True' else 'no-'}{found[1].replace('_', '-')}", text)


class _Output(io.TextIOWrapper):
    """Standard output. What cannot be written is an error of ours, at once and not when the interpreter ends."""

    def write(self, text: str) -> int:
        with self._errors():
            return super().write(text)

    def flush(self) -> None:
        with self._errors():
            super().flush()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with hidden() if self.isatty() else contextlib.nullcontext():
                yield
        except OSError as error:
            nothing = os.open(os.devnull, os.O_WRONLY)  # for what is still in the buffer
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            if error.errno == errno.EPIPE:
                sys.exit(READER_GONE)
            raise StorageError(f"cannot write to standard output: {error.strerror or error}") from error


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Make sure that every text can be written while the block runs, and that all of it has been when it ends.

    Raises:
        StorageError: Standard output is full.
    """
    for descriptor in (0, 1, 2):  # one that is closed would be given to the next file that is opened
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    codecs.register_error("outfield", _spelled)
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # it was closed
                setattr(sys, name, stack.enter_context(open(os.devnull, "w")))
        if isinstance(sys.stderr, io.TextIOWrapper):
            sys.stderr.reconfigure(errors="outfield")
        output = None
        if isinstance(sys.stdout, io.TextIOWrapper):  # a caller in Python may have put something else there
            sys.stdout.flush()
            sys.stdout = output = _Output(
                sys.stdout.buffer, sys.stdout.encoding, "outfield", line_buffering=sys.stdout.isatty()
            )
        try:
            yield
            sys.stdout.flush()
        finally:
            sys.stdout, sys.stderr = before
            if output is not None:
                output.detach()


def _spelled(error: UnicodeError) -> tuple[bytes, int]:
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


def say(text: str = "") -> None:
    """A line on standard output, as it is."""
    sys.stdout.write(text + "\n")


def print_table(table: Table) -> None:
    """Print a table; words wrap in a narrow terminal, numbers never do."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text  # as it is: brackets in a name are no markup

    grid = RichTable(header_style="bold", box=None, pad_edge=False)
    for column, name in enumerate(table.header):
        words = column < table.left
        grid.add_column(
            Text(name), justify="left" if words else "right", no_wrap=column == 0 or not words, overflow="fold"
        )
    for row in table.rows:
        grid.add_row(*map(Text, row))
    natural = Console(width=1000).measure(grid).maximum
    fits = table.left == len(table.header) and sys.stdout.isatty()
    console = Console(highlight=False, width=None if fits else natural)
    console.print(Text(table.title, style="bold"), soft_wrap=True)  # the terminal breaks it, not the table's width
    console.print(grid)


def print_groups(title: str, groups: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Print groups of names and what each is, side by side; words wrap on a terminal, and only there.

    A no-break space in what is said of a name is printed as a space at which no line is broken.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    column = 4 + max(len(name) for rows in groups.values() for name, _ in rows)
    room = max(console.width - column, NARROWEST) if sys.stdout.isatty() else sys.maxsize
    console.print(Text(title, style="bold"), soft_wrap=True)
    for heading, rows in groups.items():
        console.print(Text(f"\n{heading}", style="bold"), soft_wrap=True)
        for name, what in rows:
            for first, line in zip(chain([f"  {name}"], repeat("")), textwrap.wrap(what, room), strict=False):
                say(first.ljust(column) + line.replace("\xa0", " "))


def write_results(
    run: BenchmarkRun, folder: Path, intro: str = "", notes: tuple[str, ...] = (), claims: bool = True
) -> None:
    """Write the tables, figures and page of a benchmark's run into ``folder``; print the tables."""
    from outfield.report import fraction_table, tables, write_report

    with bar("drawing the report"):
        page, *others = write_report(run, folder, intro=intro, notes=notes, claims=claims)
    printed = [table for name, table in tables(run).items() if name in ("levels", "ablation")]
    fewer_rows = fraction_table(run)
    for table in printed if fewer_rows is None else [*printed, fewer_rows]:
        print_table(table)
        for note in table.notes:
            say(note)
        say()
    log.info("%s; beside it %s", page, ", ".join(str(path.relative_to(folder)) for path in others))
