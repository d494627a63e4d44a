"""The terminal: results on stdout, everything else on stderr."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table as RichTable

from outfield.report.table import Table

out = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, highlight=False, soft_wrap=True)


def plain(text: object) -> str:
    """Text that may hold brackets, safe from being taken for markup."""
    return str(text).replace("[", r"\[")


def print_table(table: Table) -> None:
    """Print a table; words wrap in a narrow terminal, numbers never do."""
    shown = RichTable(
        title=table.title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False
    )
    for column, name in enumerate(table.header):
        words = column < table.left
        shown.add_column(name, justify="left" if words else "right", no_wrap=column == 0 or not words, overflow="fold")
    for row in table.rows:
        shown.add_row(*map(plain, row))
    natural = Console(width=1000).measure(shown).maximum
    fits = table.left == len(table.header) and sys.stdout.isatty()  # words wrap in a narrow terminal, numbers must not
    Console(highlight=False, width=None if fits else natural).print(shown)
