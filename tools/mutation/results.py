"""Results of a run: kept as it goes, counted, and printed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mutation.project import Project
from mutation.trial import Result

COLUMNS = ("caught", "timed out", "survived", "equivalent")


class ResultsFile:
    """One line of JSON for each mutant, written at once, so that a run that was cut off can be continued."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self.digest = digest

    def read(self, *, any_digest: bool = False) -> dict[str, Result]:
        """The results by mutant, of the same sources and tests only unless `any_digest`."""
        found = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            try:
                record: dict[str, Any] = json.loads(line)
            except ValueError:  # empty, or cut off while it was written
                continue
            if record.pop("digest") == self.digest or any_digest:
                found[record["key"]] = Result(**record)
        return found

    def clear(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("")

    def add(self, result: Result) -> None:
        with open(self.path, "a") as file:
            # The line end comes first: the line before may have been cut off.
            file.write("\n" + json.dumps(result.record() | {"digest": self.digest}, ensure_ascii=False))


def share_caught(results: Iterable[Result]) -> float:
    """Caught / (tried − equivalent), where a mutant that ran out of time is caught; 1 where nothing is left."""
    counts = Counter(result.status for result in results)
    caught = counts["caught"] + counts["timed out"]
    tried = caught + counts["survived"]
    return caught / tried if tried else 1.0


def table(project: Project, results: list[Result]) -> str:
    """A row for each room and one for all of them."""
    rooms = sorted({project.room_of(result.file) for result in results})
    lines = [f"{'room':<12}{'tried':>8}" + "".join(f"{name:>12}" for name in COLUMNS) + f"{'share':>9}"]
    for room in [*rooms, ""]:
        part = [result for result in results if not room or project.room_of(result.file) == room]
        counts = Counter(result.status for result in part)
        numbers = "".join(f"{counts[name]:>12}" for name in COLUMNS)
        lines.append(f"{room or 'all':<12}{len(part):>8}{numbers}{share_caught(part):>9.1%}")
    return "\n".join(lines)


def survivors(results: list[Result]) -> str:
    """Each survivor with its line before and after the change."""
    lines = []
    for one in sorted(results, key=lambda result: (result.file, result.line, result.kind, result.after)):
        if one.status == "survived":
            ran = f"{one.tests} tests, {one.seconds:.0f} s" if one.tests else "no test runs it"
            lines += [f"{one.file}:{one.line}  {one.kind}  ({ran})", f"  - {one.before}", f"  + {one.after}"]
    return "\n".join(lines)
