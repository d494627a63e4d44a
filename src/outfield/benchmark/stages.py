"""Long work in stages whose results are kept: a run that was cut off goes on, and a second run finds all of it done.

A stage's file is named after what it is and a digest of everything its result depends on, the code included; beside it lies a
``.json`` that says what went into the digest, how long the stage took, on what device and with what version. The device is no
part of the digest: what a GPU computed is taken up on a CPU as well.
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
from outfield.benchmark.sources import code
from outfield.errors import FileFormatError, InputError, OutfieldWarning, StorageError
from outfield.files import atomic
from outfield.files.paths import as_path

T = TypeVar("T")
MEASURED = ("seconds", "device", "outfield", "commit", "torch")
"""What is noted beside each result: how long it took, where, and what made it."""


@dataclass(frozen=True)
class Stage:
    """One piece of work: what it is called and what its result depends on.

    Args:
        what: "features", "detector", "scores" …
        about: which one, for people: ``{"backbone": …, "set": …}``.
        depends: everything that the result depends on, ready for JSON.
    """

    what: str
    about: Mapping[str, Any]
    depends: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Of what it depends on, the kind of stage and the code behind it."""
        content = json.dumps([self.what, self.depends, code(self.what)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:20]

    @property
    def file(self) -> str:
        """Its file's name: readable, short enough for any file system, and different for every digest."""
        words = [
            re.sub("[^A-Za-z0-9.]+", "_", str(word)) for word in (self.what, *self.about.values()) if word is not None
        ]
        return f"{'-'.join(words)[:100]}-{self.digest}.safetensors"


class Stages:
    """Runs stages and keeps their results in a folder, or nowhere.

    Args:
        folder: where; made if it is not there. None keeps nothing.
        device: to be noted beside each result.

    Attributes:
        log: what was done: kind, names, seconds (None where they are not known), device, what version made the result, and
            whether it was found from an earlier run.
    """

    def __init__(self, folder: atomic.PathLike | None, device: str) -> None:
        self.folder = None if folder is None else as_path(folder, "folder")
        self.here = {"device": device, **made_by()}
        self.log: list[dict[str, Any]] = []
        if self.folder is not None:
            atomic.make_folder(self.folder)

    def path(self, stage: Stage) -> Path | None:
        """Where the stage's result lies once it is there."""
        return None if self.folder is None else self.folder / stage.file

    def run(self, stage: Stage, make: Callable[[], T], save: Callable[[T, Path], None], load: Callable[[Path], T]) -> T:
        """The stage's result: found, or else made and kept."""
        found = self.find(stage, load)
        return self.make(stage, make, save) if found is None else found

    def make(self, stage: Stage, work: Callable[[], T], save: Callable[[T, Path], None]) -> T:
        """Do the work, time it and keep its result."""
        begin = time.perf_counter()
        result = work()
        self.keep(stage, result, save, time.perf_counter() - begin)
        return result

    def find(self, stage: Stage, load: Callable[[Path], T]) -> T | None:
        """The kept result, or None: there is none, or its file is damaged, of which a warning tells."""
        path = self.path(stage)
        if path is None or not path.exists():
            return None
        try:
            found = load(path)
        except (FileFormatError, StorageError, InputError) as error:
            warnings.warn(f"a kept result is damaged and is computed again: {error}", OutfieldWarning, stacklevel=2)
            return None
        self._note(stage, found=True, **self.noted(stage))
        return found

    def mention(self, stage: Stage) -> None:
        """Note in the log a kept result that others were made from but that was not needed itself."""
        path = self.path(stage)
        if path is not None and path.exists():
            self._note(stage, found=True, **self.noted(stage))

    def keep(self, stage: Stage, result: T, save: Callable[[T, Path], None], seconds: float | None) -> None:
        """Put a result into the folder, if there is one, and note how long it took."""
        path = self.path(stage)
        if path is not None:
            save(result, path)
        self._note(stage, found=False, **self.write_note(stage, seconds))

    def write_note(self, stage: Stage, seconds: float | None) -> dict[str, Any]:
        """Write the ``.json`` beside a result and give what it says of time and place."""
        path = self.path(stage)
        measured = {"seconds": None if seconds is None else round(seconds, 3), **self.here}
        if path is not None:
            depends = {**stage.depends, "code": code(stage.what)}
            body = {"what": stage.what, **stage.about, **measured, "depends_on": depends}
            atomic.write_bytes(path.with_suffix(".json"), (json.dumps(body, indent=2) + "\n").encode())
        return measured

    def noted(self, stage: Stage) -> dict[str, Any]:
        """Time, place and version as noted beside a kept result; None where the note is gone."""
        path = self.path(stage)
        try:
            noted = {} if path is None else json.loads(path.with_suffix(".json").read_text())
            return {name: noted.get(name) for name in MEASURED}
        except (OSError, ValueError, AttributeError):
            return dict.fromkeys(MEASURED)

    def drop(self, stage: Stage) -> None:
        """Remove a result that is no longer needed, and its note."""
        path = self.path(stage)
        if path is not None:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)

    def _note(self, stage: Stage, **more: Any) -> None:
        self.log.append({"what": stage.what, **stage.about, **more})

    def summary(self) -> list[dict[str, Any]]:
        """The log with one entry for all sets that a detector scored: their number, and their seconds together.

        Curves are left out: they come with the fit.
        """
        merged: dict[str, dict[str, Any]] = {}
        for entry in [entry for entry in self.log if entry["what"] != "history"]:
            one = {"sets": 1, **{name: value for name, value in entry.items() if name != "set"}}
            alike = {name: value for name, value in one.items() if name not in ("seconds", "found", "sets")}
            if entry["what"] != "scores":
                merged[str(len(merged))] = dict(entry)
            elif (first := merged.setdefault(str(alike), one)) is not one:
                first["sets"] += 1
                first["found"] &= one["found"]
                known = first["seconds"] is not None and one["seconds"] is not None
                first["seconds"] = round(first["seconds"] + one["seconds"], 3) if known else None
        return list(merged.values())
