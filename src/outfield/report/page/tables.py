"""Tables of text on the page: rows that belong together share a body, and so stay together when a table is sorted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from outfield.report.page.environment import is_long
from outfield.report.page.section import Section
from outfield.report.table import Table

PAIR = ["what", "value"]
"""Header of a table of names and values, which goes without saying and is not shown."""
ASCENDING, DESCENDING = "ascending", "descending"


@dataclass(frozen=True)
class Column:
    """A column's heading, whether it holds numbers, and the order in which its best comes first."""

    words: str
    number: bool
    first: str


@dataclass(frozen=True)
class Cell:
    """A cell: pieces of text with whether each is bold, how it is set, and how many rows it spans."""

    pieces: Sequence[tuple[str, bool]]
    kind: str = ""
    code: bool = False
    rows: int = 1


@dataclass(frozen=True)
class Grid:
    """A table as the page shows it: name and explanation, columns, and bodies of rows that stay together."""

    name: str
    rest: str
    kinds: str
    columns: Sequence[Column]
    bodies: Sequence[Sequence[Sequence[Cell]]]
    notes: Sequence[str] = ()
    anchor: str = ""


def tables_section(tables: Sequence[Table], of_id: str) -> Section | None:
    """All tables; what they are called is what they are linked by, less the ID set's name."""
    if not tables:
        return None
    shown, below = [], []
    for number, table in enumerate(tables, 1):
        anchor, (name, _, rest) = f"table-{number}", table.title.partition(": ")
        short = re.sub(r"\s*\([^()]*\)$", "", name).removeprefix(of_id).lstrip(" ,") or name
        below.append((anchor, short[:1].upper() + short[1:]))
        shown.append(grid_of(table, name, rest, anchor))
    return Section("tables", "Tables", "tables.html", shown, below)


def grid_of(table: Table, name: str, rest: str = "", anchor: str = "") -> Grid:
    """A table as the page shows it."""
    groups: list[list[int]] = []
    for index, row in enumerate(table.rows):
        if row and not row[0] and groups:
            groups[-1].append(index)
        else:
            groups.append([index])
    pair = table.header == PAIR
    columns = [
        Column(words, place >= table.left, DESCENDING if "↑" in words and "↓" not in words else ASCENDING)
        for place, words in enumerate(table.header)
    ]
    kinds = {
        "sortable": len(groups) > 1 and not pair,
        "dense": len(table.header) > 7,
        "pair": pair,
        "peers": any(len(row) > 1 and _long(row[1]) for row in table.rows),
    }
    bodies = [_body(table, group) for group in groups]
    return Grid(
        name, rest, " ".join(kind for kind, is_so in kinds.items() if is_so), columns, bodies, table.notes, anchor
    )


def _body(table: Table, group: Sequence[int]) -> list[list[Cell]]:
    """Rows that belong together; only the first has a name, which spans them all."""
    rows = []
    for index in group:
        name, *others = table.rows[index]
        cells = [_cell(table, index, place, text) for place, text in enumerate(others, 1)]
        head = Cell([(name, False)], "long" if _long(name) else "", _is_digest(name), len(group))
        rows.append([head, *cells] if index == group[0] else cells)
    return rows


def _cell(table: Table, row: int, column: int, text: str) -> Cell:
    """A cell of which the best numbers are bold."""
    kind = "number" if column >= table.left else "long" if _long(text) else "kind"
    if not any(place[:2] == (row, column) for place in table.best):
        return Cell([(text, False)], kind, _is_digest(text))
    parts = [(part, (row, column, which) in table.best) for which, part in enumerate(text.split(" / "))]
    between = [(" / ", False)] * len(parts)
    return Cell([piece for pair in zip(parts, between, strict=True) for piece in pair][:-1], kind)


def _long(text: str) -> bool:
    """Whether it may go over several lines."""
    return is_long(text) or "\n" in text


def _is_digest(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{32,64}", text) is not None
