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
from functools import partial
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
    """One result: what it is called and what it depends on.

    Args:
        what: "features", "detector", "scores" …
        about: which one, for people: ``{"backbone": …, "set": …}``.
        depends: everything that the result depends on but the version, ready for JSON.
    """

    what: str
    about: Mapping[str, Any]
    depends: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Of what it depends on."""
        content = json.dumps([self.what, self.depends, __version__], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:20]

    @property
    def file(self) -> str:
        """Its file's name: readable, short enough for any file system, and different for every digest."""
        words = [
            re.sub("[^A-Za-z0-9.]+", "_", str(word)) for word in (self.what, *self.about.values()) if word is not None
        ]
        return f"{'-'.join(words)[:100]}-{self.digest}.safetensors"


class Cache:
    """Keeps results in a folder, or nowhere.

    Args:
        folder: where; made if it is not there. None keeps nothing.
        device: to be noted beside each result.

    Attributes:
        log: what was done: kind, names, seconds (None where they are not known), device, what version made the result, and
            whether it was found from an earlier run.
    """

    def __init__(self, folder: PathLike | None, device: str) -> None:
        self.folder = None if folder is None else as_path(folder, "folder")
        self.here = {"device": device, **made_by()}
        self.log: list[dict[str, Any]] = []
        if self.folder is not None:
            make_folder(self.folder)

    def path(self, entry: Entry) -> Path | None:
        """Where the result lies once it is there."""
        return None if self.folder is None else self.folder / entry.file

    def has(self, entry: Entry) -> bool:
        """Whether there is a file of it, damaged or not."""
        path = self.path(entry)
        return path is not None and path.exists()

    def find(self, entry: Entry, load: Callable[[Path], T]) -> T | None:
        """The kept result, or None: there is none, or its file is damaged, of which a warning tells."""
        path = self.path(entry)
        if path is None or not path.exists():
            return None
        try:
            found = load(path)
        except (FileFormatError, StorageError, InputError) as error:
            warnings.warn(f"a kept result is damaged and is computed again: {error}", OutfieldWarning, stacklevel=2)
            return None
        self.mention(entry)
        return found

    def mention(self, entry: Entry) -> None:
        """Note in the log a kept result that others were made from, though it was not needed itself."""
        if self.has(entry):
            self._note(entry, found=True, **self.noted(entry))

    def make(self, entry: Entry, work: Callable[[], T], save: Callable[[T, Path], None]) -> T:
        """Do the work, time it and keep its result."""
        begin = time.perf_counter()
        result = work()
        self.keep(entry, result, save, time.perf_counter() - begin)
        return result

    def keep(self, entry: Entry, result: T, save: Callable[[T, Path], None], seconds: float | None) -> None:
        """Put a result into the folder, if there is one, and note how long it took."""
        path = self.path(entry)
        if path is not None:
            save(result, path)
        self._note(entry, found=False, **self.write_note(entry, seconds))

    def record(self, entry: Entry, work: Callable[[], Record], *, timed: bool = True) -> Record:
        """A result that is a record: found, or else made and kept; without seconds of its own unless timed."""
        found = self.find(entry, lambda path: read_record(path, entry.what))
        if found is None:
            begin = time.perf_counter()
            found = work()
            self.keep(entry, found, partial(_save, entry.what), time.perf_counter() - begin if timed else 0.0)
        return found

    def write_note(self, entry: Entry, seconds: float | None) -> dict[str, Any]:
        """Write the ``.json`` beside a result and give what it says of time and place."""
        path = self.path(entry)
        measured = {"seconds": None if seconds is None else round(seconds, 3), **self.here}
        if path is not None:
            body = {"what": entry.what, **entry.about, **measured, "depends_on": entry.depends}
            write_bytes(path.with_suffix(".json"), (json.dumps(body, indent=2) + "\n").encode())
        return measured

    def noted(self, entry: Entry) -> dict[str, Any]:
        """Time, place and version as noted beside a kept result; None where the note is gone."""
        path = self.path(entry)
        try:
            noted = {} if path is None else json.loads(path.with_suffix(".json").read_text())
            return {name: noted.get(name) for name in MEASURED}
        except (OSError, ValueError, AttributeError):
            return dict.fromkeys(MEASURED)

    def drop(self, entry: Entry) -> None:
        """Remove a result that is no longer needed, and its note."""
        path = self.path(entry)
        if path is not None:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)

    def _note(self, entry: Entry, **more: Any) -> None:
        self.log.append({"what": entry.what, **entry.about, **more})

    def summary(self) -> list[dict[str, Any]]:
        """The log with one line for all sets that a detector scored: their number, and their seconds together.

        Curves are left out: they come with the fit.
        """
        merged: dict[str, dict[str, Any]] = {}
        for line in [line for line in self.log if line["what"] != "history"]:
            one = {"sets": 1, **{name: value for name, value in line.items() if name != "set"}}
            alike = {name: value for name, value in one.items() if name not in ("seconds", "found", "sets")}
            if line["what"] != "scores":
                merged[str(len(merged))] = dict(line)
            elif (first := merged.setdefault(str(alike), one)) is not one:
                first["sets"] += 1
                first["found"] &= one["found"]
                known = first["seconds"] is not None and one["seconds"] is not None
                first["seconds"] = round(first["seconds"] + one["seconds"], 3) if known else None
        return list(merged.values())


def _save(kind: str, record: Record, path: Path) -> None:
    write_record(path, kind, record)
