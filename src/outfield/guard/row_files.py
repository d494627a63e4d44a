"""The file of a guard of rows: what was learned of the columns, detector, threshold and class names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from outfield.detectors.base import Detector
from outfield.detectors.registry import DETECTORS
from outfield.devices import resolve_device
from outfield.errors import FileFormatError
from outfield.features.table import TablePreprocessing
from outfield.files import storage
from outfield.files.paths import PathLike
from outfield.scores.threshold import Threshold
from outfield.version import __version__

KIND = "guard of rows"
ENDINGS = (".guard", ".safetensors")
VERSION = 1
"""Of what the header says; a file of a later one is refused."""
ENTRIES: dict[str, type | tuple[type, ...]] = {
    "version": int,
    "detector": dict,
    "threshold": dict,
    "names": list,
    "provenance": dict,
}
"""What the header holds, beside ``table``, which is None where the rows are features."""

COUNTS = ("train", "choose", "calibrate")
"""Of the provenance: how many rows were for what."""


class Content(NamedTuple):
    """What a guard of rows is made of, and its file holds."""

    detector: Detector
    threshold: Threshold
    table: TablePreprocessing | None
    names: tuple[str, ...]
    provenance: Mapping[str, Any]


def save(path: PathLike, content: Content) -> None:
    """Write a guard to one file, atomically.

    Raises:
        InputError: Its name has another ending.
        StorageError: The file could not be written; what was there stays.
    """
    detector, threshold, table = content.detector, content.threshold, content.table
    header = {
        "version": VERSION,
        "outfield": __version__,
        "table": None if table is None else table.to_json(),
        "detector": {"detector": type(detector).__name__, **detector._header()},
        "threshold": {"value": threshold.value, "keep": threshold.keep, "source": threshold.source},
        "names": list(content.names),
        "provenance": dict(content.provenance),
    }
    tensors = {f"detector.{name}": value for name, value in detector._state().items()}
    storage.write(path, KIND, header, {**tensors, "threshold.reference": threshold.reference}, ENDINGS, once=True)


def load(path: PathLike, device: str | torch.device) -> Content:
    """Read what :func:`save` wrote.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It is truncated, changed, no guard of rows, or one of a later version.
    """
    target = resolve_device(device)
    header, tensors = storage.read(path, KIND, {"version": int}, {"threshold.reference": 1})
    _check_version(path, header)
    state = {name.removeprefix("detector."): value for name, value in tensors.items() if name.startswith("detector.")}
    try:
        table = None if header["table"] is None else TablePreprocessing.of_json(header["table"])
        detector = DETECTORS[header["detector"]["detector"]]._rebuilt(header["detector"], state).to(str(target))
        said = header["threshold"]
        threshold = Threshold(said["value"], said["keep"], tensors["threshold.reference"], said["source"])
        if threshold.source != detector.fingerprint():
            raise FileFormatError("its threshold was chosen for another detector")
    except (
        Exception
    ) as error:  # classes may be anybody's: whatever they make of such a file, it is the file that is wrong
        raise FileFormatError(f"{path} holds a guard that this version of Outfield cannot build: {error}") from error
    return Content(detector, threshold, table, tuple(header["names"]), header["provenance"])


def _check_version(path: PathLike, header: Mapping[str, Any]) -> None:
    if header["version"] > VERSION:
        raise FileFormatError(
            f"{path} is a guard of version {header['version']}, written by Outfield {header.get('outfield')}; this is Outfield "
            f"{__version__}, which reads versions up to {VERSION}: install a newer one"
        )
    for name, kind in ENTRIES.items():
        if not isinstance(header.get(name), kind):
            raise FileFormatError(f"{path} is not a complete guard: {name} is {header.get(name)!r:.100}")
    known = header["provenance"]
    widths = known.get("widths", {})
    counts = [*(widths.values() if isinstance(widths, dict) else [None]), *(known.get(name, 0) for name in COUNTS)]
    if not all(type(one) is int and 0 <= one < 2**31 for one in counts):
        raise FileFormatError(f"{path} is not a complete guard: provenance is {known!r:.200}")
    if not all(isinstance(name, str) for name in header["names"]):
        raise FileFormatError(f"{path} is not a complete guard: names is {header['names']!r:.100}")


def describe(path: PathLike) -> dict[str, str]:
    """What is in the file, in words, by the name of each thing.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It is truncated, changed, no guard of rows, or one of a later version.
    """
    content = load(path, "cpu")
    known, table, threshold = content.provenance, content.table, content.threshold
    columns = () if table is None else [f"{column.name} ({column.kind})" for column in table.columns]
    members = " + ".join(getattr(content.detector, "names", ()))
    return {
        "file": f"{path}, {os.path.getsize(path):,} bytes",
        "rows": "features" if table is None else f"a table of {len(table.columns)} columns",
        **({} if table is None else {"columns": ", ".join(columns[:SHOWN]) + ", …" * (len(columns) > SHOWN)}),
        "detector": f"{type(content.detector).__name__}{f' of {members}' if members else ''}",
        "threshold": f"{threshold.value:.6g}, keeps {threshold.keep:.4g} of ID rows, chosen on {len(threshold.reference):,}",
        "built": f"fitted on {known.get('train', 0):,} rows, members calibrated on {known.get('choose', 0):,}",
    }


SHOWN = 12
"""Columns that are listed."""
