"""What is in the file of a guard, in words: its header is read and proved, nothing is built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from outfield.backbone.preprocessing import Preprocessing
from outfield.config import from_plain
from outfield.errors import FileFormatError, OutfieldError
from outfield.files import storage
from outfield.files.paths import PathLike
from outfield.guard.saving import checked_header
from outfield.percent import percent

SHOWN = 12
"""Names of classes that are listed."""


def describe(path: PathLike) -> dict[str, str]:
    """What a guard's file holds, by the name of each thing.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it is truncated, changed, no guard, or one of a later version.
    """
    header, arrays = storage.find(path, "guard")
    if header is None:
        raise FileFormatError(
            f"{path} is a safetensors file, but not one that Outfield wrote: it has no Outfield header"
        )
    said = checked_header(path, header.entries)
    sizes = {part: sum(array.size for name, array in arrays.items() if name.startswith(f"{part}.")) for part in PARTS}
    try:
        return {
            "file": f"{path}, {os.path.getsize(path):,} bytes, version {said['guard']}, by Outfield {said.get('outfield')}",
            "network": f"{_network(said['network'])}, {sizes['network']:,} bytes",
            "images": str(Preprocessing.of_json(said["preprocessing"])),
            "classes": _classes(said["network"]),
            "views": _views(said),
            "detector": f"{_detector(said['detector'])}, {sizes['detector']:,} bytes",
            "threshold": _threshold(said["threshold"], arrays["threshold.reference"].shape[0]),
            "built": _built(said["provenance"]),
        }
    except (KeyError, TypeError, IndexError, OutfieldError) as error:
        raise FileFormatError(f"{path} is not a complete guard: {error!r}") from error


PARTS = ("network", "detector", "threshold")


def _network(said: Mapping[str, Any]) -> str:
    origin = said["origin"]
    if origin is None:
        return f"{said['name']}, not in the file: fingerprint {said['fingerprint'][:16]}…"
    settings = origin["settings"]
    return f"{said['name']} ({settings.get('architecture', origin['kind'])}), fingerprint {said['fingerprint'][:16]}…"


def _classes(said: Mapping[str, Any]) -> str:
    names = said["names"]
    listed = ", ".join(names[:SHOWN]) + ", …" * (len(names) > SHOWN)
    return f"{said['classes']}: {listed}" if names else f"{said['classes']}, without names"


def _detector(said: Mapping[str, Any]) -> str:
    members = said["notes"].get("members", [])
    names = [_member(member) for member in members if "detector" in member]
    listed = f" ({', '.join(names)})" if names else ""
    return f"{said['detector']}{f' of {len(members)} members' if members else ''}{listed}"


def _member(said: Mapping[str, Any]) -> str:
    """A member as messages call it: its class, and what it works on."""
    on = said.get("settings", {}).get("on", "features")
    return str(said["detector"]) + ("" if on == "features" else f" on {on}")


def _views(said: Mapping[str, Any]) -> str:
    views, half = from_plain(said["views"]), ", numbers of half as many bits in the file" if said["half"] else ""
    return f"{views}; computed in {said['precision']}{half}"


def _threshold(said: Mapping[str, Any], rows: int) -> str:
    return f"{said['value']:.6g}, keeps {said['keep']:.4g} of ID images, chosen on {rows:,} held-out images"


def _built(said: Mapping[str, Any]) -> str:
    known = {"train": "fitted on {:,} images", "choose": "members chosen on {:,}", "calibrate": "calibrated on {:,}"}
    parts = [text.format(said[name]) for name, text in known.items() if said.get(name)]
    if said.get("accuracy") is not None:
        parts.append(f"accuracy {percent(said['accuracy'], 1)} on held-out images")
    return ", ".join(parts) or "by hand"
