"""The line at the foot of the terminal: one thread draws it, whatever the work is doing."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TextIO

from outfield.progress.line import FULL, Task, cells, status_line

SHOW_AFTER = 0.5
"""Seconds after which work is worth a line."""
LOOK_EVERY = 0.2
"""Seconds between two looks at how far it has come."""
LINGER = 2.0
"""Seconds for which the thread waits for more work before it ends."""


class Screen:
    """The tasks under way, and the thread that draws the latest of them."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stream: TextIO | None = None
        self._shown = ""

    def add(self, task: Task) -> None:
        """Show this task, if there is a terminal to show it on and nobody has switched that off."""
        stream = _terminal()
        if stream is None:
            return
        with self._lock:
            self._tasks.append(task)
            self._stream = stream
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outfield progress", daemon=True)
                self._thread.start()

    def remove(self, task: Task) -> None:
        """This task has ended."""
        if not self._tasks:
            return
        with self._lock:
            if task in self._tasks:
                self._tasks.remove(task)
            if not self._tasks:
                self._show("")

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the line away while something else is written to the terminal."""
        with self._lock:
            self._show("")
            yield

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            time.sleep(LOOK_EVERY)
            now = time.monotonic()
            with self._lock:
                if self._tasks:
                    idle_since = now
                    self._draw(now)
                elif now - idle_since > LINGER:
                    self._thread = None
                    return

    def _draw(self, now: float) -> None:
        lasting = [task for task in self._tasks if now - task.began >= SHOW_AFTER]
        if lasting and self._stream is not None:
            width = _width(self._stream) - 1  # in the last column some terminals break the line
            encoding = self._stream.encoding or "ascii"
            line = status_line(lasting, width, now, fancy=_can_show(encoding, FULL + "…›"))
            self._show(line.encode(encoding, "replace").decode(encoding))

    def _show(self, line: str) -> None:
        """Put ``line`` in place of the one that is shown. The cursor goes back to its beginning, so that what others print
        there begins at the margin."""
        if line == self._shown or self._stream is None:
            return
        if _understands_codes(self._stream):
            text = f"\r{line}\x1b[K\r"
        else:
            text = f"\r{line}{' ' * (cells(self._shown) - cells(line))}\r"
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal has gone away; the work goes on
            self._tasks.clear()
        self._shown = line

    def after_fork(self) -> None:
        """A child has no thread that draws, and its parent may have held the lock."""
        self._tasks, self._lock, self._thread, self._shown = [], threading.RLock(), None, ""


SCREEN = Screen()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SCREEN.after_fork)

_wanted: bool | None = None


def show_progress(on: bool | None) -> None:
    """Show how far long work has come (True), or do not (False). None: as OUTFIELD_PROGRESS says, which is yes if it is not set.

    Nothing is ever shown but on a terminal or in a notebook.
    """
    global _wanted
    _wanted = on


def is_shown() -> bool:
    """Whether progress is shown here: on a terminal or in a notebook, unless it is switched off."""
    return _terminal() is not None


def hidden() -> AbstractContextManager[None]:
    """Take the line away while something else is written to the terminal."""
    return SCREEN.hidden()


def _terminal() -> TextIO | None:
    """Where to draw, if anywhere: not in processes that others of ours started, which would draw over one another."""
    wanted = os.environ.get("OUTFIELD_PROGRESS", "").lower() not in ("0", "no", "off", "false")
    if not (wanted if _wanted is None else _wanted):
        return None
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return None
    stream = sys.stderr
    try:
        return stream if stream is not None and (stream.isatty() or "ipykernel" in sys.modules) else None
    except ValueError:  # it is closed
        return None


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # a notebook
        return 80


def _understands_codes(stream: TextIO) -> bool:
    return os.environ.get("TERM") != "dumb" and stream.isatty()


def _can_show(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
