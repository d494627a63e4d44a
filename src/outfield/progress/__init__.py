"""Progress of long work: one line at the foot of a terminal or notebook, on stderr; nothing elsewhere.

Work says what it does and how far it has come, with :func:`bar`. How that is shown is known here alone. A line appears once work
has lasted half a second, is drawn again every second, also while the work does not advance, and disappears with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outfield.progress.line import Task
from outfield.progress.screen import SCREEN, hidden, is_shown, show_progress

__all__ = ["Advance", "bar", "hidden", "is_shown", "show_progress"]

Advance = Callable[..., None]
"""``advance(done)`` or ``advance(done, note="loss 0.1")``: how far the work has come."""


@contextmanager
def bar(title: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
    """Show ``title``, and how far the work has come, while the block runs. Blocks may lie in one another, and in threads.

    Args:
        title: What is being done.
        total: How many units there are to do; None where that is not known.
        unit: What is counted, in the plural.

    >>> with bar("counting", 3) as advance:
    ...     for i in range(3):
    ...         advance(i + 1)
    """
    task = Task(title, total, unit)
    SCREEN.add(task)
    try:
        yield task.advance
    finally:
        SCREEN.remove(task)
