"""The detectors in words, as their classes tell: for the command line and for the table in docs/detectors.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass

from outfield.detectors.registry import DETECTORS
from outfield.features import HEAD, HEAD_FIELDS

HEADER = ("detector", "what it is", "reference", "to fit", "to score")
# fields in the order in which they are had; all others are had last
RANKS = {"logits": 0, "odin_logits": 1, "features": 2, "labels": 3}
# what a field is called in a sentence, where that is not its name
WORDS = {"odin_logits": "logits at the perturbed input", **dict.fromkeys(HEAD_FIELDS, "the classifier's last layer")}


@dataclass(frozen=True)
class Entry:
    """A detector's name, the first line of its documentation, whose method it is, and the fields that it reads by default."""

    name: str
    what: str
    reference: str
    to_fit: tuple[str, ...]
    to_score: tuple[str, ...]

    @property
    def needs(self) -> str:
        """The fields in words: "logits, labels to fit"."""
        besides = [field for field in self.to_fit if field not in self.to_score]
        return _in_words(self.to_score) + (f", {_in_words(besides)} to fit" if besides else "")


def entries() -> list[Entry]:
    """Every detector, in the order of :data:`outfield.DETECTORS`."""
    return [_entry(name) for name in DETECTORS]


def detector_groups() -> dict[str, list[Entry]]:
    """Every detector by what it needs, in words: those that need least first."""
    found: dict[str, list[Entry]] = {}
    for one in sorted(entries(), key=_burden):
        found.setdefault(one.needs, []).append(one)
    return found


def _burden(entry: Entry) -> tuple[int, tuple[int, ...], int]:
    """The more a detector needs, the later it is listed; logits are cheaper to have than features."""
    return len(entry.to_score), tuple(sorted(map(_rank, entry.to_score))), len({*entry.to_fit} - {*entry.to_score})


def _rank(field: str) -> int:
    return RANKS.get(field, len(RANKS))


def _in_words(fields: Iterable[str]) -> str:
    """``("features", "labels")`` as "features and labels"; the fields of the classifier's last layer are one thing."""
    words = list(dict.fromkeys(WORDS.get(field, field) for field in sorted(fields, key=_rank)))
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _entry(name: str) -> Entry:
    detector = DETECTORS[name]()
    first = (inspect.getdoc(type(detector)) or "").partition("\n")[0]
    what, reference, rest = re.fullmatch(r"(.*?)(?: \(([^()]*\d{4}[^()]*)\))?(\.?)", first).groups()  # type: ignore[union-attr]
    named = (field for need in detector.needs_to_fit for field in (HEAD_FIELDS if need == HEAD else (need,)))
    to_fit = ("features",) * ("features" in detector.needs_to_score) + tuple(named)
    return Entry(name, what + rest, reference or "", to_fit, detector.needs_to_score)


def detectors_markdown() -> str:
    """All of them as a table in Markdown."""
    lines = [HEADER, ("---",) * len(HEADER)]
    for one in entries():
        lines.append((f"`{one.name}`", one.what, one.reference or "–", _fields(one.to_fit), _fields(one.to_score)))
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _fields(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"
