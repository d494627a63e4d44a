"""The file of a guard: what its reader needs, detector and threshold, as tensors and one JSON header; the same in words."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from outfield.backbone import Preprocessing
from outfield.config import from_plain
from outfield.detectors import Detector
from outfield.errors import FileFormatError, OutfieldError
from outfield.files import PathLike, Record, find_record, kind_of, read_record, write_record
from outfield.guard.readers import READERS, ImageReader, Reader
from outfield.modes import resolve_device
from outfield.percent import counted, percent
from outfield.scores import Threshold
from outfield.stand_in import LEVELS
from outfield.version import __version__

GUARD_ENDINGS = (".guard", ".safetensors")
VERSION = 1
"""Of what the header says; a file of a later one is refused."""
VERSION_ENTRY = {ImageReader.kind: "guard", Reader.kind: "version"}
"""Under which the header of each kind says its version."""
ENTRIES: dict[str, dict[str, type]] = {
    ImageReader.kind: {"network": dict, "preprocessing": dict, "views": dict, "precision": str, "half": bool},
    Reader.kind: {"names": list},
}
"""What the header of each kind holds beside the version, the detector, the threshold and the provenance."""
COUNTS = ("train", "choose", "calibrate")
"""Of the provenance: how many samples were for what."""
QUALITY = (("good", 0.75, 0.9), ("fair", 0.5, 0.75), ("weak", -math.inf, -math.inf))
"""What a guard is called that catches at least such shares of near and far stand-ins."""
SHOWN = 12
"""Names of classes or columns that are listed."""


def save(
    path: PathLike, reader: Reader, detector: Detector, threshold: Threshold, provenance: Mapping[str, Any]
) -> None:
    """Write a guard; see :meth:`outfield.Guard.save`."""
    parts = {
        "detector": detector.record(),
        "threshold": Record(
            {"value": threshold.value, "keep": threshold.keep, "source": threshold.source},
            {"reference": threshold.reference},
        ),
    }
    own = reader.record()
    if reader.float16:
        own, parts["detector"] = own.narrowed(), parts["detector"].narrowed()
    version = {VERSION_ENTRY[reader.kind]: VERSION, "outfield": __version__, "provenance": dict(provenance)}
    whole = Record.of({**version, **own.header}, **parts)
    write_record(path, reader.kind, Record(whole.header, whole.tensors | own.tensors), endings=GUARD_ENDINGS, once=True)


def load(
    path: PathLike, device: str | torch.device, network: nn.Module | None = None
) -> tuple[Reader, Detector, Threshold, Mapping[str, Any]]:
    """What :func:`save` wrote; see :meth:`outfield.Guard.load`."""
    target = resolve_device(device)
    kind = kind_of(path)
    known = kind if kind in READERS else ImageReader.kind  # of any other kind this says so
    record = read_record(path, known, ranks={"threshold.reference": 1})
    _check_header(path, known, record.header)
    reader = READERS[known].from_record(path, record, target, network)
    try:
        said, chosen = record.part("threshold")
        detector = Detector.from_record(record.part("detector")).to(str(target))
        threshold = Threshold(said["value"], said["keep"], chosen["reference"], said["source"])
        if threshold.source != detector.fingerprint():
            raise FileFormatError("its threshold was chosen for another detector")
        if threshold.value != Threshold.fit(threshold.reference, threshold.keep).value:
            raise FileFormatError("its threshold does not follow from its scores")
    except Exception as error:  # detectors may be anybody's, and raise anything of a file that is wrong
        raise FileFormatError(f"{path} holds a guard that this version of Outfield cannot build: {error}") from error
    return reader, detector, threshold, record.header["provenance"]


def _check_header(path: PathLike, kind: str, header: Mapping[str, Any]) -> None:
    version = header.get(VERSION_ENTRY[kind])
    if isinstance(version, int) and version > VERSION:
        raise FileFormatError(
            f"{path} is a guard of version {version}, written by Outfield {header.get('outfield')}; this is Outfield "
            f"{__version__}, which reads versions up to {VERSION}: install a newer one"
        )
    expected = {VERSION_ENTRY[kind]: int, "detector": dict, "threshold": dict, "provenance": dict, **ENTRIES[kind]}
    for name, type_ in expected.items():
        if not isinstance(header.get(name), type_):
            raise FileFormatError(f"{path} is not a complete guard: {name} is {header.get(name)!r:.100}")
    known = header["provenance"]
    widths = known.get("widths", {})
    counts = [*(widths.values() if isinstance(widths, dict) else [None]), *(known.get(name, 0) for name in COUNTS)]
    if not all(type(one) is int and 0 <= one < 2**31 for one in counts):
        raise FileFormatError(f"{path} is not a complete guard: provenance is {known!r:.200}")


def describe_guard(path: PathLike) -> dict[str, str]:
    """What a guard's file holds, in words, by the name of each thing; no network is built."""
    if kind_of(path) == Reader.kind:
        return _described_rows(path)
    said, arrays = find_record(path, ImageReader.kind)
    if said is None:
        raise FileFormatError(f"{path} is not a file that Outfield wrote: it has no Outfield header")
    _check_header(path, ImageReader.kind, said)
    sizes = {
        part: sum(array.size for name, array in arrays.items() if name.startswith(f"{part}."))
        for part in ("network", "detector")
    }
    rounded = ", numbers of half as many bits in the file" if said["half"] else ""
    try:
        chosen, limit = arrays["threshold.reference"].shape[0], said["threshold"]
        return {
            "file": f"{path}, {os.path.getsize(path):,} bytes, version {said['guard']}, by Outfield {said.get('outfield')}",
            "network": f"{_network(said['network'])}, {sizes['network']:,} bytes",
            "images": str(Preprocessing.of_json(said["preprocessing"])),
            "classes": _classes(said["network"]),
            "views": f"{from_plain(said['views'])}; computed in {said['precision']}{rounded}",
            "detector": f"{_detector(said['detector'])}, {sizes['detector']:,} bytes",
            "threshold": f"{limit['value']:.6g}, keeps {limit['keep']:.4g} of ID images, chosen on {chosen:,} held-out images",
            "built": _built(said["provenance"]),
            **_quality(said["provenance"]),
        }
    except (KeyError, TypeError, ValueError, IndexError, OutfieldError) as error:
        raise FileFormatError(f"{path} is not a complete guard: {error!r}") from error


def _described_rows(path: PathLike) -> dict[str, str]:
    reader, detector, threshold, known = load(path, "cpu")
    table = getattr(reader, "table", None)
    columns = [] if table is None else [f"{column.name} ({column.kind})" for column in table.columns]
    members = " + ".join(getattr(detector, "names", ()))
    return {
        "file": f"{path}, {os.path.getsize(path):,} bytes",
        "rows": str(reader),
        **({"columns": ", ".join(columns[:SHOWN]) + ", …" * (len(columns) > SHOWN)} if columns else {}),
        "detector": f"{type(detector).__name__}{f' of {members}' if members else ''}",
        "threshold": f"{threshold.value:.6g}, keeps {threshold.keep:.4g} of ID rows, chosen on {len(threshold.reference):,}",
        "built": f"fitted on {counted(known.get('train', 0), 'row')}, members calibrated on {known.get('choose', 0):,}",
    }


def _quality(said: Mapping[str, Any]) -> dict[str, str]:
    """How many stand-ins the guard catches, with a word for it; nothing for guards that do not say."""
    if "caught" not in said:
        return {}
    near, far = (float(said["caught"][level]) for level in LEVELS)
    word = next(word for word, *least in QUALITY if near >= least[0] and far >= least[1])
    made = "made up from images that only set the threshold"
    return {"quality": f"{word}: it catches {percent(near, 0)} of near and {percent(far, 0)} of far OOD images {made}"}


def _network(said: Mapping[str, Any]) -> str:
    origin, known = said["origin"], f"fingerprint {said['fingerprint'][:16]}…"
    if origin is None:
        return f"{said['name']}, not in the file: {known}"
    return f"{said['name']} ({origin['settings'].get('architecture', origin['kind'])}), {known}"


def _classes(said: Mapping[str, Any]) -> str:
    names = said["names"]
    listed = ", ".join(names[:SHOWN]) + ", …" * (len(names) > SHOWN)
    return f"{said['classes']}: {listed}" if names else f"{said['classes']}, without names"


def _detector(said: Mapping[str, Any]) -> str:
    members = said["notes"].get("members", [])
    known = [(one["detector"], one.get("settings", {}).get("on", "features")) for one in members if "detector" in one]
    names = [name if on == "features" else f"{name} on {on}" for name, on in known]
    listed = f" ({', '.join(names)})" if names else ""
    count = f" of {counted(len(members), 'member')}" if members else ""
    return f"{said['detector']}{count}{listed}"


def _built(said: Mapping[str, Any]) -> str:
    known = {"train": "fitted on {:,} images", "choose": "members chosen on {:,}", "calibrate": "calibrated on {:,}"}
    parts = [text.format(said[name]) for name, text in known.items() if said.get(name)]
    if said.get("accuracy") is not None:
        parts.append(f"accuracy {percent(said['accuracy'], 1)} on held-out images")
    return ", ".join(parts) or "by hand"
