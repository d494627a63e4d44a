"""Progress of long work, drawn by rich on stderr: on a terminal or in a notebook, nothing elsewhere.

A bar appears once its work has lasted half a second, is drawn anew also while the work stands still, and disappears with it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Advance = Callable[..., None]  # advance(done) or advance(done, note="loss 0.1"): how far the work has come
SHOW_AFTER = 0.5  # seconds after which work is worth a bar

_wanted: bool | None = None


def show_progress(on: bool | None) -> None:
    """Show how far long work has come (True), or do not (False). None: as OUTFIELD_PROGRESS says, which is yes if it is not set.

    Nothing is ever shown but on a terminal or in a notebook.
    """
    global _wanted
    _wanted = on


def is_shown() -> bool:
    """Whether progress is shown here: on a terminal or in a notebook, unless it is switched off, and not in child processes."""
    wanted = os.environ.get("OUTFIELD_PROGRESS", "").lower() not in ("0", "no", "off", "false")
    multiprocessing = sys.modules.get("multiprocessing")
    if not (wanted if _wanted is None else _wanted) or (multiprocessing and multiprocessing.parent_process()):
        return False
    try:
        return "ipykernel" in sys.modules or (sys.stderr.isatty() and os.environ.get("TERM") != "dumb")
    except (AttributeError, ValueError):  # there is no stderr, or it is closed
        return False


class _Bar:
    def __init__(self, title: str, total: int | None, unit: str) -> None:
        self.title, self.total, self.unit, self.began = title, total, unit, time.monotonic()
        self.done: int | None = None
        self.note = ""
        self.task: Any = None

    def advance(self, done: int, note: str = "") -> None:
        self.done, self.note = done, note

    def age(self) -> float:
        return time.monotonic() - self.began

    def counts(self) -> str:
        """Such as "1,234/50,000 rows"; "" where nothing is counted."""
        if self.total is None and self.done is None:
            return ""
        return f"{self.done or 0:,}{'' if self.total is None else f'/{self.total:,}'} {self.unit}"


@contextmanager
def bar(title: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
    """Show ``title``, and how many of ``total`` units are done, while the block runs. Blocks may be nested, and in threads."""
    mine = _Bar(title, total, unit)
    if is_shown():
        _screen.add(mine)
    try:
        yield mine.advance
    finally:
        if mine in _screen.bars:
            _screen.remove(mine)


@contextmanager
def hidden() -> Iterator[None]:
    """Take the bars away while something else is written to the terminal."""
    if not _screen.bars:
        yield
        return
    with _screen.lock:
        _screen.clear()
        yield
        _screen.wait()


class _Screen:
    """The bars under way; after a while rich draws those that have lasted long enough, in a thread of its own."""

    def __init__(self) -> None:
        self.bars: list[_Bar] = []
        self.lock = threading.RLock()
        self.timer: threading.Timer | None = None
        self.progress: Any = None
        self.live: Any = None

    def add(self, mine: _Bar) -> None:
        with self.lock:
            self.bars.append(mine)
            self.wait()

    def remove(self, mine: _Bar) -> None:
        with self.lock:
            self.bars.remove(mine)
            if mine.task is not None:
                self.progress.remove_task(mine.task)
            if not self.bars:
                self.clear()

    def wait(self) -> None:
        """Let a timer show the bars once the oldest has lasted long enough; one serves for many short ones."""
        if self.bars and self.timer is None and self.live is None:
            self.timer = threading.Timer(max(0.05, SHOW_AFTER - self.bars[0].age()), self.show)
            self.timer.daemon = True
            self.timer.start()

    def show(self) -> None:
        from rich.live import Live

        with self.lock, suppress(OSError, ValueError):  # the terminal may have gone away; the work goes on
            self.timer = None
            if self.bars and self.bars[0].age() >= SHOW_AFTER:
                self.progress = self.progress or _columns()
                self.live = Live(
                    get_renderable=self.drawn, console=self.progress.console, transient=True, redirect_stdout=False,
                    redirect_stderr=False,
                )  # fmt: skip
                self.live.start(refresh=True)
            self.wait()

    def clear(self) -> None:
        live, self.live = self.live, None
        with suppress(OSError, ValueError):
            if live is not None:
                live.stop()

    def drawn(self) -> Any:
        """What rich draws: the latest bar, and those around it that count something."""
        if self.lock.acquire(blocking=False):  # who holds it may be waiting for rich
            lasting = [one for one in self.bars if one.age() >= SHOW_AFTER]
            for one in lasting:
                if one.task is None:
                    one.task = self.progress.add_task("", total=one.total, title=_printable(one.title))
                fields = {"counts": one.counts(), "note": _printable(one.note)}
                shown = one is lasting[-1] or one.done is not None
                self.progress.update(one.task, completed=one.done or 0, visible=shown, **fields)
            self.lock.release()
        return self.progress


def _columns() -> Any:
    """An empty rich.progress.Progress. Titles, bars and notes are cut where the terminal is narrow, counts and times are not."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Cut(ProgressColumn):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def render(self, task: Any) -> Text:
            return Text(task.fields[self.name], no_wrap=True, overflow="crop")

    whole = Column(no_wrap=True)
    counts = TextColumn("{task.fields[counts]}", markup=False, table_column=whole)
    times = TimeElapsedColumn(whole), TimeRemainingColumn(compact=True, table_column=whole)
    return Progress(Cut("title"), BarColumn(), counts, *times, Cut("note"), console=Console(stderr=True))


def _printable(text: str) -> str:
    """The text on one line, with "?" for what would move the cursor or cannot be shown."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


_screen = _Screen()
if hasattr(os, "register_at_fork"):  # a child has no thread that draws, and its parent may have held the lock
    os.register_at_fork(after_in_child=_screen.__init__)  # type: ignore[misc]
