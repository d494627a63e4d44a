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
from outfield.guard.guard import READERS, VERSION_ENTRY, check_version, kind_of_guard
from outfield.guard.readers import ImageReader, Reader
from outfield.partners import LEVELS
from outfield.percent import counted, percent

# What a guard is called that catches at least such shares of near and far stand-ins
QUALITY = (("good", 0.75, 0.9), ("fair", 0.5, 0.75), ("weak", -math.inf, -math.inf))
# The quality of guards for which no stand-ins are made
UNKNOWN = "not estimated for {}; outfield guard evaluate measures it on other ones"
PARTS = ("detector.", "network.")
ONE = {"boxes": "box", "texts": "text"}
SHOWN = 12  # names of classes or columns that are listed


def describe_guard(path: PathLike) -> dict[str, str]:
    """What a guard's file holds, in words, by the name of each thing; no network is built."""
    kind = kind_of_guard(path)
    said, arrays = find_record(path, kind)
    if said is None:
        raise FileFormatError(f"{path} is not a file that Outfield wrote: it has no Outfield header")
    check_version(path, kind, said)
    limit, known, count = said["threshold"], said["provenance"], arrays["threshold.reference"].shape[0]
    unit, of_images, of_rows = READERS[kind].scored, kind == ImageReader.kind, kind == Reader.kind
    chosen = f"{count:,}{' held-out images' * of_images}" if of_images or of_rows else counted(count, ONE[unit])
    model, network = (sum(own.size for name, own in arrays.items() if name.startswith(part)) for part in PARTS)
    decided = {}
    if "decision" in said:
        decision = Decision.from_record(read_record(path, kind).part("decision"), "cpu")
        decided = decision.lines(unit, (said["network"] if of_images else said)["names"])
    good = quality(known) if of_images else UNKNOWN.format(unit)
    built = {"built": _built(known, unit), **_updated(known), **({"quality": good} if good else {})}
    written = "" if of_rows else f", version {said[VERSION_ENTRY[kind]]}, by Outfield {said['outfield']}"
    return {
        "file": f"{path}, {os.path.getsize(path):,} bytes{written}",
        **_about(kind, said, network),
        "detector": _detector(said["detector"]) + (f", {model:,} bytes" if of_images else ""),
        "threshold": f"{limit['value']:.6g}, keeps {limit['keep']:.4g} of ID {unit}, chosen on {chosen}",
        **(built | decided if of_rows else decided | built),
    }


def _about(kind: str, said: Mapping[str, Any], size: int) -> dict[str, str]:
    """What a guard of this kind looks at, through a network of so many bytes."""
    if kind == Reader.kind:
        columns = [f"{one['name']} ({one['kind']})" for one in (said["table"] or {"columns": ()})["columns"]]
        rows = f"a table of {counted(len(columns), 'column')}" if columns else "features"
        return {"rows": rows, **({"columns": _listed(columns)} if columns else {})}
    network, origin = said["network"], said["network"]["origin"]
    names, bytes_ = _listed((said if "names" in said else network)["names"]), f"{size:,} bytes"
    if kind == ImageReader.kind:
        rounded = ", numbers of half as many bits in the file" if said["half"] else ""
        held = f" ({origin['settings'].get('architecture', origin['kind'])})," if origin else ", not in the file:"
        known = f"{held} fingerprint {network['fingerprint'][:16]}…{f', {bytes_}' if size else ''}"
        return {
            "network": f"{network['name']}{known}",
            "images": str(Preprocessing.of_json(said["preprocessing"])),
            "classes": f"{network['classes']}{f': {names}' if names else ', without names'}",
            "views": f"{from_plain(said['views'])}; computed in {said['precision']}{rounded}",
        }
    if kind == Boxes.kind:
        told = {"boxes": f"of a confidence of {said['score']:g} and above, {said['most']:,} of an image at most"}
    else:
        tokens = f"of each {network['limit'] or 'all'} tokens at most"
        told = {"texts": f"column {said['column'] or TEXT!r} of a table; {tokens}"}
    held = bytes_ if origin else "not in the file"
    return {"network": f"{network['name']}, {held}", **told, "classes": names or "without names"}


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


def _detector(said: Mapping[str, Any]) -> str:
    members = said["notes"].get("members", [])
    plain = [(DETECTORS[one["detector"]], one["settings"]) for one in members if "detector" in one]
    made = [construct(kind, {key: from_plain(own[key]) for key in own}) for kind, own in plain]
    return " of ".join([said["detector"], *([" + ".join(names_of(made))] if made else ())])


def _built(said: Mapping[str, Any], unit: str) -> str:
    known = {"train": f"fitted on {{:,}} {unit}", "choose": "members chosen on {:,}", "calibrate": "calibrated on {:,}"}
    parts = [text.format(said[name]) for name, text in known.items() if said.get(name)]
    if said.get("accuracy") is not None:
        parts.append(f"accuracy {percent(said['accuracy'], 1)} on held-out {unit}")
    return ", ".join(parts) or "by hand"
