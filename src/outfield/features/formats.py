"""Which files hold features: every ending, and how the arrays in each are named, read and written.

Names of rows, such as the files of their images, are two arrays: ``name_bytes`` holds all names in UTF-8 one after the other,
``name_ends`` (N,) where each of them ends. The names of files that are no valid UTF-8 come back as they were.

In CSV and Parquet files a row is a sample. Columns ``feature_0, feature_1, …`` (or, where cells can be lists, one column
``features``) are the features; ``logit_*`` and the other fields likewise; ``label`` is the class. Any other column is an error,
so that nothing is taken for a feature by mistake.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import FileFormatError, InputError, as_ours
from outfield.features.fields import FIELDS, Field
from outfield.features.source import NAME_CODING, checked_about
from outfield.features.table_files import arrow, csv_header, opened, whole_csv
from outfield.files import (
    PathLike,
    Record,
    Stamp,
    StoredArray,
    as_path,
    find_npy,
    find_record,
    open_to_read,
    write_record,
)
from outfield.percent import counted

SAVED = (".safetensors", ".npz")
STREAMED = (*SAVED, ".npy", ".parquet")
LOADED = (*STREAMED, ".csv")
ARRAYS = BYTES, ENDS = "name_bytes", "name_ends"
WHOLE = -1  # the number of a column that holds all of a field
Places = Mapping[str, StoredArray]
# arrays by field, where they come from, and the names of the rows
Content = tuple[dict[str, Any], dict[str, str], tuple[str, ...] | None]


def split_source(source: PathLike) -> tuple[Path, str | None]:
    """``FILE`` or ``FILE#SET`` as path and set; a file whose own name has a # in it is found first."""
    whole = as_path(source)
    name, hash_sign, part = str(whole).rpartition("#")
    if not hash_sign or not name or os.path.isfile(whole):
        return whole, None
    return Path(name), part or None


def check_ending(path: Path, part: str | None, known: Sequence[str], done: str) -> None:
    """Refuse a file that by its name cannot hold such features."""
    if path.suffix not in known:
        *most, last = known
        had = repr(path.suffix) if path.suffix else "without an ending"
        raise InputError(f"{path}: features are {done} {', '.join(most)} or {last}, not {had}")
    if part is not None and path.suffix != ".npz":
        raise InputError(f"{path}: only an .npz can hold several sets; {part!r} has no meaning here")


def read(path: Path, part: str | None) -> Content:
    """All of a set, as it is in the file."""
    check_ending(path, part, LOADED, "read from")
    if path.suffix == ".csv":
        return dict(_read_csv(path)), {}, None
    if path.suffix == ".parquet":
        from outfield.features.stream import open_features

        return dict(open_features(path).in_memory().tensors()), {}, None
    with open_to_read(path) as file:
        found, about, named = find(path, part, file)
        names = unpacked({name: array.read(file) for name, array in named.items()})
        return {name: array.read(file) for name, array in found.items()}, about, names


def write(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str], names: tuple[str, ...] | None = None
) -> None:
    """Write the fields of a set and the names of its rows, atomically."""
    check_ending(path, None, SAVED, "saved as")
    header = {"about": dict(about)} if about else {}
    write_record(path, "FeatureSet", Record(header, {**tensors, **packed(names)}), endings=SAVED)


def find(path: Path, part: str | None, file: io.FileIO | None = None) -> tuple[Places, dict[str, str], Places]:
    """Where the arrays of a set lie in a file of arrays, what it says of them, and where names of rows lie."""
    if path.suffix == ".npy":
        return {"features": find_npy(path)}, {}, {}
    header, arrays = find_record(path, "FeatureSet", file)
    fields = _fields_in(path, part, [name for name in arrays if name not in ARRAYS])
    names = {name: arrays[name] for name in ARRAYS if name in arrays and part is None}
    with as_ours(str(path), FileFormatError, InputError):
        about = checked_about(None if header is None else header.get("about"))
    return {field: arrays[name] for name, field in fields.items()}, about, names


def _fields_in(path: Path, part: str | None, names: Sequence[str]) -> dict[str, str]:
    """Which arrays of a file are the fields of a set: name in the file → field."""
    parts = [name.removesuffix("_features") for name in names if name.endswith("_features")]
    hint = f"; it holds several sets, name one of them: {', '.join(parts)}" if parts else ""
    if part is not None:
        if part not in parts:
            raise FileFormatError(f"{path} has no set {part!r}{hint}")
        return {f"{part}_{field}": field for field in FIELDS if f"{part}_{field}" in names}
    if set(names) - set(FIELDS) or "features" not in names:
        shown = ", ".join(names[:6]) or "nothing"
        first, *others = FIELDS
        what = f"{path} is not a FeatureSet: it holds {shown}{', …' if len(names) > 6 else ''}"
        raise FileFormatError(f"{what}; expected {first} and any of {', '.join(others)}{hint}")
    return {name: name for name in names}


# Names of rows


def packed(names: tuple[str, ...] | None) -> dict[str, Tensor]:
    """The arrays of a file that hold the names; none where there are no names."""
    if names is None:
        return {}
    encoded = [name.encode(*NAME_CODING) for name in names]
    content = np.frombuffer(b"".join(encoded), np.uint8).copy()
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    return {BYTES: torch.from_numpy(content), ENDS: torch.from_numpy(ends)}


def unpacked(arrays: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The names that :func:`packed` made arrays of; None where there are none."""
    if len(arrays) < len(ARRAYS):
        return None
    content, ends = (np.asarray(arrays[name]) for name in ARRAYS)
    whole, starts = content.tobytes(), [0, *ends[:-1].tolist()]
    return tuple(whole[start:end].decode(*NAME_CODING) for start, end in zip(starts, ends.tolist(), strict=True))


# Features in the columns of CSV and Parquet files


def columns_by_field(path: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Which columns make up each field, in their order: one of lists or numbers, or one for each entry of a row."""
    if not names:
        raise FileFormatError(f"{path} has no columns; expected {_expected()}")
    if all(re.fullmatch(r"\s*[-+.\deE]+\s*", name) for name in names):
        raise FileFormatError(f"{path} has no header; its first line must name the columns: {_expected()}")
    if len(set(names)) < len(names):
        raise FileFormatError(f"{path} has two columns of the same name; each name may stand once")
    columns: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        field, number = _meant(path, name)
        columns.setdefault(field.name, []).append((number, name))
    for name, own in columns.items():
        numbers, first = sorted(number for number, _ in own), own[0][1]
        if WHOLE in numbers and len(own) > 1:
            raise FileFormatError(f"{path} has {name} twice, as columns {first} and {own[1][1]}; keep one")
        if WHOLE not in numbers and numbers != list(range(len(own))):
            raise FileFormatError(f"{path}: the columns of {name} must be numbered from 0 without gaps")
    if "features" not in columns:
        raise FileFormatError(f"{path} has no columns feature_0, feature_1, …; it has {', '.join(names[:6]):.200}")
    return {name: [column for _, column in sorted(own)] for name, own in columns.items()}


def _meant(path: Path, column: str) -> tuple[Field, int]:
    """The field that a column belongs to, and which of its columns it is."""
    stem, _, number = column.rpartition("_")
    for field in (field for field in FIELDS.values() if field.per_row):
        single = len(field.axes) == 1
        if column == field.name or (single and column == field.column):
            return field, WHOLE
        if not single and stem == field.column and re.fullmatch(r"0|[1-9][0-9]{0,8}", number):
            return field, int(number)
    what = f"{path} has a column {column!r:.60}; expected {_expected()}. A table whose columns have names of their"
    raise FileFormatError(f"{what} own becomes features by FeatureSet.from_frame, and a guard by outfield guard rows")


def _expected() -> str:
    first, *others = (field for field in FIELDS.values() if field.per_row)
    shown = ", ".join(field.column + "_*" * (len(field.axes) - 1) for field in others)
    return f"{first.column}_0, {first.column}_1, … perhaps {shown}"


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    """The fields in the columns of a CSV file, by name: numbers as float64, classes as int64."""
    stamp = Stamp.of(path)
    with opened(stamp) as file:
        names = csv_header(path, file)
        columns = columns_by_field(path, names)
        counting = {column for name, found in columns.items() if FIELDS[name].counts is not None for column in found}
        types = {name: arrow().int64() if name in counting else arrow().float64() for name in names}
        table = whole_csv(path, file, names, types, null_values=[""]) if file.tell() < stamp.size else None
        if table is None or not table.num_rows:
            raise InputError(f"{path} has no rows; at least one is needed")
        if table.column_names != names:
            raise FileFormatError(f"{path} cannot be read as csv: its header is not one line of names")
        stamp.check()
        return values_of(path, table, columns)


def values_of(path: Path, batch: Any, columns: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """The fields of some rows (a record batch or a table of pyarrow), each from its columns."""
    values = {}
    for name, found in columns.items():
        if len(FIELDS[name].axes) == 1:
            values[name] = _numbers(path, batch.column(found[0]), found[0])
        elif list(found) == [name]:
            values[name] = _lists(path, batch.column(name), name)
        else:
            values[name] = np.stack([_numbers(path, batch.column(column), column) for column in found], axis=1)
    return values


def _numbers(path: Path, column: Any, name: str) -> np.ndarray:
    """A column of pyarrow without empty cells, as an array."""
    types = arrow().types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    _check_full(path, column, name)
    if not (types.is_integer(column.type) or types.is_floating(column.type)):
        raise InputError(f"{path}: column {name!r} holds {column.type}, not numbers")
    array: np.ndarray = np.asarray(column)
    return array


def _check_full(path: Path, column: Any, name: str) -> None:
    if column.null_count:
        cells = counted(column.null_count, "empty cell")
        raise InputError(f"{path}: column {name!r} has {cells}; every cell must be filled")


def _lists(path: Path, column: Any, name: str) -> np.ndarray:
    types = arrow().types
    if not any(check(column.type) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        raise FileFormatError(f"{path}: column {name!r} must hold lists of numbers; it holds {column.type}")
    _check_full(path, column, name)
    flat = _numbers(path, column.flatten(), name)
    fixed = types.is_fixed_size_list(column.type)
    lengths = {column.type.list_size} if fixed else set(column.value_lengths().to_pylist())
    if len(lengths) != 1:
        raise InputError(f"{path}: the lists in column {name!r} must have the same length, not {sorted(lengths)[:4]}")
    return flat.reshape(len(column), lengths.pop())
