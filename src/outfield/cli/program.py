"""The program: runs a command; errors of ours become one line and an exit code.

Exit codes: 0 done; 1 a failure we did not foresee, with its traceback; 2 wrong usage or invalid data; 3 a file that cannot be
read or written, standard output among them; 4 training diverged; 10 what an option --fail-on-… asks for was found; 11
what was to be checked could not be read; 130 interrupted; 141 nobody reads the output any more.
"""

from __future__ import annotations

import logging
import sys

from outfield.cli import commands  # noqa: F401  # they add themselves to the application
from outfield.cli.app import app
from outfield.cli.interrupts import INTERRUPTED
from outfield.cli.messages import in_options, log, shown
from outfield.cli.streams import prepared
from outfield.errors import DivergenceError, FileFormatError, OutfieldError, StorageError


def main() -> None:
    """Entry point of ``outfield``."""
    with shown():
        try:
            with prepared():
                _run()
        except OutfieldError as error:
            _tell(error)
            sys.exit(_exit_code(error))


def _run() -> None:
    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            log.info("interrupted")
        if stop.code:
            raise


def _tell(error: OutfieldError) -> None:
    log.error("%s", in_options(error), exc_info=error if log.isEnabledFor(logging.DEBUG) else None)


def _exit_code(error: OutfieldError) -> int:
    if isinstance(error, FileFormatError | StorageError):
        return 3
    return 4 if isinstance(error, DivergenceError) else 2
