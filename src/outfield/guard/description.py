"""What the file of a guard holds, in words."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from outfield.backbone import Preprocessing
from outfield.config import construct, from_plain
from outfield.detectors import DETECTORS, names_of
from outfield.errors import FileFormatError
from outfield.features import TEXT
from outfield.files import PathLike, find_record, read_record
from outfield.guard.boxes import Boxes
from outfield.guard.decision import Decision
from outfield.guard.guard import VERSION_ENTRY, check_version, kind_of_guard
from outfield.guard.readers import ImageReader, Reader
from outfield.percent import counted, percent
from outfield.stand_in import LEVELS

# What a guard is called that catches at least such shares of near and far stand-ins
QUALITY = (("good", 0.75, 0.9), ("fair", 0.5, 0.75), ("weak", -math.inf, -math.inf))
# The quality of guards for which no stand-ins are made
UNKNOWN = "not estimated for {}; outfield guard evaluate measures it on other ones"
SHOWN = 12  # names of classes or columns that are listed


def describe_guard(path: PathLike) -> dict[str, str]:
    """What a guard's file holds, in words, by the name of each thing; no network is built."""
    kind = kind_of_guard(path)
    said, arrays = find_record(path, kind)
    if said is None:
        raise FileFormatError(f"{path} is not a file that Outfield wrote: it has no Outfield header")
    check_version(path, kind, said)
    limit, known, count = said["threshold"], said["provenance"], arrays["threshold.reference"].shape[0]
    written = "" if kind == Reader.kind else f", version {said[VERSION_ENTRY[kind]]}, by Outfield {said['outfield']}"
    sizes = {
        part: sum(array.size for name, array in arrays.items() if name.startswith(f"{part}."))
        for part in ("network", "detector")
    }
    size = f", {sizes['detector']:,} bytes" if kind == ImageReader.kind else ""
    about, unit, chosen = _about(kind, said, sizes["network"], count)
    decided = {}
    if "decision" in said:
        names = (said["network"] if kind == ImageReader.kind else said)["names"]
        decided = Decision.from_record(read_record(path, kind).part("decision"), "cpu").lines(unit, names)
    built = {"built": _built(known, unit), **_updated(known)}
    good = quality(known) if kind == ImageReader.kind else UNKNOWN.format(unit)
    return {
        "file": f"{path}, {os.path.getsize(path):,} bytes{written}", **about, "detector": _detector(said["detector"]) + size,
        "threshold": f"{limit['value']:.6g}, keeps {limit['keep']:.4g} of ID {unit}, chosen on {chosen}",
        **({} if kind == Reader.kind else decided), **built, **({"quality": good} if good else {}),
        **(decided if kind == Reader.kind else {}),
    }  # fmt: skip


def _about(kind: str, said: Mapping[str, Any], size: int, count: int) -> tuple[dict[str, str], str, str]:
    """What a file of this kind says of its inputs, what these are, and what ``count`` of them set the threshold."""
    if kind == Reader.kind:
        columns = [f"{one['name']} ({one['kind']})" for one in (said["table"] or {"columns": ()})["columns"]]
        about = {"rows": f"a table of {counted(len(columns), 'column')}" if columns else "features"}
        return about | ({"columns": _listed(columns)} if columns else {}), "rows", f"{count:,}"
    network = said["network"]
    names = _listed(network.get("names", said.get("names", ())))
    if kind == ImageReader.kind:
        rounded = ", numbers of half as many bits in the file" if said["half"] else ""
        return (
            {
                "network": _network(network) + (f", {size:,} bytes" if size else ""),
                "images": str(Preprocessing.of_json(said["preprocessing"])),
                "classes": f"{network['classes']}{f': {names}' if names else ', without names'}",
                "views": f"{from_plain(said['views'])}; computed in {said['precision']}{rounded}",
            },
            "images",
            f"{count:,} held-out images",
        )
    unit, one = ("boxes", "box") if kind == Boxes.kind else ("texts", "text")
    if kind == Boxes.kind:
        told = f"of a confidence of {said['score']:g} and above, {said['most']:,} of an image at most"
    else:
        told = f"column {said['column'] or TEXT!r} of a table; of each {network['limit'] or 'all'} tokens at most"
    held = f"{size:,} bytes" if network["origin"] else "not in the file"
    about = {"network": f"{network['name']}, {held}", unit: told, "classes": names or "without names"}
    return about, unit, counted(count, one)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + ", …" * (len(names) > SHOWN)


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
