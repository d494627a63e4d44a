"""Guards over any number of rows: a folder of results that can be gone on with, and a last look that nothing is missing."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import NamedTuple

from outfield.cluster.engines import counted, score_here, score_on_ray
from outfield.cluster.listing import listing
from outfield.cluster.manifest import SUMMARY, Manifest, begun, missing
from outfield.cluster.parts import rows_of_a_part
from outfield.cluster.places import Place
from outfield.cluster.scoring import Scorer
from outfield.config import require_choice, require_number
from outfield.errors import InputError
from outfield.files.paths import PathLike, as_path
from outfield.guard.guard import Guard
from outfield.images.skipped import ON_ERROR
from outfield.progress import bar

log = logging.getLogger("outfield")
ENGINES = ("local", "ray")
"""Who scores: this process, or workers of a Ray cluster."""


class Scored(NamedTuple):
    """What a folder of results holds.

    Attributes:
        rows: how many.
        ood: how many of them are OOD.
        failed: how many could not be read.
        parts: how many files there are.
        made: how many of these were made now; the others were there.
    """

    rows: int
    ood: int
    failed: int
    parts: int
    made: int


def score(
    guard: PathLike,
    source: str,
    out: str,
    *,
    engine: str = "local",
    workers: int | None = None,
    threads: int = 1,
    part_rows: int | None = None,
    address: str = "local",
    device: str = "auto",
    on_error: str = "skip",
) -> Scored:
    """Score everything at an address with a guard, and write verdicts as Parquet files into a folder.

    Called again with the same arguments after it was ended in any way, it does what is missing. Rows are cut into parts by the
    source alone, and each part is scored at once on a fixed number of threads: both engines, and any number of workers, give
    the same bits on CPUs of one kind.

    Args:
        guard: its file.
        source: a folder of images, a list of them (``.txt``), or Parquet of features or encoded images; a path or an address.
        out: the folder of results; a path or an address.
        engine: "local" for this process, "ray" for the workers of a Ray cluster.
        workers: how many there are on Ray; as many as there are cores for, if None.
        threads: on which the network runs in each of them.
        part_rows: rows of a part, at most; by the number of rows if None.
        address: of the Ray cluster: "local" starts one here, "auto" finds one that runs.
        device: "cpu", "cuda", or "auto" for GPUs where there are any.
        on_error: "skip" tells in an image's row that it cannot be read; "fail" ends with an error.

    Raises:
        InputError: a setting that cannot be, nothing to score, or a folder that holds results of something else.
        StorageError: a file cannot be read or written, or workers die again and again.
        FileFormatError: a file is damaged.
    """
    require_choice("engine", engine, ENGINES)
    require_choice("on_error", on_error, ON_ERROR)
    require_number("threads", threads, least=1, whole=True)
    if engine == "local" and workers is not None:
        raise InputError(f"workers is {workers}, but they are for the engine ray; the local one is this process")
    content = Place.of(str(as_path(guard))).read()
    if engine == "local":
        model = Guard.load(guard, device)
    target, origin = Place.of(out), Place.of(source)
    if f"{target.address.rstrip('/')}/".startswith(f"{origin.address.rstrip('/')}/"):
        raise InputError(f"--out {out} lies in {source}, which is scored; name a folder outside of it")
    with bar("looking through the source"):
        found = listing(source)
        parts = found.parts(part_rows)
    if engine == "ray" and (target.in_own_memory or origin.in_own_memory):
        raise InputError(
            "files in the memory of this process cannot be seen by workers; use a folder or an object store"
        )
    size = rows_of_a_part(len(found)) if part_rows is None else int(part_rows)
    sha = hashlib.sha256(content).hexdigest()
    manifest = Manifest(sha, found.digest, len(found), len(parts), size, threads, on_error)
    begun(target, manifest)
    todo = missing(parts, target)
    if len(todo) < len(parts):
        log.info("%s of %s parts are there already", f"{len(parts) - len(todo):,}", f"{len(parts):,}")
    with bar("scoring", len(todo), "parts") as advance:
        if todo and engine == "local":
            score_here(Scorer(model, on_error, manifest.mark), todo, target, threads, advance)
        elif todo:
            score_on_ray(
                content,
                todo,
                target,
                workers=workers,
                threads=threads,
                on_error=on_error,
                mark=manifest.mark,
                device=device,
                address=address,
                done=advance,
            )
    with bar("counting results", len(parts), "parts"):
        counts = counted(parts, target, manifest.mark)
    scored = Scored(*counts, len(parts), len(todo))
    target.under(SUMMARY).write(json.dumps(scored._asdict()).encode())
    return scored
