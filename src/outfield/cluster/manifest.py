"""A folder of results: what they are of, which parts are there, and whether all are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from outfield.cluster.parts import Part
from outfield.cluster.places import Place, digest
from outfield.errors import FileFormatError, InputError
from outfield.files.scratch import NAME as UNFINISHED
from outfield.version import __version__

MANIFEST, SUMMARY = "_manifest.json", "_summary.json"
"""Readers of folders of Parquet files leave names out that begin so."""
FORMAT = "outfield scores"
VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """What results in a folder are of. Whoever goes on with them must agree in all of it.

    Attributes:
        guard: SHA-256 of its file.
        source: digest of the names, sizes and times of change of what is scored.
        rows: how many there are.
        parts: into how many they are cut.
        part_rows: rows of a part, at most.
        threads: on which the network runs, for each worker.
        on_error: what an image does that cannot be read.
    """

    guard: str
    source: str
    rows: int
    parts: int
    part_rows: int
    threads: int
    on_error: str

    def to_text(self) -> str:
        """As JSON."""
        head = {"format": FORMAT, "version": VERSION, "outfield": __version__, "torch": str(torch.__version__)}
        return json.dumps({**head, **asdict(self)}, indent=1)

    @property
    def mark(self) -> str:
        """What each of its parts is marked with: a digest of all of it."""
        return digest(*(f"{name}={value}" for name, value in asdict(self).items()))


SAYS = {
    "guard": "another guard",
    "source": "another source, or files of it that were changed since",
    "rows": "another number of rows",
    "parts": "another number of parts",
    "part_rows": "parts of {} rows (--part-rows)",
    "threads": "{} threads a worker (--threads)",
    "on_error": "--on-error {}",
}


def begun(out: Place, manifest: Manifest) -> None:
    """Begin a folder of results, or find that it was begun for the same ones, perhaps by somebody else at this moment.

    Raises:
        InputError: it holds results of something else, or other files.
        FileFormatError: its manifest is damaged.
    """
    there = out.exists()
    if there and not out.is_folder():
        raise InputError(f"--out {out.shown} is a file; results are a folder: name one that is new or empty")
    names = [name for name in out.names() if not UNFINISHED.fullmatch(name)] if there else []
    if MANIFEST not in names:
        if names:
            raise InputError(
                f"--out {out.shown} holds {names[0]} and no results of outfield score; name a folder of its own"
            )
        out.make_folder()
        out.under(MANIFEST).write_first(manifest.to_text().encode())
    found = _read(out.under(MANIFEST))
    for name, value in asdict(manifest).items():
        if found.get(name) != value:
            said = SAYS[name].format(found.get(name))
            raise InputError(
                f"--out {out.shown} holds results of {said}; go on with what they were begun with, or name another folder"
            )


def _read(place: Place) -> dict[str, Any]:
    try:
        found = json.loads(place.read())
    except ValueError as error:
        raise FileFormatError(f"{place.shown} is damaged: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
        raise FileFormatError(f"{place.shown} is no manifest of {FORMAT}, version {VERSION}")
    return found


def missing(parts: Sequence[Part], out: Place) -> list[Part]:
    """The parts of which there are no results yet.

    Raises:
        InputError: there are files of parts that do not exist.
    """
    there = {name for name in out.names() if name.endswith(".parquet")}
    unknown = sorted(there - {part.file for part in parts})
    if unknown:
        raise InputError(f"{out.shown} holds {unknown[0]}, which is none of its {len(parts):,} parts; remove it")
    return [part for part in parts if part.file not in there]
