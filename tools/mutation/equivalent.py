"""Survivors that people have judged: the change changes nothing that anybody could see."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutation.mutant import Mutant

PATH = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True)
class Equivalent:
    """A judged change: where, which, and why nothing follows from it.

    It is found by the text of its line, so it still holds when the line moves, and no longer when it changes.

    Args:
        file: The source file, relative to the project.
        kind: The kind of change.
        line: The source line without its indentation.
        reason: Why it is equivalent, in a sentence.
        becomes: The changed line; every change of this kind in the line where it is empty.
    """

    file: str
    kind: str
    line: str
    reason: str
    becomes: str = ""

    def matches(self, mutant: Mutant) -> bool:
        same = (self.file, self.kind, self.line) == (mutant.file, mutant.kind, mutant.before)
        return same and self.becomes in ("", mutant.after)


@dataclass(frozen=True)
class Everywhere:
    """A judged change of a piece of text, in whatever line it stands.

    Args:
        text: What a line has.
        becomes: What the change makes of it; nothing else in the line changes.
        reason: Why it is equivalent wherever it stands, in a sentence.
    """

    text: str
    becomes: str
    reason: str

    def matches(self, mutant: Mutant) -> bool:
        whole, pieces = mutant.before, mutant.before.split(self.text)
        places = range(1, len(pieces))
        return whole != mutant.after and any(
            self.text.join(pieces[:i]) + self.becomes + self.text.join(pieces[i:]) == mutant.after for i in places
        )


@dataclass(frozen=True)
class Constant:
    """A constant of a module whose value nobody can see in a result.

    Args:
        file: The source file, relative to the project.
        name: The constant.
        reason: What it decides instead, in a sentence.
    """

    file: str
    name: str
    reason: str

    def matches(self, mutant: Mutant) -> bool:
        return self.file == mutant.file and mutant.before.startswith(f"{self.name} = ")


def read_equivalent(path: Path = PATH) -> list[Equivalent | Everywhere | Constant]:
    """The judged changes of a file; none where there is no file."""
    if not path.exists():
        return []
    found = tomllib.loads(path.read_text())
    return [
        *(Equivalent(**entry) for entry in found.get("equivalent", [])),
        *(Everywhere(**entry) for entry in found.get("everywhere", [])),
        *(
            Constant(entry["file"], name, entry["reason"])
            for entry in found.get("constants", [])
            for name in entry["names"]
        ),
    ]
