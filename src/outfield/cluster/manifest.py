"""A folder of results: what they are of, the SHA-256 of each part, and the check that every row is there once and undamaged."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from outfield.cluster.catalog import Part
from outfield.cluster.storage import Place, digest
from outfield.errors import FileFormatError, InputError
from outfield.features import whole_parquet
from outfield.files import SCRATCH_NAME
from outfield.version import __version__

MANIFEST, SUMMARY = "_manifest.json", "_summary.json"
"""Readers of folders of Parquet files leave names out that begin with an underscore."""
FORMAT, VERSION = "outfield scores", 2
"""Version 1, of Outfield 0.1.0, has no digests, and a column ``rang`` for ``triggered_by``; it is gone on with as it is."""
MARK = b"outfield"
"""The key in a Parquet file's metadata under which a part says what it belongs to."""
PAUSE = 20
"""Seconds between two writings of the manifest, for each second that one takes."""
NAMED = 20
"""Damaged files that an error names, at most."""
SAYS = {
    "guard": "another guard",
    "source": "another source, or files of it that were changed since",
    "rows": "another number of rows",
    "parts": "another number of parts",
    "part_rows": "parts of {} rows (--part-rows)",
    "threads": "{} threads a worker (--threads)",
    "on_error": "--on-error {}",
}


class Counts(NamedTuple):
    """Rows of results: how many, how many OOD, how many that could not be read."""

    rows: int
    ood: int
    failed: int


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

    @property
    def mark(self) -> str:
        """A digest of all of it, which each of its parts bears."""
        return digest(*(f"{name}={value}" for name, value in asdict(self).items()))


class Results:
    """A folder of results that is begun, or was begun for the same ones, perhaps by somebody else at this moment.

    Attributes:
        head: the manifest without digests.
        digests: SHA-256 of parts by name, of those whose writer told it.
        columns: of its files by those of verdicts, where they are called otherwise.

    Raises:
        InputError: it holds results of something else, or other files.
        FileFormatError: its manifest is damaged.
    """

    def __init__(self, out: Place, manifest: Manifest) -> None:
        self.out, self.mark = out, manifest.mark
        there = out.exists()
        if there and not out.is_folder():
            raise InputError(f"--out {out.shown} is a file; results are a folder: name one that is new or empty")
        names = [name for name in out.names() if not SCRATCH_NAME.fullmatch(name)] if there else []
        if MANIFEST not in names:
            if names:
                raise InputError(
                    f"--out {out.shown} holds {names[0]} and no results of outfield score; name a folder of its own"
                )
            out.make_folder()
            head = {"format": FORMAT, "version": VERSION, "outfield": __version__, "torch": str(torch.__version__)}
            out.under(MANIFEST).write_first(_text({**head, **asdict(manifest)}))
        self.head = _read(out.under(MANIFEST))
        self.digests: dict[str, str] = self.head.pop("sha256", {})
        self.columns = {"triggered_by": "rang"} if self.head["version"] == 1 else {}
        self._saved = self._cost = 0.0
        for name, value in asdict(manifest).items():
            if self.head.get(name) != value:
                said = SAYS[name].format(self.head.get(name))
                raise InputError(
                    f"--out {out.shown} holds results of {said}; go on with what they were begun with, or name another folder"
                )

    def missing(self, parts: Sequence[Part]) -> list[Part]:
        """The parts that are not there yet.

        Raises:
            InputError: there are files of parts that do not exist.
        """
        there = {name for name in self.out.names() if name.endswith(".parquet")}
        unknown = sorted(there - {part.file for part in parts})
        if unknown:
            raise InputError(
                f"{self.out.shown} holds {unknown[0]}, which is none of its {len(parts):,} parts; remove it"
            )
        return [part for part in parts if part.file not in there]

    def record(self, name: str, sha256: str) -> None:
        """Keep the digest of a part that was written, in the manifest too unless that was written a moment ago."""
        self.digests[name] = sha256
        if time.monotonic() - self._saved > PAUSE * self._cost:
            self.save()

    def save(self) -> None:
        """Write the manifest with all digests."""
        began = time.monotonic()
        self.out.under(MANIFEST).write(_text({**self.head, "sha256": dict(sorted(self.digests.items()))}))
        self._saved = time.monotonic()
        self._cost = self._saved - began

    def check(self, parts: Sequence[Part]) -> Counts:
        """Read parts back, several at a time: each must be what was written, with every row once and in its place.

        A part without a digest, of an earlier version or of a writer that was killed, is compared with the source alone.

        Raises:
            FileFormatError: parts are damaged or not what they should be; it names some, and says how many there are.
        """
        with ThreadPoolExecutor(8) as pool:
            found = [*pool.map(self._looked_at, parts)]
        wrong = [(part.file, one) for part, one in zip(parts, found, strict=True) if isinstance(one, FileFormatError)]
        if len(wrong) == 1:
            raise FileFormatError(f"{wrong[0][1]}; remove it and run again")
        if wrong:
            names = ", ".join(name for name, _ in wrong[:NAMED]) + ", …" * (len(wrong) > NAMED)
            raise FileFormatError(f"{wrong[0][1]}; there are {len(wrong):,} such files: remove {names} and run again")
        return Counts(*(sum(column) for column in zip(*(one for one in found if isinstance(one, Counts)), strict=True)))

    def _looked_at(self, part: Part) -> Counts | FileFormatError:
        place, expected = self.out.under(part.file), part.files()
        content = place.read()
        sha256 = hashlib.sha256(content).hexdigest()
        if self.digests.get(part.file, sha256) != sha256:
            return FileFormatError(f"{place.shown} is damaged: it is not the file that was written, by its SHA-256")
        try:
            table = whole_parquet(io.BytesIO(content), ["file", "is_ood", "error"])
        except Exception as error:  # a damaged file leads to errors of many kinds
            return FileFormatError(f"{place.shown} cannot be read as Parquet: {error!s:.300}")
        found = table.column("file").to_pylist()
        if (table.schema.metadata or {}).get(MARK) != self.mark.encode():
            return FileFormatError(f"{place.shown} holds results of another guard, source or setting")
        if found != expected:
            return FileFormatError(
                f"{place.shown} has {len(found):,} rows that are not the {len(expected):,} of its part"
            )
        self.digests[part.file] = sha256
        ood, failed = table.column("is_ood").to_pylist(), table.column("error")
        return Counts(len(found), sum(map(bool, ood)), len(found) - failed.null_count)


def _text(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, indent=1).encode()


def _read(place: Place) -> dict[str, Any]:
    try:
        found = json.loads(place.read())
    except ValueError as error:
        raise FileFormatError(f"{place.shown} is damaged: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") not in (1, VERSION):
        raise FileFormatError(f"{place.shown} is no manifest of {FORMAT}, version 1 or {VERSION}")
    return found
