"""Features and scores as the files people have: CSV, Parquet, .npz, .safetensors.

In CSV and Parquet one row is one sample. Columns ``feature_0, feature_1, …`` (or, in Parquet, one list column ``features``)
are the features; ``logit_*``, ``odin_logit_*`` and ``spread_*`` likewise; ``label`` is the class. Any other column is an
error, so that nothing is taken for a feature by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from outfield.errors import FileFormatError, InputError
from outfield.features import FIELDS, FeatureSet
from outfield.storage import check_readable, write_atomically, write_bytes, write_npz

PREFIXES = {"feature": "features", "logit": "logits", "odin_logit": "odin_logits", "spread": "spread"}


def read_features(source: str) -> FeatureSet:
    """A FeatureSet from ``FILE`` or, for an ``.npz`` that holds several sets, ``FILE#SET``.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it does not hold a FeatureSet.
        InputError: its arrays are not valid, or its ending is unknown.
    """
    path, part = split_source(source)
    if path.suffix not in (".safetensors", ".npz", ".csv", ".parquet"):
        raise InputError(f"{path}: features are read from .safetensors, .npz, .csv or .parquet")
    if path.suffix not in (".csv", ".parquet"):
        return FeatureSet.load(path, part)
    if part is not None:
        raise InputError(f"{path}: only an .npz can hold several sets; {part!r} has no meaning here")
    check_readable(path)
    try:
        table = pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise FileFormatError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error
    return FeatureSet(**_fields(path, table))


def split_source(source: str) -> tuple[Path, str | None]:
    """``FILE`` or ``FILE#SET`` as path and set; a file whose own name has a # in it is found first."""
    name, hash_sign, part = source.rpartition("#")
    if not hash_sign or Path(source).is_file():
        return Path(source), None
    return Path(name), part or None


def _fields(path: Path, table: Any) -> dict[str, np.ndarray]:
    fields: dict[str, np.ndarray] = {}
    numbered: dict[str, dict[int, str]] = {}
    if all(re.fullmatch(r"[-+.\deE]+", name) for name in table.column_names):
        raise FileFormatError(f"{path} has no header; its first line must name the columns: feature_0, feature_1, …")
    if len(set(table.column_names)) < len(table.column_names):
        raise FileFormatError(f"{path} has two columns of the same name; each name may stand once")
    for name in table.column_names:
        match = re.fullmatch(r"(feature|logit|odin_logit|spread)_(0|[1-9]\d*)", name)
        if match:
            numbered.setdefault(PREFIXES[match[1]], {})[int(match[2])] = name
        elif name in ("label", "labels"):
            fields["labels"] = _numbers(path, table, name)
        elif name in FIELDS:
            fields[name] = _lists(path, table, name)
        else:
            raise FileFormatError(
                f"{path} has a column {name!r}; expected feature_0, feature_1, … perhaps label, logit_*, odin_logit_*, spread_*"
            )
    for name, columns in numbered.items():
        if sorted(columns) != list(range(len(columns))):
            raise FileFormatError(
                f"{path}: the columns of {name} must be numbered 0 to {len(columns) - 1} without gaps"
            )
        fields[name] = np.stack([_numbers(path, table, columns[i]) for i in range(len(columns))], axis=1)
    if "features" not in fields:
        raise FileFormatError(
            f"{path} has no columns feature_0, feature_1, …; it has {', '.join(table.column_names[:6])}"
        )
    return fields


def _numbers(path: Path, table: Any, name: str) -> np.ndarray:
    column = table.column(name)
    if column.null_count:
        raise InputError(f"{path}: column {name!r} has {column.null_count} empty cells; every cell must hold a number")
    array: np.ndarray = column.to_numpy()
    if array.dtype == object or array.dtype.kind not in "fiu":
        raise InputError(f"{path}: column {name!r} holds {column.type}, not numbers")
    return array


def _lists(path: Path, table: Any, name: str) -> np.ndarray:
    column = table.column(name).combine_chunks()
    types = pyarrow.types
    if not any(check(column.type) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        raise FileFormatError(f"{path}: column {name!r} must hold lists of numbers; it holds {column.type}")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if column.null_count or len(column) == 0 or len(flat) % len(column):
        raise InputError(f"{path}: the lists in column {name!r} must all have the same length")
    lengths = np.asarray(column.value_lengths() if hasattr(column, "value_lengths") else [])
    if len(lengths) and (lengths != lengths[0]).any():
        raise InputError(f"{path}: the lists in column {name!r} must all have the same length")
    return flat.reshape(len(column), -1)  # type: ignore[no-any-return]


def write_columns(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Equal-length columns to ``.csv``, ``.parquet`` or ``.npz`` (by the ending), atomically.

    Raises:
        InputError: another ending.
        StorageError: the file could not be written; what was there stays.
    """
    if path.suffix == ".npz":
        write_npz(path, columns)
    elif path.suffix == ".parquet":
        write_atomically(path, lambda scratch: pyarrow.parquet.write_table(pyarrow.table(dict(columns)), scratch))
    elif path.suffix == ".csv":
        write_bytes(path, "".join(",".join(row) + "\n" for row in csv_rows(columns)).encode())
    else:
        raise InputError(
            f"{path}: scores are written as .csv, .parquet or .npz, not {path.suffix or 'without an ending'!r}"
        )


def csv_rows(columns: Mapping[str, np.ndarray]) -> list[list[str]]:
    """Header and rows as text; floats in digits that read back equal as float64."""
    texts = [[str(value) for value in column.tolist()] for column in columns.values()]
    return [list(columns), *(list(row) for row in zip(*texts, strict=True))]
