"""The program: the Typer application, what all its commands share, and exit codes.

Exit codes: 0 done; 1 a failure we did not foresee, with its traceback; 2 wrong usage or invalid data; 3 a file that cannot be
read or written, standard output among them; 4 training diverged; 10 what an option --fail-on-… asks for was found; 11
what was to be checked could not be read; 130 interrupted; 141 nobody reads the output any more.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from outfield.cli.messages import in_options, log, prepared, shown
from outfield.errors import DivergenceError, FileFormatError, OutfieldError, StorageError
from outfield.progress import bar, show_progress
from outfield.version import __version__

FOUND, UNREAD, INTERRUPTED = 10, 11, 130

app = typer.Typer(
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
NoProgress = Annotated[
    bool, typer.Option("--no-progress", help="Do not show how far the work is; nor with OUTFIELD_PROGRESS=0.")
]
_SHARED = {"verbose": Verbose, "quiet": Quiet, "no_progress": NoProgress}


def main() -> None:
    """Entry point of ``outfield``: errors of ours become one line and an exit code."""
    with shown():
        try:
            with prepared():
                _run()
        except OutfieldError as error:
            log.error("%s", in_options(error), exc_info=error if log.isEnabledFor(logging.DEBUG) else None)
            unusable = isinstance(error, FileFormatError | StorageError)
            sys.exit(3 if unusable else 4 if isinstance(error, DivergenceError) else 2)


def _run() -> None:
    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            log.info("interrupted")
        if stop.code:
            raise


def group(name: str, what: str) -> typer.Typer:
    """A command that has commands of its own, such as ``outfield guard``.

    Args:
        name: Of the command.
        what: It is, for its help.
    """
    made = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.add_typer(made, name=name, help=what)
    return made


def command(
    *examples: str, of: typer.Typer | None = None, name: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command of its name, with the options that all commands have.

    Args:
        examples: Command lines to show at the end of its help.
        of: The group that it belongs to; none if None.
        name: What it is called; as the function if None.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*, verbose: bool, quiet: bool, no_progress: bool, **given: Any) -> None:
            log.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
            show_progress(False if quiet or no_progress else None)
            with bar(f"outfield {name or function.__name__}"):
                function(**given)

        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
            for name, kind in _SHARED.items()
        ]
        own = inspect.signature(function, eval_str=True)
        run.__signature__ = own.replace(parameters=[*own.parameters.values(), *shared])  # type: ignore[attr-defined]
        (of or app).command(name, epilog="\n\n".join([f"Example{'s' * (len(examples) > 1)}:", *examples]))(run)
        return function

    return add


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"outfield {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
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
    """Let the first Ctrl-C wait for the function that is yielded to be called; the second stops at once.

    Args:
        what: What is finished first, for the message.
    """
    asked = False

    def ask(*_: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)
        with suppress(OSError):  # not by way of a stream, in which the signal may have arrived
            os.write(2, f"\nfinishing {what}, then stopping; Ctrl-C again stops at once\n".encode())

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
