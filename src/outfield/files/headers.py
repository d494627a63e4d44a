"""The header of files that Outfield writes: JSON that says the kind, its own entries, and digests.

``{"format": 2, "kind": ..., "digests": {array: sha256}, "sha256": ..., ...}``: each array has a digest of its own (name,
type, shape and bytes), and ``sha256`` is the digest of the header with those digests. So the header is proved when it is
read, each array when that array is, and a changed byte anywhere is found by whoever reads it.

Format 1, of earlier versions, has no digests: its ``sha256`` is over the header and all arrays together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from outfield.errors import FileFormatError
from outfield.files.digests import check_digest, fingerprint
from outfield.files.paths import PathLike
from outfield.files.tensors import parse_json

NAME = "outfield"
"""Name of the entry in a file's metadata that holds the header."""
FORMAT = 2
KNOWN_FORMATS = (1, 2)
OWN = {"format": int, "kind": str, "sha256": str}
"""What every header holds, and of which type."""


@dataclass(frozen=True)
class Header:
    """A header whose own digest is right, or, of format 1, is yet to be compared.

    Attributes:
        path: the file.
        kind: what it holds.
        entries: what the writer put there.
        digests: of each array; None in format 1.
        body: all of it but the digest of the whole.
        sha256: the digest of the whole.
    """

    path: PathLike
    kind: str
    entries: dict[str, Any]
    digests: dict[str, str] | None
    body: dict[str, Any]
    sha256: str

    @classmethod
    def parse(cls, path: PathLike, text: str) -> Header:
        """Of the JSON in a file.

        Raises:
            FileFormatError: it is not a header of ours, is of a newer format, or was changed.
        """
        body = parse_json(path, text)
        for name, kind in OWN.items():
            if type(body.get(name)) is not kind:
                raise FileFormatError(f"{path} has a broken Outfield header ({name} is {body.get(name)!r:.100})")
        if body["format"] not in KNOWN_FORMATS:
            raise FileFormatError(
                f"{path} is of file format {body['format']!r}; this version of Outfield reads formats up to {FORMAT}"
            )
        sha256, entries, digests = body.pop("sha256"), dict(body), None
        if body["format"] > 1:
            check_digest(path, sha256, _digest(body), "its header")
            digests = entries.pop("digests", None)
            if not isinstance(digests, dict) or not all(isinstance(value, str) for value in digests.values()):
                raise FileFormatError(f"{path} has a broken Outfield header (digests is {digests!r:.100})")
        kind = entries.pop("kind")
        del entries["format"]
        return cls(path, kind, entries, digests, body, sha256)

    def check_kind(self, kind: str) -> None:
        """Refuse another kind of file."""
        if self.kind != kind:
            raise FileFormatError(f"{self.path} holds a {self.kind}, not a {kind}")

    def check_entries(self, entries: Mapping[str, type | tuple[type, ...]]) -> None:
        """Refuse a header that lacks an entry, or has one of another type; float takes integers too."""
        for name, kind in entries.items():
            kinds = kind if isinstance(kind, tuple) else (kind,)
            taken = (*kinds, int) if float in kinds else kinds
            if name not in self.entries:
                raise FileFormatError(f"{self.path} is not a complete {self.kind}: {name} is missing")
            if type(self.entries[name]) not in taken:
                listed = " or ".join(kind.__name__ for kind in kinds)
                raise FileFormatError(
                    f"{self.path} is not a complete {self.kind}: {name} is {self.entries[name]!r:.100}, not {listed}"
                )

    def check_whole(self, content: str) -> None:
        """Of format 1: refuse a header that was not written with arrays of this fingerprint."""
        check_digest(self.path, self.sha256, _digest(self.body, content))

    def check_names(self, names: Iterable[str]) -> None:
        """Of format 2: refuse a file that lacks an array, or has one more."""
        odd = ", ".join(sorted(set(names) ^ set(self.digests))) if self.digests is not None else ""
        if odd:
            raise FileFormatError(f"{self.path} was changed after it was written: {odd:.200} was added or taken away")


def make_header(kind: str, entries: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The header, as JSON, of a file that holds these tensors."""
    digests = {name: fingerprint({name: tensor}) for name, tensor in tensors.items()}
    body = {**entries, "format": FORMAT, "kind": kind, "digests": digests}
    body = json.loads(json.dumps(body))  # as it will be read: keys are texts, tuples are lists
    return json.dumps({**body, "sha256": _digest(body)}, sort_keys=True)


def _digest(body: Mapping[str, Any], content: str = "") -> str:
    """Of a header's entries and, in format 1, of the fingerprint of its tensors."""
    return hashlib.sha256((json.dumps(body, sort_keys=True) + content).encode()).hexdigest()
