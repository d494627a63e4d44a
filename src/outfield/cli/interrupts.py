"""Ctrl-C: what is finished first, and what the same command goes on from."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from outfield.cli.messages import log

INTERRUPTED = 130


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

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not in the main thread, where signals do not arrive
        yield check
        return
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
