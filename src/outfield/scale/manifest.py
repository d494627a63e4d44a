"""Results in a folder, part by part, and the manifest that says which are there: what was killed is gone on with."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from outfield.errors import FileFormatError, InputError, as_ours
from outfield.features import whole_parquet
from outfield.files import SCRATCH_NAME
from outfield.progress import bar
from outfield.scale.catalog import Part
from outfield.scale.storage import Place, digest
from outfield.version import __version__

# Readers of folders of Parquet files leave names out that begin with an underscore.
MANIFEST, SUMMARY = "_manifest.json", "_summary.json"
# Version 1, of Outfield 0.1.0, has no digests, and a column ``rang`` for ``triggered_by``; it is gone on with as it is.
FORMAT, VERSION = "outfield scores", 2
MARK = b"outfield"  # the key in a Parquet file's metadata under which a part says what it belongs to
PAUSE = 20  # seconds between two writings of the manifest, for each second that one takes
NAMED = 20  # damaged files that an error names, at most
SAYS = {
    "guard": "another guard", "source": "another source, or files of it that were changed since",
    "rows": "another number of rows", "parts": "another number of parts",
    "part_rows": "parts of {} rows (--part-rows)", "threads": "{} threads a worker (--threads)",
    "on_error": "--on-error {}",
}  # fmt: skip


class Results:
    """A folder of results that is begun, or gone on with; ``digests`` are the SHA-256 of parts by name.

    Who goes on must agree with all that they are ``of``; each part bears the ``mark``, a digest of it.
    """

    def __init__(self, out: Place, of: Mapping[str, str | int]) -> None:
        self.out, self.mark = out, digest(*(f"{name}={value}" for name, value in of.items()))
        there = out.exists()
        if there and not out.is_folder():
            raise InputError(f"--out {out.shown} is a file; results are a folder: name one that is new or empty")
        names = [name for name in out.names() if not SCRATCH_NAME.fullmatch(name)] if there else []
        if MANIFEST not in names:
            if names:
                what = f"--out {out.shown} holds {names[0]} and no results of outfield score"
                raise InputError(f"{what}; name a folder of its own")
            out.make_folder()
            head = {"format": FORMAT, "version": VERSION, "outfield": __version__, "torch": str(torch.__version__)}
            out.under(MANIFEST).write_first(_text({**head, **of}))
        self.head = _read(out.under(MANIFEST))
        self.digests: dict[str, str] = self.head.pop("sha256", {})
        self.columns = {"triggered_by": "rang"} if self.head["version"] == 1 else {}
        self._saved = self._cost = 0.0
        for name, value in of.items():
            if self.head.get(name) != value:
                what = f"--out {out.shown} holds results of {SAYS[name].format(self.head.get(name))}"
                raise InputError(f"{what}; go on with what they were begun with, or name another folder")

    def missing(self, parts: Sequence[Part]) -> list[Part]:
        there = {name for name in self.out.names() if name.endswith(".parquet")}
        unknown = sorted(there - {part.file for part in parts})
        if unknown:
            what = f"{self.out.shown} holds {unknown[0]}, which is none of its {len(parts):,} parts"
            raise InputError(f"{what}; remove it")
        return [part for part in parts if part.file not in there]

    def keep(self, parts: Sequence[Part], written: Iterable[tuple[str, str]]) -> None:
        """Keep names and digests of parts as they are written, in the manifest too unless that was written a moment ago."""
        with bar("scoring", len(parts), "parts") as advance:
            for number, (name, sha256) in enumerate(written):
                self.digests[name] = sha256
                if time.monotonic() - self._saved > PAUSE * self._cost:
                    self.save()
                advance(number + 1)

    def save(self) -> None:
        began = time.monotonic()
        self.out.under(MANIFEST).write(_text({**self.head, "sha256": dict(sorted(self.digests.items()))}))
        self._saved = time.monotonic()
        self._cost = self._saved - began

    def check(self, parts: Sequence[Part]) -> list[int]:
        """Read parts back, several at a time, as they were written; gives the numbers of rows, of OOD and of failed ones."""
        with ThreadPoolExecutor(8) as pool:
            found = [*pool.map(self._looked_at, parts)]
        wrong = [(part.file, one) for part, one in zip(parts, found, strict=True) if isinstance(one, FileFormatError)]
        if wrong:
            names = ", ".join(name for name, _ in wrong[:NAMED]) + ", …" * (len(wrong) > NAMED)
            those = "remove it" if len(wrong) == 1 else f"there are {len(wrong):,} such files: remove {names}"
            raise FileFormatError(f"{wrong[0][1]}; {those} and run again")
        return [sum(column) for column in zip(*(one for one in found if isinstance(one, tuple)), strict=True)]

    def _looked_at(self, part: Part) -> tuple[int, int, int] | FileFormatError:
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
            told = f"{place.shown} has {len(found):,} rows that are not the {len(expected):,} of its part"
            return FileFormatError(told)
        self.digests[part.file] = sha256
        ood, failed = table.column("is_ood").to_pylist(), table.column("error")
        return len(found), sum(map(bool, ood)), len(found) - failed.null_count


def _text(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, indent=1).encode()


def _read(place: Place) -> dict[str, Any]:
    with as_ours(f"{place.shown} is damaged", FileFormatError, ValueError):
        found = json.loads(place.read())
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") not in (1, VERSION):
        raise FileFormatError(f"{place.shown} is no manifest of {FORMAT}, version 1 or {VERSION}")
    return found
