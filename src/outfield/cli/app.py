"""The program: the Typer application, what all its commands share, exit codes, and what is said.

Results go to standard output, everything else to stderr through logging: the library logs to loggers under "outfield".

Exit codes: 0 done; 1 a failure we did not foresee, with its traceback; 2 wrong usage or invalid data; 3 a file that cannot be
read or written, standard output among them; 4 training diverged; 10 what an option --fail-on-… asks for was found; 11
what was to be checked could not be read; 130 interrupted; 141 nobody reads the output any more.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import inspect
import io
import logging
import os
import re
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from outfield.errors import DivergenceError, FileFormatError, OutfieldError, OutfieldWarning, StorageError
from outfield.progress import bar, hidden, show_progress
from outfield.version import __version__

if TYPE_CHECKING:
    from outfield.benchmark import BenchmarkRun
    from outfield.report import Table


FOUND, UNREAD, INTERRUPTED = 10, 11, 130
MAIN = ("guard", "serve", "drift", "benchmark", "demo", "doctor")


class _MainFirst(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        """The commands that matter most first, the others in their order."""
        return sorted(super().list_commands(ctx), key=lambda name: (*MAIN, name).index(name))


app = typer.Typer(
    cls=_MainFirst,
    add_completion=True,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tell a classifier when an input is none of its business. Scores: higher = more out-of-distribution.",
    epilog="Exit codes: 0 done, 2 wrong usage or invalid data, 3 unreadable or unwritable file, 4 training diverged, 10 "
    "something was found (--fail-on-…), 11 images could not be read, 130 interrupted.",
)

Device = Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu or cuda.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more, and where an error comes from.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but warnings and errors.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress. Also: OUTFIELD_PROGRESS=0.")]
_SHARED = {"verbose": Verbose, "quiet": Quiet, "no_progress": NoProgress}


def main() -> None:
    """Entry point of ``outfield``: errors of ours become one line and an exit code."""
    with shown():
        try:
            with prepared():
                app()
        except SystemExit as stop:
            if stop.code == INTERRUPTED:
                log.info("interrupted")
            raise
        except OutfieldError as error:
            log.error("%s", in_options(error), exc_info=error if log.isEnabledFor(logging.DEBUG) else None)
            unusable = isinstance(error, FileFormatError | StorageError)
            sys.exit(3 if unusable else 4 if isinstance(error, DivergenceError) else 2)


def _panel(name: str) -> str:
    """The heading in ``outfield --help`` that a command stands under."""
    return "Start here" if name in MAIN else "More commands"


def group(name: str, what: str) -> typer.Typer:
    """A command that has commands of its own, such as ``outfield guard``."""
    made = typer.Typer(name=name, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.add_typer(made, name=name, help=what, rich_help_panel=_panel(name))
    return made


def command(*examples: str, of: typer.Typer | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command of a group, with the options that all commands have and examples at the end of its help."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*, verbose: bool, quiet: bool, no_progress: bool, **given: Any) -> None:
            log.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
            show_progress(False if quiet or no_progress else None)
            with bar(f"outfield {'' if of is None else f'{of.info.name} '}{function.__name__}"):
                function(**given)

        own = inspect.signature(function, eval_str=True)
        option = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, default=False)
        shared = [option(word, annotation=kind) for word, kind in _SHARED.items()]
        run.__signature__ = own.replace(parameters=[*own.parameters.values(), *shared])  # type: ignore[attr-defined]
        epilog = "\n\n".join([f"Example{'s' * (len(examples) > 1)}:", *examples])
        panel = _panel(function.__name__) if of is None else None
        (of or app).command(epilog=epilog, rich_help_panel=panel)(run)
        return function

    return add


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"outfield {__version__}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def _root(version: Version = False) -> None:
    pass


@contextmanager
def going_on_from(kept: object) -> Iterator[None]:
    """Say on Ctrl-C that the same command goes on from ``kept``. Only for a block that does keep what it has done."""
    try:
        yield
    except KeyboardInterrupt:
        log.info("the same command goes on from %s", kept)
        raise


@contextmanager
def finishing_first(what: str) -> Iterator[Callable[[], None]]:
    """Let the first Ctrl-C wait for the function that is yielded to be called; the second stops at once."""
    asked: list[bool] = []

    def ask(*_: Any) -> None:
        asked.append(True)
        signal.signal(signal.SIGINT, before)
        with contextlib.suppress(OSError):  # not by way of a stream, in which the signal may have arrived
            os.write(2, f"\nfinishing {what}, then stopping; Ctrl-C again stops at once\n".encode())

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


log = logging.getLogger("outfield")
_PLAIN = {"→": "->", "–": "-", "−": "-", "…": "...", "×": "x", "±": "+-", "≤": "<=", "≥": ">="}
_WORDS = {logging.WARNING: ("warning:", "33"), logging.ERROR: ("error:", "31")}
_FOR_PYTHON = re.compile(r",? (?:or )?in Python \w+=\w+| \(in Python [^)]*\)")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_FLAGS = re.compile(r"\b(download|allow_missing|labels|odin)=(True|False)\b")


class _Handler(logging.Handler):
    """One message a line; warnings and errors say what they are, in colour on a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        text = "\n".join(map(printable, record.getMessage().split("\n")))
        if record.levelno in _WORDS:
            word, colour = _WORDS[record.levelno]
            colourful = sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
            text = f"\x1b[1;{colour}m{word}\x1b[0m {text}" if colourful else f"{word} {text}"
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        with hidden(), contextlib.suppress(OSError, ValueError):  # nobody can be told that stderr is closed
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


@contextmanager
def shown() -> Iterator[None]:
    """Show on stderr what is logged while the block runs, and warnings of ours. Other libraries' warnings are not for users."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, OutfieldWarning):
            log.warning("%s", message)

    before = log.handlers, log.level, log.propagate
    log.handlers, log.propagate = [_Handler()], False
    log.setLevel(logging.INFO)
    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        finally:
            log.handlers, level, log.propagate = before
            log.setLevel(level)


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

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with hidden() if self.isatty() else contextlib.nullcontext():
                yield
        except OSError as error:
            with open(os.devnull, "wb") as nothing:  # for what is still in the buffer
                os.dup2(nothing.fileno(), self.fileno())
            if error.errno == errno.EPIPE:
                sys.exit(141)  # as a shell reports it (128 + SIGPIPE)
            raise StorageError(f"cannot write to standard output: {error.strerror or error}") from error


@contextmanager
def prepared() -> Iterator[None]:
    """Make sure that every text can be written while the block runs, and that all of it has been when it ends."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # it was closed, and would be given to the next file that is opened
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    codecs.register_error("outfield", _spelled)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="outfield")
    before = sys.stdout
    if not isinstance(before, io.TextIOWrapper):  # a caller in Python has put something else there
        yield
        return
    before.flush()
    own = sys.stdout = _Output(before.buffer, before.encoding, "outfield", line_buffering=before.isatty())
    try:
        yield
    finally:
        sys.stdout = before
        own.detach()  # which writes what is left


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


def printable(text: str) -> str:
    r"""The text with control characters, and orders to write backwards, spelled out: a terminal would obey them.

    >>> printable("a\x1b[31m")
    'a\\x1b[31m'
    """
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def say(text: str = "") -> None:
    """A line on standard output, as it is."""
    sys.stdout.write(text + "\n")


def print_table(table: Table, *, notes: bool = False) -> None:
    """Print a table, perhaps with its notes; words wrap in a narrow terminal, numbers never do."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text(table.title, style="bold"), soft_wrap=True)
    words = range(1, table.left) if table.left == len(table.header) and sys.stdout.isatty() else ()
    print_grid(table.header, table.rows, range(table.left, len(table.header)), words)
    for note in table.notes if notes else ():
        say(note)


def print_grid(
    header: Sequence[str],
    rows: Iterable[Sequence[str | tuple[str, str]]],
    numbers: Collection[int] = (),
    wrapped: Collection[int] = (),
) -> None:
    """Print cells of text, or of text and style, in columns: numbers to the right; some columns may wrap."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # as it is: brackets in a name are no markup

    grid = Table(header_style="bold", box=None, pad_edge=False)
    for place, name in enumerate(header):
        justify: Any = "right" if place in numbers else "left"
        grid.add_column(Text(name), justify=justify, no_wrap=place not in wrapped, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(*cell) if isinstance(cell, tuple) else Text(printable(cell)) for cell in row))
    console = Console(highlight=False, width=None if wrapped else 10_000)
    with console.capture() as text:
        console.print(grid)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.get().splitlines()))


def print_groups(title: str, groups: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Print groups of names and what each is, side by side; words wrap on a terminal alone, and never at a no-break space."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    column = 4 + max(len(name) for rows in groups.values() for name, _ in rows)
    room = max(console.width - column, 30) if sys.stdout.isatty() else sys.maxsize
    console.print(Text(title, style="bold"), soft_wrap=True)
    for heading, rows in groups.items():
        console.print(Text(f"\n{heading}", style="bold"), soft_wrap=True)
        for name, what in rows:
            for number, line in enumerate(textwrap.wrap(printable(what), room)):
                say(("" if number else f"  {name}").ljust(column) + line.replace("\xa0", " "))


def write_results(
    run: BenchmarkRun, folder: Path, intro: str = "", notes: tuple[str, ...] = (), claims: bool = True
) -> None:
    """Write the tables, figures and page of a benchmark's run into ``folder``; print the tables."""
    from outfield.report import fraction_table, tables, write_report

    with bar("drawing the report"):
        page, *others = write_report(run, folder, intro=intro, notes=notes, claims=claims)
    made = tables(run)
    for table in (made.get("levels"), made.get("ablation"), fraction_table(run)):
        if table is not None:
            print_table(table, notes=True)
            say()
    log.info("%s; beside it %s", page, ", ".join(str(path.relative_to(folder)) for path in others))
