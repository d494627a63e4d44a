"""Inputs kept for people to look at: a folder of images or rows, each with its verdict and, once somebody looked, what it is.

Files begin with the item's ID: ``ID.json`` tells the verdict, the time and the guard, and holds a row; ``ID.png`` (or another
ending) is an image as it came; ``ID.review.json`` is what a person said. An ID begins with s where the item belongs to a random
sample of all inputs, drawn whatever the verdict, and with r where it was kept because it was refused.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from outfield.errors import FileFormatError, InputError, StorageError
from outfield.files import PathLike, as_path, make_folder, new_file, open_to_read, reason

if TYPE_CHECKING:
    from outfield.guard.guard import Guard

ID = re.compile(r"[rs][0-9a-f]{32}")
FILE = re.compile(rf"({ID.pattern})\.(?:(review)\.)?(json|[a-z]{{3,5}})")
FORMATS = {
    b"\x89PNG": "png",
    b"\xff\xd8": "jpg",
    b"RIFF": "webp",
    b"GIF8": "gif",
    b"II*\0": "tif",
    b"MM\0*": "tif",
    b"BM": "bmp",
}
"""How the files of images begin, and the endings of their names."""
SCRATCH = ".new"
"""Folder of files that are being written: the others are many, and it is looked through for what killed writers left."""


class Counts(NamedTuple):
    """How many items there are, how many of them were reviewed, and the same of the random sample."""

    items: int
    reviewed: int
    sample: int
    sample_reviewed: int


class ReviewFolder:
    """A folder of kept inputs; several processes may use it at a time."""

    def __init__(self, path: PathLike) -> None:
        self.path = as_path(path)

    def ids(self) -> dict[str, bool]:
        """Every item, the oldest first, and whether it was reviewed."""
        found: dict[str, set[str]] = {}
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if (
                        (name := FILE.fullmatch(entry.name))
                        and name[3] == "json"
                        and entry.is_file(follow_symlinks=False)
                    ):
                        found.setdefault(name[1], set()).add(name[2] or "")
        except OSError as error:
            raise StorageError(f"cannot read {self.path}: {reason(error)}") from error
        return {one: "review" in found[one] for one in sorted(found, key=by_time) if "" in found[one]}

    def add(self, about: Mapping[str, Any], image: bytes | None, sample: bool) -> int:
        """Keep an input; the bytes that were written."""
        now = time.time_ns()
        own = f"{'s' if sample else 'r'}{now:016x}{secrets.token_hex(8)}"
        told = {"id": own, "time": time_of(own).isoformat(), "sample": sample, **about}
        if image is not None:
            ending = next((end for start, end in FORMATS.items() if image.startswith(start)), "image")
            told["image"] = f"{own}.{ending}"
            self._write(told["image"], image)
        content = json.dumps(told).encode()
        self._write(f"{own}.json", content)  # last: now there is an item
        return len(content) + len(image or b"")

    def __contains__(self, own: str) -> bool:
        return ID.fullmatch(own) is not None and os.path.lexists(self.path / f"{own}.json")

    def item(self, own: str) -> dict[str, Any]:
        """What is known of an item, with the ``review`` or None.

        Raises:
            InputError: there is no such item.
            FileFormatError: its files are damaged.
        """
        if own not in self:
            raise InputError(f"there is no item {own[:100]!r}; it may have been removed to make room")
        found, review = self._json(f"{own}.json"), f"{own}.review.json"
        name = FILE.fullmatch(str(found.get("image", f"{own}.image")))
        own_image = name is not None and name[1] == own and name[3] != "json"
        if not own_image or found.get("id") != own or not isinstance(found.get("verdict"), dict):
            raise FileFormatError(f"{self.path / own}.json is damaged; remove it")
        return {**found, "review": self._json(review) if os.path.lexists(self.path / review) else None}

    def image(self, own: str) -> bytes:
        """The image of an item, as it came."""
        name = self.item(own).get("image")
        if name is None:
            raise InputError(f"the item {own} is a row and has no image")
        return self._read(str(name))

    def review(self, own: str, known: bool, name: str | None) -> dict[str, Any]:
        """Keep what a person said of an item: known, of a class where there are classes, or unknown."""
        self.item(own)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        told = {"known": known, "class": name, "time": now}
        self._write(f"{own}.review.json", json.dumps(told).encode())
        return told

    def make_room(self, limit: int) -> tuple[int, int]:
        """Remove the oldest items until all files together have no more bytes; bytes that are left, and items removed."""
        sizes: dict[str, dict[str, int]] = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if match := FILE.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):  # another process makes room, too
                        sizes.setdefault(match[1], {})[entry.name] = entry.stat(follow_symlinks=False).st_size
        total, removed = sum(sum(own.values()) for own in sizes.values()), 0
        for own in sorted(sizes, key=by_time):
            if total <= limit:
                break
            for name in sorted(sizes[own], key=lambda name: name != f"{own}.json"):  # then there is no item any more
                (self.path / name).unlink(missing_ok=True)
            total -= sum(sizes[own].values())
            removed += 1
        return total, removed

    def counts(self, ids: Mapping[str, bool]) -> Counts:
        sample = [seen for own, seen in ids.items() if own[0] == "s"]
        return Counts(len(ids), sum(ids.values()), len(sample), sum(sample))

    def _write(self, name: str, content: bytes) -> None:
        try:
            make_folder(self.path / SCRATCH)
            with new_file(self.path / SCRATCH) as new:
                new.file.write(content)
                new.move_to(self.path / name)  # in the place of a link, not where it leads
        except OSError as error:
            raise StorageError(f"cannot write {self.path / name}: {reason(error)}") from error

    def _read(self, name: str) -> bytes:
        path = self.path / name
        if path.is_symlink():
            raise StorageError(f"{path} is a link, which Outfield does not put there; remove it")
        with open_to_read(path) as file:
            return file.read()

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self._read(name))
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{self.path / name} is damaged: {error}; remove it") from error
        if not isinstance(found, dict):
            raise FileFormatError(f"{self.path / name} is damaged: it holds no object; remove it")
        return found


def by_time(own: str) -> str:
    """What IDs are sorted by."""
    return own[1:]


def time_of(own: str) -> datetime.datetime:
    """When an item was kept."""
    return datetime.datetime.fromtimestamp(int(own[1:17], 16) / 1e9, datetime.UTC)


def classes_of(guard: Guard) -> tuple[str, ...]:
    """The names of the classes that an input may have, numbers where there are no names; none where there are no classes."""
    if guard.names or guard.table is not None:
        return guard.names or guard.table.classes  # type: ignore[union-attr]
    return tuple(map(str, range(guard.widths.get("logits", 0))))
