"""Which files hold features: every ending, and how the arrays in each are named, read and written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outfield.errors import FileFormatError, InputError
from outfield.features.about import checked_about
from outfield.features.fields import FIELDS, agreed_sizes
from outfield.features.names import ARRAYS, packed, unpacked
from outfield.files import npz, storage
from outfield.files.headers import Header
from outfield.files.npy import find_npy
from outfield.files.paths import PathLike, as_path
from outfield.files.stored import StoredArray

SAVED = (".safetensors", ".npz")
LOADED = (".safetensors", ".npz", ".npy", ".csv", ".parquet")
STREAMED = (".safetensors", ".npz", ".npy", ".parquet")


def split_source(source: PathLike) -> tuple[Path, str | None]:
    """``FILE`` or ``FILE#SET`` as path and set; a file whose own name has a # in it is found first.

    Raises:
        InputError: It is no path.
    """
    whole = as_path(source)
    name, hash_sign, part = str(whole).rpartition("#")
    if not hash_sign or not name or os.path.isfile(whole):
        return whole, None
    return Path(name), part or None


def check_ending(path: Path, part: str | None, known: Sequence[str], done: str) -> None:
    """Refuse a file that cannot hold what is asked for, by its name alone.

    Args:
        path: The file.
        part: One set of several in it, or None.
        known: The endings that will do.
        done: What is done with it, such as "read from".

    Raises:
        InputError: It has another ending, or its kind of file holds one set only.
    """
    if path.suffix not in known:
        *most, last = known
        had = repr(path.suffix) if path.suffix else "without an ending"
        raise InputError(f"{path}: features are {done} {', '.join(most)} or {last}, not {had}")
    if part is not None and path.suffix != ".npz":
        raise InputError(f"{path}: only an .npz can hold several sets; {part!r} has no meaning here")


Content = tuple[dict[str, Any], dict[str, str], tuple[str, ...] | None]
"""Arrays by field, what is said of where they come from, and the names of the rows."""


def read(path: Path, part: str | None) -> Content:
    """The arrays of a set, by field, as they are in the file, what it says of where they come from, and names of rows.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It is truncated, changed, or does not hold a set.
        InputError: Its ending is unknown, or a table holds something else than numbers.
    """
    check_ending(path, part, LOADED, "read from")
    if path.suffix == ".npz":
        return _read_npz(path, part)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return {".csv": _read_csv, ".parquet": _read_parquet, ".npy": _read_npy}[path.suffix](path), {}, None


def _read_csv(path: Path) -> dict[str, Any]:
    from outfield.features.csv_files import read_csv

    return dict(read_csv(path))


def _read_parquet(path: Path) -> dict[str, Any]:
    from outfield.features.columns import ParquetColumns

    columns = ParquetColumns(path)
    (whole,) = columns.pieces(columns.rows, tuple(columns.columns))
    columns.stamp.check()
    return dict(whole)


def _read_npy(path: Path) -> dict[str, Any]:
    return {"features": find_npy(path).read()}


def _read_npz(path: Path, part: str | None) -> Content:
    with npz.open_archive(path, "FeatureSet") as archive:
        fields = _fields_in(path, part, archive.names)
        found = archive.find(fields)
        shapes = {fields[name]: array.shape for name, array in found.items()}
        for name, shape in shapes.items():  # before anything is unpacked
            FIELDS[name].check_shape(shape)
        agreed_sizes(shapes)
        named = [name for name in ARRAYS if name in archive.names and part is None]
        read = archive.read({**found, **archive.find(named)})
        names = unpacked(path, {name: read.pop(name) for name in named})
        return {fields[name]: array for name, array in read.items()}, about_in(path, archive.header), names


def _read_safetensors(path: Path) -> Content:
    header, tensors = storage.read_any(path, "FeatureSet")
    named = {name: tensors.pop(name) for name in ARRAYS if name in tensors}
    _fields_in(path, None, list(tensors))
    return dict(tensors), about_in(path, header), unpacked(path, named)


def about_in(path: Path, header: Header | None) -> dict[str, str]:
    """What a file's header says of where its rows come from.

    Raises:
        FileFormatError: It is something else than texts by name.
    """
    try:
        return checked_about(None if header is None else header.entries.get("about"))
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from error


def write(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str], names: tuple[str, ...] | None = None
) -> None:
    """Write the fields of a set and the names of its rows, atomically.

    Raises:
        InputError: Another ending, or a type that ``.npz`` cannot hold.
        StorageError: The file could not be written; what was there stays.
    """
    check_ending(path, None, SAVED, "saved as")
    header = {"about": dict(about)} if about else {}
    tensors = {**tensors, **packed(names)}
    if path.suffix == ".safetensors":
        storage.write(path, "FeatureSet", header, tensors)
        return
    if any(value.dtype == torch.bfloat16 for value in tensors.values()):
        raise InputError(f"{path}: .npz cannot hold bfloat16; save as .safetensors")
    npz.write_archive(path, "FeatureSet", header, tensors)


Places = Mapping[str, StoredArray]


def find(path: Path, part: str | None) -> tuple[Places, dict[str, str], Places]:
    """Where the arrays of a set lie in a ``.safetensors`` or ``.npz`` file, what it says of them, and where names of rows lie.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It is truncated, changed, or does not hold a set.
    """
    if path.suffix == ".npz":
        with npz.open_archive(path, "FeatureSet") as archive:
            fields = _fields_in(path, part, archive.names)
            found = {fields[name]: array for name, array in archive.find(fields).items()}
            named = archive.find([name for name in ARRAYS if name in archive.names and part is None])
            return found, about_in(path, archive.header), named
    header, arrays = storage.find(path, "FeatureSet")
    names = {name: arrays[name] for name in ARRAYS if name in arrays}
    others = {name: array for name, array in arrays.items() if name not in names}
    _fields_in(path, None, list(others))
    return others, about_in(path, header), names


def _fields_in(path: Path, part: str | None, names: Sequence[str]) -> dict[str, str]:
    """Which arrays of a file are the fields of a set: name in the file → field.

    Raises:
        FileFormatError: There is no such set in it, or arrays that are no fields.
    """
    if part is not None:
        found = {f"{part}_{field}": field for field in FIELDS if f"{part}_{field}" in names}
        if f"{part}_features" not in found:
            raise FileFormatError(f"{path} has no set {part!r}{_parts_hint(names)}")
        return found
    names = [name for name in names if name not in ARRAYS]
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
