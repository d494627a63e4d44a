"""What the file of a guard holds, in words."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from outfield.backbone import Preprocessing
from outfield.config import construct, from_plain
from outfield.detectors import DETECTORS, names_of
from outfield.errors import FileFormatError
from outfield.features import TEXT
from outfield.files import PathLike, find_record, kind_of, read_record
from outfield.guard.boxes import Boxes
from outfield.guard.decision import Decision
from outfield.guard.guard import Guard, check_version
from outfield.guard.readers import ImageReader, Reader
from outfield.guard.texts import Texts
from outfield.percent import counted, percent
from outfield.scores import Threshold
from outfield.stand_in import LEVELS

QUALITY = (("good", 0.75, 0.9), ("fair", 0.5, 0.75), ("weak", -math.inf, -math.inf))
"""What a guard is called that catches at least such shares of near and far stand-ins."""
UNKNOWN = "not estimated for {}; outfield guard evaluate measures it on other ones"
"""The quality of guards for which no stand-ins are made."""
SHOWN = 12
"""Names of classes or columns that are listed."""


def describe_guard(path: PathLike) -> dict[str, str]:
    """What a guard's file holds, in words, by the name of each thing; no network is built."""
    if kind_of(path) == Reader.kind:
        return _described_rows(path)
    if kind_of(path) in (Boxes.kind, Texts.kind):
        return _described_without_network(path, str(kind_of(path)))
    said, arrays = find_record(path, ImageReader.kind)
    if said is None:
        raise FileFormatError(f"{path} is not a file that Outfield wrote: it has no Outfield header")
    check_version(path, ImageReader.kind, said)
    sizes = {
        part: sum(array.size for name, array in arrays.items() if name.startswith(f"{part}."))
        for part in ("network", "detector")
    }
    rounded = ", numbers of half as many bits in the file" if said["half"] else ""
    chosen, limit = arrays["threshold.reference"].shape[0], said["threshold"]
    return {
        "file": f"{path}, {os.path.getsize(path):,} bytes, version {said['guard']}, by Outfield {said.get('outfield')}",
        "network": _network(said["network"]) + (f", {sizes['network']:,} bytes" if sizes["network"] else ""),
        "images": str(Preprocessing.of_json(said["preprocessing"])), "classes": _classes(said["network"]),
        "views": f"{from_plain(said['views'])}; computed in {said['precision']}{rounded}",
        "detector": f"{_detector(said['detector'])}, {sizes['detector']:,} bytes",
        "threshold": f"{limit['value']:.6g}, keeps {limit['keep']:.4g} of ID images, chosen on {chosen:,} held-out images",
        **_decision(path, said), "built": _built(said["provenance"], "images"), **_updated(said["provenance"]),
        **({"quality": known} if (known := quality(said["provenance"])) else {}),
    }  # fmt: skip


def _described_rows(path: PathLike) -> dict[str, str]:
    guard = Guard.load(path, "cpu")
    columns = [] if guard.table is None else [f"{column.name} ({column.kind})" for column in guard.table.columns]
    limit, known = guard.threshold, guard.provenance
    return {
        "file": f"{path}, {os.path.getsize(path):,} bytes", "rows": str(guard.reader),
        **({"columns": ", ".join(columns[:SHOWN]) + ", …" * (len(columns) > SHOWN)} if columns else {}),
        "detector": _detector(guard.detector.record().header),
        "threshold": f"{limit.value:.6g}, keeps {limit.keep:.4g} of ID rows, chosen on {len(limit.reference):,}",
        "built": _built(known, "rows"),
        **_updated(known), "quality": UNKNOWN.format("rows"),
        **({} if guard.decision is None else guard.decision.lines("rows", guard.names)),
    }  # fmt: skip


def _described_without_network(path: PathLike, kind: str) -> dict[str, str]:
    """A guard of boxes or of texts."""
    record = read_record(path, kind)
    check_version(path, kind, record.header)
    header, known = record.header, record.header["provenance"]
    (said, state), limit = record.part("network"), Threshold.from_record(record.part("threshold"))
    held = f"{sum(one.nbytes for one in state.values()):,} bytes" if said["origin"] else "not in the file"
    names = ", ".join(header["names"][:SHOWN]) + ", …" * (len(header["names"]) > SHOWN)
    unit, one = ("boxes", "box") if kind == Boxes.kind else ("texts", "text")
    if kind == Boxes.kind:
        told = f"of a confidence of {header['score']:g} and above, {header['most']:,} of an image at most"
    else:
        told = f"column {header['column'] or TEXT!r} of a table; of each {said['limit'] or 'all'} tokens at most"
    decided = Decision.from_record(record.part("decision"), "cpu") if "decision" in header else None
    return {
        "file": f"{path}, {os.path.getsize(path):,} bytes, version {header['version']}, by Outfield {header['outfield']}",
        "network": f"{said['name']}, {held}",
        unit: told,
        "classes": names or "without names",
        "detector": _detector(header["detector"]),
        "threshold": f"{limit.value:.6g}, keeps {limit.keep:.4g} of ID {unit}, chosen on {counted(len(limit.reference), one)}",
        **({} if decided is None else decided.lines(unit, header["names"])),
        "built": _built(known, unit),
        **_updated(known),
        "quality": UNKNOWN.format(unit),
    }


def _decision(path: PathLike, said: Mapping[str, Any]) -> dict[str, str]:
    """What a guard of images decides beside the threshold."""
    if "decision" not in said:
        return {}
    decision = Decision.from_record(read_record(path, ImageReader.kind).part("decision"), "cpu")
    return decision.lines("images", said["network"]["names"])


def _updated(said: Mapping[str, Any]) -> dict[str, str]:
    """How it was made of another guard, if it was."""
    told = []
    for one in said.get("updated", []):
        when = f" of {one['window'][0]} to {one['window'][1]}" if one["window"] else ""
        of = f"a random sample{when}" if one["random"] else "a sample that somebody named"
        told.append(f"{'fitted again and ' * one['refitted']}calibrated on {one['calibrate']:,} of {of}")
    return {"updated": "; then ".join(told)} if told else {}


def quality(said: Mapping[str, Any]) -> str:
    """How many stand-ins the guard catches, with a word for it; nothing for guards that do not say."""
    if "caught" not in said:
        return ""
    near, far = (float(said["caught"][level]) for level in LEVELS)
    word = next(word for word, *least in QUALITY if near >= least[0] and far >= least[1])
    caught = f"{percent(near, 0)} of near and {percent(far, 0)} of far stand-ins for OOD images"
    return f"{word}. It catches {caught}"


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
    plain = [(one["detector"], one["settings"]) for one in members if "detector" in one]
    made = [construct(DETECTORS[name], {key: from_plain(own[key]) for key in own}) for name, own in plain]
    return " of ".join([said["detector"], *([" + ".join(names_of(made))] if made else ())])


def _built(said: Mapping[str, Any], unit: str) -> str:
    known = {"train": f"fitted on {{:,}} {unit}", "choose": "members chosen on {:,}", "calibrate": "calibrated on {:,}"}
    parts = [text.format(said[name]) for name, text in known.items() if said.get(name)]
    if said.get("accuracy") is not None:
        parts.append(f"accuracy {percent(said['accuracy'], 1)} on held-out {unit}")
    return ", ".join(parts) or "by hand"
