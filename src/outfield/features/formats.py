"""Which files hold features: every ending, and how the arrays in each are named, read and written.

Names of rows, such as the files of their images, are two arrays: ``name_bytes`` holds all names in UTF-8 one after the other,
``name_ends`` (N,) where each of them ends. The names of files that are no valid UTF-8 come back as they were.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outfield.errors import FileFormatError, InputError
from outfield.features.fields import FIELDS, agreed_sizes
from outfield.features.source import checked_about
from outfield.files import PathLike, Record, StoredArray, as_path, find_npy, find_record, open_to_read, write_record

SAVED = (".safetensors", ".npz")
LOADED = (".safetensors", ".npz", ".npy", ".csv", ".parquet")
STREAMED = (".safetensors", ".npz", ".npy", ".parquet")
BYTES, ENDS = "name_bytes", "name_ends"
ARRAYS = (BYTES, ENDS)
LONGEST = 2**16
"""Letters of a name."""
CODING = ("utf-8", "surrogateescape")


def split_source(source: PathLike) -> tuple[Path, str | None]:
    """``FILE`` or ``FILE#SET`` as path and set; a file whose own name has a # in it is found first."""
    whole = as_path(source)
    name, hash_sign, part = str(whole).rpartition("#")
    if not hash_sign or not name or os.path.isfile(whole):
        return whole, None
    return Path(name), part or None


def check_ending(path: Path, part: str | None, known: Sequence[str], done: str) -> None:
    """Refuse a file that cannot hold what is asked for, by its name alone."""
    if path.suffix not in known:
        *most, last = known
        had = repr(path.suffix) if path.suffix else "without an ending"
        raise InputError(f"{path}: features are {done} {', '.join(most)} or {last}, not {had}")
    if part is not None and path.suffix != ".npz":
        raise InputError(f"{path}: only an .npz can hold several sets; {part!r} has no meaning here")


Content = tuple[dict[str, Any], dict[str, str], tuple[str, ...] | None]
"""Arrays by field, what is said of where they come from, and the names of the rows."""


def read(path: Path, part: str | None) -> Content:
    """The arrays of a set, by field, as they are in the file, what it says of where they come from, and names of rows."""
    check_ending(path, part, LOADED, "read from")
    if path.suffix in SAVED:
        with open_to_read(path) as file:
            found, about, named = find(path, part, file)
            shapes = {name: array.shape for name, array in found.items()}
            for name, shape in shapes.items():  # before anything is unpacked
                FIELDS[name].check_shape(shape)
            agreed_sizes(shapes)
            names = unpacked(path, {name: array.read(file) for name, array in named.items()})
            return {name: array.read(file) for name, array in found.items()}, about, names
    if path.suffix == ".npy":
        return {"features": find_npy(path).read()}, {}, None
    from outfield.features.tables.feature_columns import ParquetColumns, read_features_csv

    return dict(read_features_csv(path) if path.suffix == ".csv" else ParquetColumns(path).whole()), {}, None


def _about_in(path: Path, header: Mapping[str, Any] | None) -> dict[str, str]:
    """What a file's header says of where its rows come from."""
    try:
        return checked_about(None if header is None else header.get("about"))
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from error


def write(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str], names: tuple[str, ...] | None = None
) -> None:
    """Write the fields of a set and the names of its rows, atomically."""
    check_ending(path, None, SAVED, "saved as")
    header = {"about": dict(about)} if about else {}
    write_record(path, "FeatureSet", Record(header, {**tensors, **packed(names)}), endings=SAVED)


Places = Mapping[str, StoredArray]


def find(path: Path, part: str | None, file: io.FileIO | None = None) -> tuple[Places, dict[str, str], Places]:
    """Where the arrays of a set lie in a ``.safetensors`` or ``.npz`` file, what it says of them, and where names of rows lie."""
    header, arrays = find_record(path, "FeatureSet", file)
    fields = _fields_in(path, part, [name for name in arrays if name not in ARRAYS])
    for name in fields:
        arrays[name].check_objects()
    names = {name: arrays[name] for name in ARRAYS if name in arrays and part is None}
    return {field: arrays[name] for name, field in fields.items()}, _about_in(path, header), names


def _fields_in(path: Path, part: str | None, names: Sequence[str]) -> dict[str, str]:
    """Which arrays of a file are the fields of a set: name in the file → field."""
    if part is not None:
        found = {f"{part}_{field}": field for field in FIELDS if f"{part}_{field}" in names}
        if f"{part}_features" not in found:
            raise FileFormatError(f"{path} has no set {part!r}{_parts_hint(names)}")
        return found
    if set(names) - set(FIELDS) or "features" not in names:
        shown = ", ".join(names[:6]) or "nothing"
        first, *others = FIELDS
        raise FileFormatError(
            f"{path} is not a FeatureSet: it holds {shown}{', …' if len(names) > 6 else ''}; expected {first} and any of "
            f"{', '.join(others)}{_parts_hint(names)}"
        )
    return {name: name for name in names}


def _parts_hint(names: Sequence[str]) -> str:
    parts = [name.removesuffix("_features") for name in names if name.endswith("_features")]
    return f"; it holds several sets, name one of them: {', '.join(parts)}" if parts else ""


def checked_names(given: Any, rows: int) -> tuple[str, ...] | None:
    """The names of so many rows, or None.

    >>> checked_names(["a.png", "b.png"], 2)
    ('a.png', 'b.png')
    """
    if given is None:
        return None
    found = given.tolist() if isinstance(given, np.ndarray) else given
    names = tuple(found) if isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping) else ()
    wrong = [name for name in names if not isinstance(name, str) or len(name) > LONGEST]
    if not names or wrong:
        shown = wrong[0] if wrong else given
        raise InputError(
            f"names is {shown!r:.100}; it must be a text of at most {LONGEST:,} letters for each row, or None"
        )
    try:
        "".join(names).encode(*CODING)
    except UnicodeEncodeError as error:
        raise InputError(f"names has {error.object[error.start]!r} in it, which is no letter of any text") from error
    if len(names) != rows:
        raise InputError(f"there are {len(names)} names for {rows} rows; each row has one, or none has")
    return names


def packed(names: tuple[str, ...] | None) -> dict[str, Tensor]:
    """The arrays of a file that hold the names; none where there are no names."""
    if names is None:
        return {}
    encoded = [name.encode(*CODING) for name in names]
    content = np.frombuffer(b"".join(encoded), np.uint8).copy()
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    return {BYTES: torch.from_numpy(content), ENDS: torch.from_numpy(ends)}


def unpacked(path: Path, arrays: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The names that :func:`packed` made arrays of; None where there are none."""
    if not any(name in arrays for name in ARRAYS):
        return None
    content, ends = (np.asarray(arrays.get(name, ())) for name in ARRAYS)
    steps = np.diff(ends, prepend=0) if ends.ndim == 1 and ends.dtype.kind in "iu" else np.array([-1])
    if content.dtype != np.uint8 or content.ndim != 1 or not len(ends) or steps.min() < 0 or ends[-1] != len(content):
        raise FileFormatError(f"{path} holds names of rows that cannot be read")
    whole, starts = content.tobytes(), ends - steps
    return tuple(whole[start:end].decode(*CODING) for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
