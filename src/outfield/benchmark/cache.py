"""The cache of a benchmark: results of long work are kept, so that a run that was cut off goes on, and a second run finds them.

An entry's file is named after what it is and a digest of everything its result depends on: data, settings and the version of
Outfield. Beside it lies a ``.json`` that says what went into the digest, how long the work took, on what device and with what
version. The device is no part of the digest: what a GPU computed is taken up on a CPU as well.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from outfield.benchmark.provenance import made_by
from outfield.errors import FileFormatError, InputError, OutfieldWarning, StorageError
from outfield.files import PathLike, Record, as_path, make_folder, read_record, write_bytes, write_record
from outfield.version import __version__

T = TypeVar("T")
MEASURED = ("seconds", "device", "outfield", "commit", "torch")  # noted beside each result


@dataclass(frozen=True)
class Entry:
    """One result: its kind ("features", "scores" …), which one, for people, and all that it depends on, ready for JSON."""

    what: str
    about: Mapping[str, Any]
    depends: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Of what it depends on, and of the version."""
        content = json.dumps([self.what, self.depends, __version__], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:20]

    @property
    def file(self) -> str:
        """Its file's name: readable, short enough for any file system, and different for every digest."""
        words = [str(word) for word in (self.what, *self.about.values()) if word is not None]
        return f"{'-'.join(re.sub('[^A-Za-z0-9.]+', '_', word) for word in words)[:100]}-{self.digest}.safetensors"


class Cache:
    """Keeps results in a folder, or nowhere where there is none.

    ``log`` tells what was done: kind, names, seconds (None where they are not known), device, what version made the result, and
    whether it was found from an earlier run.
    """

    def __init__(self, folder: PathLike | None, device: str) -> None:
        self.folder, self.device = None if folder is None else as_path(folder, "folder"), device
        self._made_by = made_by()
        self.log: list[dict[str, Any]] = []
        if self.folder is not None:
            make_folder(self.folder)

    def path(self, entry: Entry) -> Path | None:
        """Where the result lies once it is there."""
        return None if self.folder is None else self.folder / entry.file

    def kept(self, entry: Entry) -> Path | None:
        """Its file, damaged or not; None where there is none."""
        path = self.path(entry)
        return path if path is not None and path.exists() else None

    def find(self, entry: Entry, load: Callable[[Path], T]) -> T | None:
        """The kept result, or None: there is none, or its file is damaged, of which a warning tells."""
        if (path := self.kept(entry)) is None:
            return None
        try:
            found = load(path)
        except (FileFormatError, StorageError, InputError) as error:
            warnings.warn(f"a kept result is damaged and is computed again: {error}", OutfieldWarning, stacklevel=2)
            return None
        self.mention(entry)
        return found

    def mention(self, entry: Entry) -> None:
        """Put a kept result into the log, with what is noted beside it."""
        if (path := self.kept(entry)) is None:
            return
        try:
            note = json.loads(path.with_suffix(".json").read_text())
        except (OSError, ValueError):  # it is gone, or damaged
            note = {}
        measured = {name: note.get(name) for name in MEASURED}
        self.log.append({"what": entry.what, **entry.about, "found": True, **measured})

    def keep(self, entry: Entry, result: T, save: Callable[[T, Path], None], seconds: float | None) -> None:
        """Put a result into the folder, if there is one, and note beside it what it depends on and how long it took."""
        known = {"seconds": None if seconds is None else round(seconds, 3), "device": self.device, **self._made_by}
        if (path := self.path(entry)) is not None:
            save(result, path)
            body = {"what": entry.what, **entry.about, **known, "depends_on": entry.depends}
            write_bytes(path.with_suffix(".json"), (json.dumps(body, indent=2) + "\n").encode())
        self.log.append({"what": entry.what, **entry.about, "found": False, **known})

    def record(self, entry: Entry, work: Callable[[], Record], *, timed: bool = True) -> Record:
        """A result that is a record: found, or else made and kept; without seconds of its own unless timed."""
        found = self.find(entry, lambda path: read_record(path, entry.what))
        if found is None:
            begin = time.perf_counter()
            found = work()
            seconds = time.perf_counter() - begin if timed else 0.0
            self.keep(entry, found, lambda record, path: write_record(path, entry.what, record), seconds)
        return found

    def summary(self) -> list[dict[str, Any]]:
        """The log with one line for all sets that a detector scored, and without curves, which come with the fit."""
        lines: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(self.log):
            if line["what"] == "scores":
                same = {name: value for name, value in line.items() if name not in ("set", "seconds", "found")}
                one = lines.setdefault(str(same), {"sets": 0, **same, "found": True, "seconds": 0.0})
                unknown = None in (one["seconds"], line["seconds"])
                one["seconds"] = None if unknown else round(one["seconds"] + line["seconds"], 3)
                one["found"] &= line["found"]
                one["sets"] += 1
            elif line["what"] != "history":
                lines[str(number)] = line
        return [*lines.values()]
