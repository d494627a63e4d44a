"""A progress bar on long work: on a terminal or in a notebook, on stderr; silent elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[..., None]
"""``advance(done)`` or ``advance(done, note="loss 0.1")``: how far the work has come."""


@contextmanager
def bar(title: str, total: int, unit: str = "", worth_it: bool = True) -> Iterator[Advance]:
    """Show ``title`` with a bar of ``total`` units while the block runs; it disappears at the end.

    Nothing is shown when the work is not ``worth_it``, being over before anyone could read.

    >>> with bar("counting", 3) as advance:
    ...     for i in range(3):
    ...         advance(i + 1)
    """
    console = Console(stderr=True)
    if not worth_it or not (console.is_terminal or console.is_jupyter):
        yield lambda done, note="": None
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total, note="")
        yield lambda done, note="": progress.update(task, completed=done, note=note)
