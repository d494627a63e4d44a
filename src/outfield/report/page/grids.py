"""Tables of text on the page, and where the numbers come from, as tables: commit, versions, machine, data, settings, time.

Rows that belong together share a body, and so stay together when a table is sorted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from outfield.percent import counted, percent
from outfield.report.page.template import Section, is_long
from outfield.report.table import Table

PAIR = ["what", "value"]  # header of a table of names and values, which goes without saying and is not shown
ASCENDING, DESCENDING = "ascending", "descending"
# Names in the provenance that need another word.
LABELS = {
    "cpus": "processors", "cuda": "CUDA", "gpu": "GPU", "id": "ID set", "neighbours": "k of KNN, unless set",
    "sha256": "SHA-256", "dirty": "uncommitted changes", "missing": "sets not there",
}  # fmt: skip


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


def grid_of(table: Table, name: str, rest: str = "", anchor: str = "") -> dict[str, Any]:
    """A table as the page shows it: columns, and bodies of rows that stay together."""
    groups: list[list[int]] = []
    for index, row in enumerate(table.rows):
        if row[0]:
            groups.append([])
        groups[-1].append(index)
    pair = table.header == PAIR
    peers = any(len(row) > 1 and is_long(row[1]) for row in table.rows)
    kinds = {"sortable": len(groups) > 1 and not pair, "dense": len(table.header) > 7, "pair": pair, "peers": peers}
    columns = [
        {"words": words, "number": place >= table.left, "first": DESCENDING if words.endswith("↑") else ASCENDING}
        for place, words in enumerate(table.header)
    ]
    return {
        "name": name, "rest": rest, "anchor": anchor, "notes": table.notes,
        "kinds": " ".join(kind for kind, is_so in kinds.items() if is_so), "columns": columns,
        "bodies": [[_row(table, index, group) for index in group] for group in groups],
    }  # fmt: skip


def _row(table: Table, index: int, group: Sequence[int]) -> list[dict[str, Any]]:
    """Cells of a row: pieces of text with whether each is bold; the name of the first row of a group spans them all."""
    cells = []
    for place, text in enumerate(table.rows[index]):
        kind = "long" if is_long(text) else "kind" if place else ""
        parts = [(part, (index, place, which) in table.best) for which, part in enumerate(text.split(" / "))]
        bold = place > 0 and any(best for _, best in parts)
        pieces = [piece for part in parts for piece in ((" / ", False), part)][1:] if bold else [(text, False)]
        code = re.fullmatch(r"[0-9a-f]{32,64}", text) is not None
        number = place > 0 and place >= table.left
        cells.append({"pieces": pieces, "kind": "number" if number else kind, "code": code, "rows": len(group)})
    return cells if index == group[0] else cells[1:]


def provenance_section(about: Mapping[str, Any]) -> Section | None:
    """Where the numbers come from; None where the run does not say."""
    if not about:
        return None
    tables, log = provenance_tables(about), about.get("stages")
    content = {
        "pairs": [grid_of(table, table.title) for table in tables if table.header == PAIR],
        "others": [grid_of(table, table.title) for table in tables if table.header != PAIR],
        "log": grid_of(_records_table("Every stage", log), "Every stage") if log else None,
        "stages": f"All {counted(len(log or ()), 'stage')}",
    }
    return Section("provenance", "Provenance", "provenance.html", content)


def provenance_tables(about: Mapping[str, Any]) -> list[Table]:
    """A run's provenance as tables: plain values in one, each mapping in one of its own, time by kind of stage."""
    plain = {name: value for name, value in about.items() if not isinstance(value, Mapping) and name != "stages"}
    tables = [_pair_table("This run", plain)] if plain else []
    for name, value in about.items():
        if name == "stages":
            tables += [_time_table(value)] if value else []
        elif name not in plain:
            title = _words(name)
            tables += _nested_tables(title[:1].upper() + title[1:], value)
    return tables


def _nested_tables(title: str, value: Mapping[str, Any]) -> list[Table]:
    inner = value.values()
    if not all(isinstance(item, Mapping) for item in inner):
        return [_pair_table(title, value)]
    if any(isinstance(part, Mapping) for item in inner for part in item.values()):
        if all("settings" in item for item in inner):
            return [Table(title, PAIR, [[name, _told(item, name)] for name, item in value.items()], 2)]
        return [table for name, item in value.items() for table in _nested_tables(f"{title}: {name}", item)]
    return [_records_table(title, [{"name": name} | dict(item) for name, item in value.items()])] if value else []


def _pair_table(title: str, values: Mapping[str, Any]) -> Table:
    # What a backbone's file notes of its training has rows of its own; the curve of it is too long for any.
    if isinstance(values.get("notes"), Mapping):
        every = {**values, **values["notes"], **values}
        values = {name: value for name, value in every.items() if name not in ("notes", "curve")}
    return Table(title, PAIR, [[_words(name), _told(value, str(name))] for name, value in values.items()], 2)


def _told(value: Any, name: str) -> str:
    """A value in words; settings on lines of their own, those of each object below them on one more."""
    if isinstance(value, Mapping) and "settings" in value:
        others = {key: other for key, other in value.items() if key != "settings" and other not in ([], None)}
        lines = [*_lines(value["settings"], name), *(f"{_words(key)}: {_plain(one)}" for key, one in others.items())]
        return "\n".join(lines) or "–"
    return "\n".join(_lines(value, name)) if isinstance(value, Mapping) and "type" in value else _plain(value, name)


def _records_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each record, a column for each name that one of them has."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = [[_plain(row.get(column), column if column in row else "") for column in columns] for row in rows]
    return Table(title, [_words(column) for column in columns], text, len(columns))


def _lines(settings: Mapping[str, Any], name: str) -> list[str]:
    """One line for plain settings, then those of each mapping; the type only where the name does not say it."""
    inner = {n: value for n, value in settings.items() if isinstance(value, Mapping)}
    kind = settings.get("type", name)
    words = [kind] * (kind.lower() != name.lower())
    words += [f"{_words(n)} {_plain(value)}" for n, value in settings.items() if n != "type" and n not in inner]
    below = [f"{_words(n)}: {line}" for n, value in inner.items() for line in _lines(value, n)]
    return [*filter(None, [", ".join(words)]), *below]


def _time_table(log: Sequence[Mapping[str, Any]]) -> Table:
    """Seconds of each kind of stage, by detector or backbone."""
    sums: dict[tuple[str, str], list[float]] = {}
    for entry in log:
        what = (entry["what"], entry.get("detector") or entry.get("backbone") or "–")
        sums.setdefault(what, []).append(entry.get("seconds") or 0.0)
    rows = [[what, of, f"{len(found):,}", f"{sum(found):,.1f}"] for (what, of), found in sums.items()]
    rows.append(["all", "–", f"{len(log):,}", f"{sum(map(sum, sums.values())):,.1f}"])
    return Table("Time", ["stage", "of", "number", "seconds"], rows, 2)


def _words(name: object) -> str:
    return LABELS.get(str(name), str(name).replace("_", " "))


def _plain(value: Any, name: object = "") -> str:
    """A value in words: accuracies in percent, numbers short, lists joined."""
    if value is None or value == "":
        return "unknown" if name == "dirty" else "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return percent(value) if str(name).endswith("accuracy") else f"{value:.6g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(key)} {_plain(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        falls = len(value) == 2 and all(isinstance(item, float) for item in value) and value[0] > value[1]  # a schedule
        joint = " " if name == "command" else " → " if falls else ", "
        return joint.join(_plain(item) for item in value) or "none"
    return str(value)
