"""What a file of ``torch.export`` holds, read without PyTorch's own reader: nothing is unpickled, nothing of it is evaluated.

Such a file is a zip. Since PyTorch writes weights as bytes with a JSON file beside them, only its example inputs are pickles, and
they are not needed. PyTorch's reader would unpickle them, would evaluate the texts of sizes (``sympy.sympify``), and would call
whatever function of torch's modules a step names.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outfield.errors import FileFormatError, InputError, OutfieldError, StorageError
from outfield.files.opened import open_to_read

LARGEST = 2**34
"""Bytes of a file with all that is in it."""
LARGEST_TEXT = 2**25
"""Bytes of one JSON file in it."""
FORMAT = "archive_format"
WEIGHTS, CONSTANTS = "weights", "constants"
OLD = ("serialized_exported_program.json", "serialized_state_dict.pt", "serialized_state_dict.json")
"""What lies in files of PyTorch up to 2.7, whose weights are a pickle."""
TYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
"""Numbers of types in such files."""
DIMENSIONS = 64
"""Of a tensor of PyTorch, at most."""
ADVICE = (
    "write it anew with torch.export.save of a newer PyTorch, or export it to ONNX (torch.onnx.export) and open that"
)


class Archive(NamedTuple):
    """What was read.

    Attributes:
        program: the JSON of the program.
        tensors: weights, buffers and constants by the names that the program calls them.
        pickled: names of those that are pickles, and are not read.
    """

    program: dict[str, Any]
    tensors: dict[str, Tensor]
    pickled: frozenset[str]


def read_archive(path: Path) -> Archive:
    """Read a file that ``torch.export.save`` wrote.

    Raises:
        StorageError: It cannot be read.
        FileFormatError: It is no such file, is broken, or its weights are pickles.
        InputError: It is too large, or holds several programs.
    """
    with open_to_read(path) as file:
        try:
            with zipfile.ZipFile(file) as members:
                return _read(members, path)
        except OutfieldError:
            raise
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}") from error
        except Exception as error:  # of zipfile, json and PyTorch, by a file that is anybody's
            raise FileFormatError(f"{path} is no whole file of torch.export: {str(error)[:200]}") from error


def _read(members: zipfile.ZipFile, path: Path) -> Archive:
    infos = members.infolist()
    if sum(info.file_size for info in infos) > LARGEST:
        raise InputError(f"{path} is too large: such a file may hold {LARGEST:,} bytes")
    if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
        raise FileFormatError(f"{path} is compressed, as torch.export.save does not write files")
    names = {info.filename for info in infos}
    if len(names) < len(infos):
        raise FileFormatError(f"{path} holds two files of the same name")
    root = next((name.removesuffix(FORMAT) for name in sorted(names) if name.split("/")[1:] == [FORMAT]), None)
    if root is None:
        if any(name.rpartition("/")[2] in OLD for name in names):
            raise FileFormatError(f"the weights in {path} are a pickle, as PyTorch wrote them up to 2.7; {ADVICE}")
        raise FileFormatError(f"{path} is no file of torch.export.save: it has no {FORMAT}")
    models = [name for name in sorted(names) if name.startswith(f"{root}models/") and name.endswith(".json")]
    if len(models) != 1:
        raise InputError(f"{path} holds {len(models)} programs; a network is one")
    name = models[0].removeprefix(f"{root}models/").removesuffix(".json")
    tensors: dict[str, Tensor] = {}
    pickled: set[str] = set()
    reader = Reader(members, path)
    for kind in (WEIGHTS, CONSTANTS):
        folder = f"{root}data/{kind}/"
        listed = f"{folder}{name}_{kind}_config.json"
        if listed not in names:
            raise FileFormatError(
                f"the {kind} in {path} are a pickle, as older versions of PyTorch wrote them; {ADVICE}"
            )
        for key, about in _mapping(_json(members, listed), "config").items():
            if about.get("use_pickle") or about.get("tensor_meta") is None:
                pickled.add(key)
            else:
                tensors[key] = reader.tensor(folder, about, f"{key} of {path}")
    return Archive(_json(members, models[0]), tensors, frozenset(pickled))


def _json(members: zipfile.ZipFile, name: str) -> dict[str, Any]:
    if members.getinfo(name).file_size > LARGEST_TEXT:
        raise ValueError(f"{name} is too large")
    found = json.loads(members.read(name))
    if not isinstance(found, dict):
        raise ValueError(f"{name} is no JSON object")
    return found


def _mapping(found: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    inner = found.get(name)
    if not isinstance(inner, dict) or not all(isinstance(one, dict) for one in inner.values()):
        raise ValueError(f"{name} is missing")
    return inner


class Reader:
    """The tensors of one archive: what several names share is read once, and all together are not larger than the file.

    Args:
        members: The archive.
        path: What it is called.
    """

    def __init__(self, members: zipfile.ZipFile, path: Path) -> None:
        self.members, self.path = members, path
        self._read: dict[str, Tensor] = {}
        self._left = sum(info.file_size for info in members.infolist())

    def tensor(self, folder: str, about: Mapping[str, Any], what: str) -> Tensor:
        """The numbers of one tensor, as its sizes and strides say.

        Raises:
            FileFormatError: They do not agree with its bytes, or some of them are not numbers.
        """
        meta, name = about["tensor_meta"], f"{folder}{about['path_name']}"
        kind = TYPES.get(meta["dtype"])
        sizes, strides = ([_whole(one) for one in meta[key]] for key in ("sizes", "strides"))
        start = _whole(meta["storage_offset"])
        if kind is None or len(sizes) != len(strides) or len(sizes) > DIMENSIONS or meta.get("layout") != 7:
            raise FileFormatError(f"{what} is no dense tensor of a type that is known")
        shared = json.dumps([name, str(kind), sizes, strides, start])
        if shared not in self._read:
            self._read[shared] = self._new(name, kind, sizes, strides, start, what)
        return self._read[shared]

    def _new(self, name: str, kind: torch.dtype, sizes: list[int], strides: list[int], start: int, what: str) -> Tensor:
        if 0 in sizes:
            return torch.empty(sizes, dtype=kind)
        length = self.members.getinfo(name).file_size
        last = start + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if length % kind.itemsize or last >= length // kind.itemsize or math.prod(sizes) > length // kind.itemsize:
            raise FileFormatError(f"{what} has {length} bytes, too few for its sizes {sizes}")
        self._left -= length
        if self._left < 0:
            raise FileFormatError(f"the tensors of {self.path} lie over each other")
        content = bytearray(self.members.read(name))
        found = (
            torch.frombuffer(content, dtype=kind)
            .as_strided(sizes, strides, start)
            .clone(memory_format=torch.contiguous_format)
        )
        if found.is_floating_point() and bool(found.isnan().any()):
            raise FileFormatError(f"{what} holds numbers that are not finite")
        return found


def _whole(one: Any) -> int:
    """A size that is known: ``{"as_int": n}``."""
    found = one.get("as_int") if isinstance(one, dict) else None
    if type(found) is not int or not 0 <= found < 2**40:
        raise ValueError(f"a tensor's size is {str(one)[:80]}")
    return found
