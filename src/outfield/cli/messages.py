"""Everything that is not output goes to stderr, through logging: what was done, warnings, errors.

The library logs to loggers under "outfield" and prints nothing; the program shows them here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from outfield.errors import OutfieldError, OutfieldWarning
from outfield.progress import hidden

log = logging.getLogger("outfield")

_WORDS = {logging.WARNING: ("warning:", "33"), logging.ERROR: ("error:", "31")}
_FOR_PYTHON = re.compile(r",? (?:or )?in Python \w+=\w+")
_FLAGS = re.compile(r"\b(download|allow_missing|labels|odin)=(True|False)\b")


class _Handler(logging.Handler):
    """One message a line; warnings and errors say what they are, in colour on a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno in _WORDS:
            word, colour = _WORDS[record.levelno]
            text = f"\x1b[1;{colour}m{word}\x1b[0m {text}" if _colourful() else f"{word} {text}"
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        with hidden(), contextlib.suppress(OSError, ValueError):  # nobody can be told that stderr is closed
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _colourful() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


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
