"""The Typer application, and what all its commands share."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from outfield.cli.messages import log
from outfield.progress import bar, show_progress
from outfield.version import __version__

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
