"""The program: one Typer application, errors of ours as one line and an exit code.

Exit codes: 0 done; 1 a failure we did not foresee; 2 wrong usage or invalid data; 3 a file that cannot be read or written;
4 training diverged; 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from outfield.cli.console import err, out, plain
from outfield.errors import DivergenceError, FileFormatError, OutfieldError, OutfieldWarning, StorageError
from outfield.version import __version__

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Tell a classifier when an input is none of its business. Scores: higher = more out-of-distribution.",
    epilog="Exit codes: 0 done, 2 wrong usage or invalid data, 3 unreadable or unwritable file, 4 training diverged.",
)

INTERRUPTED = 130
Device = Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu or cuda.")]


def main() -> None:
    """Entry point: errors of ours become one line on stderr and an exit code."""
    warnings.showwarning = _show_warning
    try:
        app()
    except OutfieldError as error:
        err.print(f"[bold red]error:[/] {plain(error)}")
        sys.exit(_exit_code(error))
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            err.print("interrupted; the same command goes on from what was kept, where it keeps something")
        raise


def _exit_code(error: OutfieldError) -> int:
    if isinstance(error, FileFormatError | StorageError):
        return 3
    return 4 if isinstance(error, DivergenceError) else 2


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, OutfieldWarning):
        err.print(f"[bold yellow]warning:[/] {plain(message)}")


def _version(value: bool) -> None:
    if value:
        out.print(f"outfield {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def for_seed(path: Path, seed: int) -> Path:
    """The path with the seed where {seed} stands."""
    return path.with_name(path.name.replace("{seed}", str(seed)))


@contextmanager
def finishing_first(what: str) -> Iterator[Callable[[], None]]:
    """Let the first Ctrl-C wait for the function that is yielded to be called; the second stops at once.

    Args:
        what: is finished first, for the message.
    """
    asked = False

    def ask(*_: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)
        err.print(f"finishing {what}, then stopping; Ctrl-C again stops at once")

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not in the main thread, where signals do not arrive
        yield check
        return
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
