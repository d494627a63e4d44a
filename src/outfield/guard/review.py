"""Inputs kept for people to look at: a folder of images or rows, each with its verdict and, once somebody looked, what it is.

Files begin with the item's ID: ``ID.json`` tells the verdict, the time and the guard, and holds a row; ``ID.png`` (or another
ending) is an image as it came; ``ID.review.json`` is what a person said. An ID begins with s where the item belongs to a random
sample of all inputs, drawn whatever the verdict, and with r where it was kept because it was refused.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outfield.errors import FileFormatError, InputError, StorageError, as_ours
from outfield.files import PathLike, as_path, make_folder, new_file, open_to_read

if TYPE_CHECKING:
    from outfield.guard.guard import Guard

FILE = re.compile(r"([rs][0-9a-f]{32})\.(json|review\.json|[a-z]{3,5})")
# How images begin, and the endings of their files; others end with "image"
FORMATS = {b"\x89PNG": "png", b"\xff\xd8": "jpg", b"RIFF": "webp", b"GIF8": "gif", b"II*\0": "tif", b"MM\0*": "tif"}
# Folder of files that are being written: the others are many, and this one is looked through for what killed writers left
SCRATCH = ".new"


class ReviewFolder:
    """A folder of kept inputs; several processes may use it at a time."""

    def __init__(self, path: PathLike) -> None:
        self.path = as_path(path)

    def _files(self) -> dict[str, dict[str, os.DirEntry[str]]]:
        """Files of each item by their endings, of the oldest first; links are none."""
        found: dict[str, dict[str, os.DirEntry[str]]] = {}
        with as_ours(f"cannot read {self.path}", StorageError, OSError), os.scandir(self.path) as entries:
            for entry in entries:
                if (name := FILE.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False):
                    found.setdefault(name[1], {})[name[2]] = entry
        return {own: found[own] for own in sorted(found, key=lambda own: own[1:])}

    def ids(self) -> dict[str, bool]:
        """Every item, the oldest first, and whether it was reviewed."""
        return {own: "review.json" in files for own, files in self._files().items() if "json" in files}

    def __contains__(self, own: str) -> bool:
        return FILE.fullmatch(f"{own}.json") is not None and os.path.lexists(self.path / f"{own}.json")

    def add(self, about: Mapping[str, Any], image: bytes | None, sample: bool) -> None:
        """Keep an input."""
        own = f"{'s' if sample else 'r'}{time.time_ns():016x}{secrets.token_hex(8)}"
        told = {"id": own, "time": time_of(own).isoformat(), "sample": sample, **about}
        if image is not None:
            ending = next((end for start, end in FORMATS.items() if image.startswith(start)), "image")
            told["image"] = f"{own}.{ending}"
            self._write(told["image"], image)
        self._write(f"{own}.json", json.dumps(told).encode())  # last: now there is an item

    def item(self, own: str) -> dict[str, Any]:
        """What is known of an item, with the ``review`` or None.

        Raises:
            InputError: there is no such item.
            FileFormatError: its files are damaged.
        """
        if own not in self:
            raise InputError(f"there is no item {own[:100]!r}; it may have been removed to make room")
        found, review = self._json(f"{own}.json"), f"{own}.review.json"
        images = {None, *(f"{own}.{ending}" for ending in (*FORMATS.values(), "image"))}
        if found.get("id") != own or found.get("image") not in images or not isinstance(found.get("verdict"), dict):
            raise FileFormatError(f"{self.path / own}.json is damaged; remove it")
        return {**found, "review": self._json(review) if os.path.lexists(self.path / review) else None}

    def image(self, own: str) -> bytes:
        """The image of an item, as it came."""
        if (name := self.item(own).get("image")) is None:
            raise InputError(f"the item {own} is a row and has no image")
        return self._read(str(name))

    def review(self, own: str, known: bool, name: str | None) -> dict[str, Any]:
        """Keep what a person said of an item: known, of a class where there are classes, or unknown."""
        self.item(own)
        told = {"known": known, "class": name, "time": datetime.datetime.now(datetime.UTC).isoformat()}
        self._write(f"{own}.review.json", json.dumps(told).encode())
        return told

    def make_room(self, limit: int) -> int:
        """Remove the oldest items until all files together have no more bytes; how many were removed."""
        files, removed = self._files(), 0
        sizes = {own: sum(entry.stat().st_size for entry in entries.values()) for own, entries in files.items()}
        total = sum(sizes.values())
        for own, entries in files.items():
            if total <= limit:
                break
            for ending in sorted(entries, key="json".__ne__):  # first that without which there is no item
                (self.path / entries[ending].name).unlink(missing_ok=True)
            total, removed = total - sizes[own], removed + 1
        return removed

    def _write(self, name: str, content: bytes) -> None:
        make_folder(self.path / SCRATCH)
        with new_file(self.path / name, self.path / SCRATCH) as (file, new):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(new, self.path / name)  # in the place of a link, not where it leads

    def _read(self, name: str) -> bytes:
        if (self.path / name).is_symlink():
            raise StorageError(f"{self.path / name} is a link, which Outfield does not put there; remove it")
        with open_to_read(self.path / name) as file:
            return file.read()

    def _json(self, name: str) -> dict[str, Any]:
        with as_ours(
            f"{self.path / name} is damaged", FileFormatError, ValueError, RecursionError, after="; remove it"
        ):
            found = json.loads(self._read(name))
        if not isinstance(found, dict):
            raise FileFormatError(f"{self.path / name} is damaged: it holds no object; remove it")
        return found


def time_of(own: str) -> datetime.datetime:
    """When an item was kept."""
    return datetime.datetime.fromtimestamp(int(own[1:17], 16) / 1e9, datetime.UTC)


def classes_of(guard: Guard) -> tuple[str, ...]:
    """The names of the classes that an input may have, numbers where there are no names; none where there are no classes."""
    if guard.table is not None:
        return guard.table.classes
    return guard.names or tuple(map(str, range(guard.widths.get("logits", 0))))
