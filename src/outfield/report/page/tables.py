"""Tables of text on the page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from outfield.report.page.markup import Html, element, join
from outfield.report.page.section import Section
from outfield.report.table import Table

PAIR = ["what", "value"]
"""Header of a table of names and values, which goes without saying and is not shown."""


def tables_section(tables: Sequence[Table], of_id: str) -> Section | None:
    """All tables; what they are called is what they are linked by, less the ID set's name."""
    if not tables:
        return None
    shown, below = [], []
    for number, table in enumerate(tables, 1):
        anchor, (name, _, rest) = f"table-{number}", table.title.partition(":")
        short = re.sub(r"\s*\([^()]*\)$", "", name).removeprefix(of_id).lstrip(" ,") or name
        below.append((anchor, short[0].upper() + short[1:]))
        shown.append(element("div", table_of(table, name, rest.strip()), notes_below(table.notes), id=anchor))
    return Section("tables", "Tables", join(shown), below)


def table_of(table: Table, name: str, rest: str = "") -> Html:
    """A table in which rows that belong together share a body, and so stay together when it is sorted."""
    groups: list[list[int]] = []
    for index, row in enumerate(table.rows):
        if row and not row[0] and groups:
            groups[-1].append(index)
        else:
            groups.append([index])
    head = [
        element(
            "th",
            words,
            scope="col",
            data_column=str(i) if words else None,
            class_="number" if i >= table.left else None,
        )
        for i, words in enumerate(table.header)
    ]
    bodies = [element("tbody", *_rows(table, group)) for group in groups]
    kinds = ["sortable"] * (len(groups) > 1 and table.header != PAIR) + ["dense"] * (len(table.header) > 7)
    kinds += ["pair"] * (table.header == PAIR) + ["peers"] * any(len(row) > 1 and _wrap(row[1]) for row in table.rows)
    above = element("thead", element("tr", *head))
    return framed(element("table", caption(name, rest), above, *bodies, class_=" ".join(kinds) or None), name)


def caption(name: str, rest: str) -> Html:
    """A table's name and how to read it, which stay in sight where the table is wider than the window."""
    return element("caption", element("div", name, element("span", rest) if rest else None))


def _rows(table: Table, group: Sequence[int]) -> list[Html]:
    several = len(group) > 1
    rows = []
    for index in group:
        first, *others = table.rows[index]
        head = element(
            "th",
            _text(first),
            scope="rowgroup" if several else "row",
            rowspan=str(len(group)) if several else None,
            class_=_wrap(first),
        )
        cells = [
            element("td", _marked(table, index, i, cell), class_="number" if i >= table.left else _wrap(cell, "kind"))
            for i, cell in enumerate(others, 1)
        ]
        leads = index == group[0]
        rows.append(element("tr", head if leads else None, *cells, class_=None if leads else "more"))
    return rows


def _marked(table: Table, row: int, column: int, cell: str) -> object:
    """A cell with its best numbers in bold."""
    if not any(place[:2] == (row, column) for place in table.best):
        return _text(cell)
    parts = [
        element("strong", part) if (row, column, which) in table.best else part
        for which, part in enumerate(cell.split(" / "))
    ]
    return join([parts[0], *(piece for part in parts[1:] for piece in (" / ", part))])


def _wrap(cell: str, other: str | None = None) -> str | None:
    """Long words may go over several lines; short ones stay on one."""
    return "long" if (len(cell) > 36 and " " in cell) or "\n" in cell else other


def _text(cell: str) -> object:
    return element("code", cell) if re.fullmatch(r"[0-9a-f]{32,64}", cell) else cell


def framed(table: Html, name: str) -> Html:
    """A table in a box that scrolls where the window is narrower, also by keyboard."""
    return element("div", table, class_="table", tabindex="0", role="region", aria_label=name)


def notes_below(lines: Sequence[str]) -> Html | None:
    """Lines to go below a table."""
    return element("ul", *(element("li", line) for line in lines), class_="notes") if lines else None
