"""Tables and text on standard output."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outfield.report.table import Table

NARROWEST = 30
"""Characters beside names at least, however narrow a terminal is."""


def say(text: str = "") -> None:
    """A line on standard output, as it is."""
    sys.stdout.write(text + "\n")


def print_table(table: Table) -> None:
    """Print a table; words wrap in a narrow terminal, numbers never do."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text  # as it is: brackets in a name are no markup

    shown = RichTable(header_style="bold", box=None, pad_edge=False)
    for column, name in enumerate(table.header):
        words = column < table.left
        shown.add_column(
            Text(name), justify="left" if words else "right", no_wrap=column == 0 or not words, overflow="fold"
        )
    for row in table.rows:
        shown.add_row(*map(Text, row))
    natural = Console(width=1000).measure(shown).maximum
    fits = table.left == len(table.header) and sys.stdout.isatty()
    console = Console(highlight=False, width=None if fits else natural)
    console.print(Text(table.title, style="bold"), soft_wrap=True)  # the terminal breaks it, not the table's width
    console.print(shown)


def print_groups(title: str, groups: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Print groups of names and what each is, side by side; words wrap on a terminal, and only there.

    A no-break space in what is said of a name is printed as a space at which no line is broken.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    column = 4 + max(len(name) for rows in groups.values() for name, _ in rows)
    room = max(console.width - column, NARROWEST) if sys.stdout.isatty() else sys.maxsize
    console.print(Text(title, style="bold"), soft_wrap=True)
    for heading, rows in groups.items():
        console.print(Text(f"\n{heading}", style="bold"), soft_wrap=True)
        for name, what in rows:
            for first, line in zip(chain([f"  {name}"], repeat("")), textwrap.wrap(what, room), strict=False):
                say(first.ljust(column) + line.replace("\xa0", " "))
