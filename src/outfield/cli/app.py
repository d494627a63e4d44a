"""The program: one Typer application, errors of ours as one line and an exit code.

Exit codes: 0 done; 1 a failure we did not foresee; 2 wrong usage or invalid data; 3 a file that cannot be read or written;
4 training diverged; 130 interrupted.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from outfield.console import err, out, plain
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

Device = Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu or cuda.")]


def main() -> None:
    """Entry point: errors of ours become one line on stderr and an exit code."""
    warnings.showwarning = _show_warning
    try:
        app()
    except OutfieldError as error:
        err.print(f"[bold red]error:[/] {plain(error)}")
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)


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


def make_folder(path: Path) -> None:
    """Make a folder and those it lies in."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {path}: {error.strerror}") from error
