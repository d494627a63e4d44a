"""Tables in files: CSV and Parquet by pyarrow, which is imported at first use; single columns also of other files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from outfield.errors import FileFormatError, InputError, OutfieldError, as_ours
from outfield.extras import library
from outfield.features.columns import NUMBER, TEXT, array_of, levels_as_texts
from outfield.files import (
    PathLike,
    Stamp,
    as_path,
    csv_cell,
    find_npz,
    open_to_read,
    write_atomically,
    write_bytes,
    write_npz,
)
from outfield.percent import counted

TABLE_ENDINGS = (".csv", ".parquet")  # of files that hold tables
COLUMN_ENDINGS = (".csv", ".jsonl", ".parquet", ".npz")  # of files that a single column is read from
INDEX = r"__index_level_\d+__"  # what pandas calls the index of a frame in a Parquet file; it is no column of the frame
BLOCK = 2**23  # bytes of a CSV parsed together; no row may be longer
Columns = Mapping[str, Sequence[Any] | np.ndarray]
THREADED = 1000  # columns up to which reading on several threads pays


@cache
def arrow() -> Any:
    """pyarrow with the modules that read and write files."""
    library("pyarrow.csv", extra="tables")
    library("pyarrow.parquet", extra="tables")
    return library("pyarrow", extra="tables")


@contextmanager
def opened(stamp: Stamp) -> Iterator[BinaryIO]:
    """A table's file, to be read by pyarrow, of which every error becomes one of ours."""
    wrong = f"{stamp.path} cannot be read as {stamp.path.suffix[1:]}"
    with io.BufferedReader(stamp.open()) as file, as_ours(wrong):
        yield file


def parquet_file(file: Any) -> Any:
    """A Parquet file to be used in a ``with`` statement."""
    # Nothing is read ahead: a thread of pyarrow that still holds the file when the program ends would abort it. Buffered, since
    # otherwise a row group's columns are read whole.
    options = {"buffer_size": 2**20, "pre_buffer": False, "page_checksum_verification": True}
    return arrow().parquet.ParquetFile(file, **options)


def whole_parquet(file: Any, columns: Sequence[str] | None = None) -> Any:
    """A Parquet file as a table of pyarrow, of some columns or of all."""
    with parquet_file(file) as parquet:
        return parquet.read(columns=columns)


def csv_header(path: Path, file: BinaryIO) -> list[str]:
    """The names in the first line of a CSV."""
    with _is_text(path), as_ours(f"{path} cannot be read as csv", FileFormatError, csv.Error):
        return next(csv.reader([file.readline().decode("utf-8-sig")]), [])


def _is_text(path: Path) -> AbstractContextManager[None]:
    return as_ours(f"{path} is not UTF-8 text", FileFormatError, UnicodeDecodeError)


# Rows of a CSV that are longer or shorter than its header: what is wrong, by their number counted from 0
Uneven = dict[int, str] | None


def whole_csv(
    path: Path, file: BinaryIO, names: Sequence[str], types: Mapping[str, Any], out: Uneven = None, **convert: Any
) -> Any:
    """A CSV as a table of pyarrow; uneven rows are left ``out``, or an error."""
    module, uneven = arrow().csv, {} if out is None else out

    def leave_out(row: Any) -> str:
        columns = counted(row.expected_columns, "column")
        uneven[row.number - 2] = f"it has {counted(row.actual_columns, 'cell')}, but the header {columns}"
        return "skip"

    options = module.ConvertOptions(column_types=types, **convert)
    parse = module.ParseOptions(ignore_empty_lines=len(names) > 1)  # of a single column they are empty cells
    parse.newlines_in_values = _has_quotes(path, file)
    if out is not None:  # which several threads would not know the numbers of
        parse.invalid_row_handler = leave_out
    read = module.ReadOptions(block_size=BLOCK, use_threads=len(names) <= THREADED and out is None)
    file.seek(0)
    try:
        return module.read_csv(file, read, parse, options)
    except arrow().ArrowInvalid as error:
        if "conversion error" in str(error):
            raise _no_number(path, names, str(error)) from error
        if out is None and "columns, got" in str(error):
            with open_to_read(path) as again:  # a thread of pyarrow may still read on in the other, and move its place
                whole_csv(path, again, names, types, uneven, **convert)
            raise FileFormatError(f"{path}, row {min(uneven) + 1}: {uneven[min(uneven)]}; mend it") from error
        raise


def _has_quotes(path: Path, file: BinaryIO) -> bool:
    """Whether cells are quoted; refuses a file that ends within quotes, whose last cell may have been cut off."""
    file.seek(0)
    if (count := sum(block.count(b'"') for block in iter(lambda: file.read(BLOCK), b""))) % 2:
        try:
            deque(csv.reader(_lines(path), strict=True), maxlen=0)
        except csv.Error as error:
            if "end of data" in str(error):
                raise FileFormatError(f"{path} ends within a quoted cell; close the quote") from error
    return count > 0


def _no_number(path: Path, names: Sequence[str], message: str) -> OutfieldError:
    """What pyarrow says of a cell that it cannot convert, with the name of its column."""
    if "UTF8" in message:
        return FileFormatError(f"{path} is not UTF-8 text")
    column = re.search(r"column #(\d+)", message)
    where = f"column {names[int(column[1])]!r}" if column and int(column[1]) < len(names) else "a column"
    cell = re.search(r"invalid value '(.*)'", message, re.DOTALL)
    shown = f", such as {cell[1][:40]!r}" if cell else ""
    kind = "whole numbers" if "int64" in message else "numbers"
    return InputError(f"{path}: {where} holds cells that are not {kind}{shown}")


def read_table(path: PathLike, kinds: Mapping[str, str] | None = None, out: Uneven = None) -> dict[str, np.ndarray]:
    """The columns of a CSV or Parquet file by name, in the types that the file or its cells have.

    In a CSV empty cells and those that say NA, NaN or null are missing. ``kinds`` says what columns are known to hold, so that
    texts that look like numbers stay texts. Where uneven rows of a CSV are left ``out``, all of these are given as texts, and no
    cell is refused.
    """
    file = as_path(path)
    if file.suffix not in TABLE_ENDINGS:
        had = repr(file.suffix) if file.suffix else "without an ending"
        raise InputError(f"{file}: tables are read from {' or '.join(TABLE_ENDINGS)}, not {had}")
    with opened(Stamp.of(file)) as content:
        known = kinds or {} if out is None else dict.fromkeys(kinds or {}, TEXT)
        table = whole_parquet(content) if file.suffix == ".parquet" else _frame_csv(file, content, known, out)
        if not table.num_rows:
            raise InputError(f"{file} has no rows{' as long as its header' if out else ''}; at least one is needed")
        said = table.schema.pandas_metadata or {}  # what pandas wrote beside the columns of a Parquet file
        index = said.get("index_columns", [])
        names = [name for name in table.column_names if name not in index and not re.fullmatch(INDEX, name)]
        if len(set(names)) < len(names):
            raise InputError(f"{file} has two columns of the same name; each name may stand once")
        categories = {one["name"] for one in said.get("columns", []) if one["pandas_type"] == "categorical"}
        columns = {name: table.column(name) for name in names}
        # Parquet keeps numbers that are levels of a category as numbers.
        found = {name: one.dictionary_encode() if name in categories else one for name, one in columns.items()}
        return {name: array_of(levels_as_texts(one)) for name, one in found.items()}


def _frame_csv(file: Path, content: BinaryIO, kinds: Mapping[str, str], out: Uneven) -> Any:
    names = csv_header(file, content)
    if len(names) == 1 and re.search(r"[;\t|]", names[0]):
        raise InputError(f"{file} begins with {names[0].strip()!r:.100}; separate the cells of a table by commas")
    types = {TEXT: arrow().string(), NUMBER: arrow().float64()}
    known = {name: types[kind] for name, kind in kinds.items() if kind in types}
    return whole_csv(file, content, names, known, out, strings_can_be_null=True)


def read_column(path: Path, names: Sequence[str]) -> tuple[str, np.ndarray, int]:
    """The first column of ``names`` in a file: its name, its numbers (N,), float64, and how many rows had none."""
    if path.suffix not in COLUMN_ENDINGS:
        raise InputError(f"{path}: scores are read from {', '.join(COLUMN_ENDINGS)}, not {path.suffix!r}")
    read = {".csv": _csv_column, ".jsonl": _json_column, ".parquet": _parquet_column, ".npz": _npz_column}
    name, cells = read[path.suffix](path, names)
    full = [cell for cell in cells if cell is not None and cell != ""]
    if not full:
        raise InputError(f"{path}: column {name!r} holds no number")
    return name, np.array([_number(path, name, cell) for cell in full]), len(cells) - len(full)


def _number(path: Path, name: str, cell: Any) -> float:
    if isinstance(cell, str | int | float) and not isinstance(cell, bool):
        try:
            return float(cell)
        except (ValueError, OverflowError):
            pass
    raise InputError(f"{path}: column {name!r} holds {cell!r:.40}, which is no number")


def _first(path: Path, names: Sequence[str], there: Sequence[str]) -> str:
    for name in names:
        if name in there:
            return name
    raise InputError(f"{path} has no column {' or '.join(names)}; it has {', '.join(there)[:200] or 'none'}")


def _lines(path: Path) -> Iterator[str]:
    content = io.BufferedReader(open_to_read(path))
    with io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as file, _is_text(path):
        yield from file


def _csv_column(path: Path, names: Sequence[str]) -> tuple[str, list[Any]]:
    rows = csv.reader(_lines(path), strict=True)  # which takes no pyarrow
    try:
        header = next(rows, [])
        name = _first(path, names, header)
        place, cells = header.index(name), []
        for row in filter(None, rows):
            if len(row) != len(header):
                found = f"{counted(len(row), 'cell')}, but {counted(len(header), 'column')}"
                raise FileFormatError(f"{path}, line {rows.line_num}: {found}")
            cells.append(row[place])
    except csv.Error as error:
        raise FileFormatError(f"{path}, line {rows.line_num}, cannot be read as csv: {error}") from error
    return name, cells


def _json_column(path: Path, names: Sequence[str]) -> tuple[str, list[Any]]:
    rows = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:  # as_ours would take as long as this for each line
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{path}, line {number}, cannot be read as JSON: {error!s:.100}") from error
        if not isinstance(row, dict):
            raise FileFormatError(f"{path}, line {number}, is no JSON object")
        rows.append(row)
    name = _first(path, names, list(dict.fromkeys(key for row in rows for key in row)))
    return name, [row.get(name) for row in rows]


def _parquet_column(path: Path, names: Sequence[str]) -> tuple[str, list[Any]]:
    with opened(Stamp.of(path)) as file, parquet_file(file) as parquet:
        name = _first(path, names, parquet.schema_arrow.names)
        return name, parquet.read(columns=[name]).column(name).to_pylist()


def _npz_column(path: Path, names: Sequence[str]) -> tuple[str, list[Any]]:
    found = find_npz(path).arrays
    name = _first(path, names, list(found))
    array = np.asarray(found[name].read())
    if array.ndim != 1 or array.dtype.kind not in "fiu":
        raise InputError(f"{path}: {name} must be a vector of numbers; it has shape {array.shape}, {array.dtype}")
    return name, array.tolist()


# Writing


def write_columns(path: Path, columns: Columns, types: Mapping[str, str] | None = None) -> None:
    """Columns of equal length to ``.csv``, ``.parquet`` or ``.npz`` (by the ending), atomically; None is an empty cell.

    ``types`` are those of columns of a Parquet file whose cells may all be empty: "string", "float64", "int64" or "bool".
    """
    if path.suffix == ".npz":
        write_npz(path, {name: np.asarray(column) for name, column in columns.items()})
    elif path.suffix == ".parquet":
        pyarrow, known = arrow(), types or {}
        cells = {
            name: column if isinstance(column, np.ndarray) and column.dtype.kind != "U" else [*map(_text, column)]
            for name, column in columns.items()
        }
        table = pyarrow.table({name: pyarrow.array(column, known.get(name)) for name, column in cells.items()})
        write_atomically(path, lambda file: pyarrow.parquet.write_table(table, file, write_page_checksum=True))
    elif path.suffix == ".csv":
        write_bytes(path, csv_text(columns).encode())
    else:
        raise InputError(f"{path}: scores are written as .csv, .parquet or .npz, not {path.suffix!r}")


def csv_text(columns: Columns) -> str:
    """Header and rows as CSV; floats in digits that read back equal as float64, texts in quotes where they need them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_cell, columns))
    lists = (column.tolist() if isinstance(column, np.ndarray) else column for column in columns.values())
    writer.writerows(zip(*([csv_cell(_text(value)) for value in column] for column in lists), strict=True))
    return text.getvalue()


def _text(value: Any) -> Any:
    return readable(value) if isinstance(value, str) else value


def readable(name: str) -> str:
    """A name as text that can be written anywhere: bytes that are no UTF-8 become a backslash, x and two digits."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def named_columns(names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """The column ``file`` of rows that have names; none where they have none."""
    return {} if names is None else {"file": np.array([readable(name) for name in names], dtype=np.str_)}
