"""Verdicts as files: CSV, Parquet, JSON and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outfield.errors import InputError
from outfield.features.columns import arrow
from outfield.files.atomic import write_atomically, write_bytes
from outfield.guard.verdict import Verdict, Verdicts

ENDINGS = (".csv", ".parquet", ".json", ".jsonl")
"""Of files that verdicts are written to."""


def write_verdicts(path: Path, verdicts: Verdicts) -> None:
    """Write verdicts to a file of the kind that its ending says, atomically.

    Raises:
        InputError: another ending.
        StorageError: the file could not be written; what was there stays.
        MissingExtraError: it is a Parquet file, and pyarrow is not installed.
    """
    if path.suffix == ".parquet":
        _write_parquet(path, verdicts.table())
        return
    texts = {".csv": as_csv, ".json": as_json, ".jsonl": as_json_lines}
    if path.suffix not in texts:
        raise InputError(
            f"{path}: verdicts are written as {', '.join(ENDINGS)}, not {path.suffix or 'without an ending'!r}"
        )
    write_bytes(path, texts[path.suffix](verdicts).encode("utf-8", "surrogateescape"))


def as_csv(verdicts: Verdicts) -> str:
    """One row each under a header; a cell is empty where there is nothing, and numbers read back equal."""
    table, text = verdicts.table(), io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(table)
    rows.writerows([["" if cell is None else cell for cell in row] for row in zip(*table.values(), strict=True)])
    return text.getvalue()


def as_json(verdicts: Iterable[Verdict]) -> str:
    """A list of objects."""
    return "[\n" + ",\n".join(_json(one) for one in verdicts) + "\n]\n"


def as_json_lines(verdicts: Iterable[Verdict]) -> str:
    """An object in each line."""
    return "".join(_json(one) + "\n" for one in verdicts)


def _json(verdict: Verdict) -> str:
    return json.dumps(verdict.to_dict())


def _write_parquet(path: Path, table: Mapping[str, list[Any]]) -> None:
    texts = {"file", "class_name", "rang", "error", "why"}
    pyarrow = arrow()
    kinds = {name: pyarrow.string() if name in texts else pyarrow.float64() for name in table}
    kinds |= {"class_index": pyarrow.int64(), "is_ood": pyarrow.bool_()}
    plain = {name: [_text(cell) for cell in cells] if name in texts else cells for name, cells in table.items()}
    columns = pyarrow.table({name: pyarrow.array(cells, kinds[name]) for name, cells in plain.items()})
    write_atomically(path, lambda file: pyarrow.parquet.write_table(columns, file, write_page_checksum=True))


def _text(cell: str | None) -> str | None:
    """A text that UTF-8 can hold: bytes of a file name that are no text are shown as such."""
    return None if cell is None else cell.encode("utf-8", "backslashreplace").decode()
