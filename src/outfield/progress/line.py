"""How far work has come, as one line of text that fits the terminal."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Sequence

FULL, EMPTY = "━", "─"
LONGEST_BAR, SHORTEST_BAR, SHORTEST_TITLE = 40, 10, 8


class Task:
    """A piece of work: what it is called, and how much of it is done.

    Args:
        title: What is being done.
        total: How many units there are to do; None where that is not known.
        unit: What is counted, in the plural.
    """

    def __init__(self, title: str, total: int | None = None, unit: str = "") -> None:
        self.title, self.total, self.unit = printable(title), total, printable(unit)
        self.done: int | None = None
        self.note = ""
        self.began = time.monotonic()
        self._first = self._latest = (self.began, 0)

    def advance(self, done: int, note: str = "") -> None:
        """Say that ``done`` units are done, and perhaps something about them."""
        self._latest = time.monotonic(), done
        if self.done is None:
            self._first = self._latest  # work that goes on from a checkpoint begins far from 0
        self.done, self.note = done, printable(note)

    def counts(self) -> str:
        """Such as "1,234/50,000"; "" where nothing is counted."""
        if self.total is None:
            return "" if self.done is None else f"{self.done:,}"
        return f"{self.done or 0:,}/{self.total:,}"

    def seconds_left(self, now: float) -> float | None:
        """At the rate since the first unit; None where that is not known."""
        (began, start), (latest, done) = self._first, self._latest
        if self.total is None or done <= start or latest <= began:
            return None
        return max(0.0, (self.total - done) * (latest - began) / (done - start) - (now - latest))


def status_line(tasks: Sequence[Task], width: int, now: float, fancy: bool = True) -> str:
    """The innermost task, the last, in at most ``width`` cells: what does not fit is left out, but counts are never cut.

    In order of importance: the counts, the title (shortened if need be), the unit, the time gone by, the time left, the note, the
    tasks around this one, a bar.
    """
    task = tasks[-1]
    counts = task.counts()
    if cells(counts) > width:
        return ""
    room = width - cells(counts) - bool(counts)
    title = shortened(task.title, room, "…" if fancy else "...") if room >= SHORTEST_TITLE else ""
    room -= cells(title)

    def fitting(text: str) -> str:
        nonlocal room
        if not text or cells(text) + 1 > room:
            return ""
        room -= cells(text) + 1
        return text

    unit = fitting(task.unit if counts else "")
    gone = fitting(clock(now - task.began))
    seconds = task.seconds_left(now)
    left = fitting("" if seconds is None else f"left {clock(seconds)}")
    note = fitting(task.note)
    arrow = "›" if fancy else ">"
    around = fitting(" ".join(f"{outer.title} {outer.counts()} {arrow}" for outer in tasks[:-1] if outer.counts()))
    drawn = ""
    if task.total and room > SHORTEST_BAR:
        length = min(room - 1, LONGEST_BAR)
        full = round(length * min(1.0, max(0.0, (task.done or 0) / task.total)))
        drawn = (FULL if fancy else "=") * full + (EMPTY if fancy else "-") * (length - full)
    return " ".join(filter(None, (around, title, drawn, counts, unit, gone, left, note)))


def clock(seconds: float) -> str:
    """Such as "0:07", "12:30" or "1:02:03".

    >>> clock(7), clock(750), clock(3723)
    ('0:07', '12:30', '1:02:03')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def cells(text: str) -> int:
    """How many cells of a terminal a printable text takes.

    >>> cells("abc"), cells("図")
    (3, 2)
    """
    if text.isascii():
        return len(text)
    return sum((unicodedata.east_asian_width(c) in "WF") + (not unicodedata.combining(c)) for c in text)


def shortened(text: str, room: int, mark: str) -> str:
    """The text, cut at its end if it takes more than ``room`` cells."""
    if cells(text) <= room:
        return text
    while text and cells(text) + len(mark) > room:
        text = text[:-1]
    return text + mark


def printable(text: str) -> str:
    """The text on one line, with "?" for what would move the cursor or cannot be shown.

    >>> printable("a\\nb\\x1b[2J")
    'a?b?[2J'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
