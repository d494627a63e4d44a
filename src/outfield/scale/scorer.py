"""Guards over any number of rows, by this process or by the workers of a Ray cluster; what was done before is gone on with."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from outfield.config import require_choice, require_number
from outfield.errors import FileFormatError, InputError, OutfieldError, StorageError, as_ours
from outfield.extras import library
from outfield.features import arrow
from outfield.files import PathLike, as_path
from outfield.guard import COLUMNS, Guard, Verdict
from outfield.images import BYTES_AT_MOST, ON_ERROR, ImageSource, decode
from outfield.modes import limited_worker
from outfield.progress import bar
from outfield.scale.catalog import Part, catalog, default_part_rows
from outfield.scale.cluster import connected, error_text, mapped, worker_count
from outfield.scale.manifest import MARK, SUMMARY, Results
from outfield.scale.storage import Place

log = logging.getLogger("outfield")
# Image files read ahead, and at the same time: object stores take long to begin an answer
WINDOW, FILES_AT_ONCE = 64, 16


class Scored(NamedTuple):
    """What a folder of results holds."""

    rows: int
    ood: int
    failed: int  # rows that could not be read
    parts: int
    made: int  # parts that were made now; the others were there


def score_files(
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
    the same bits on CPUs of one kind. The SHA-256 of every part is kept, and checked before and after the work.

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
    """
    require_choice("engine", engine, ("local", "ray"))
    require_choice("on_error", on_error, ON_ERROR)
    require_number("threads", threads, least=1, whole=True)
    if engine == "local" and workers is not None:
        raise InputError(f"workers is {workers}, but they are for the engine ray; the local one is this process")
    content = Place.of(str(as_path(guard))).read()
    model = Guard.load(guard, device) if engine == "local" else None
    target, origin = Place.of(out), Place.of(source)
    if f"{target.address.rstrip('/')}/".startswith(f"{origin.address.rstrip('/')}/"):
        raise InputError(f"--out {out} lies in {source}, which is scored; name a folder outside of it")
    if engine == "ray" and (target.in_own_memory or origin.in_own_memory):
        what = "files in the memory of this process cannot be seen by workers"
        raise InputError(f"{what}; use a folder or an object store")
    with bar("looking through the source"):
        found = catalog(source)
    size = default_part_rows(len(found)) if part_rows is None else part_rows
    parts = found.parts(size)
    sha256 = hashlib.sha256(content).hexdigest()
    of: dict[str, str | int] = {"guard": sha256, "source": found.digest, "rows": len(found), "parts": len(parts)}
    results = Results(target, {**of, "part_rows": size, "threads": threads, "on_error": on_error})
    settings = on_error, results.mark, results.columns
    todo = results.missing(parts)
    if len(todo) < len(parts):
        log.info("%s of %s parts are there already", f"{len(parts) - len(todo):,}", f"{len(parts):,}")
        with bar("checking results"):
            results.check([part for part in parts if part not in {*todo}])
    try:
        if model is not None:
            scorer = Scorer(model, target, *settings)
            with limited_worker("scoring", threads) as pool:
                results.keep(todo, ((part.file, pool.submit(scorer.write, part).result()) for part in todo))
        elif todo:
            with connected(address, None if workers is None else workers * threads, len(content)) as ray:
                _score_on_ray(ray, content, todo, results, settings, workers, threads, device)
        with bar("checking results", len(parts), "parts"):
            rows, ood, failed = results.check(parts)
    finally:
        results.save()
    scored = Scored(rows, ood, failed, len(parts), len(todo))
    target.under(SUMMARY).write(json.dumps(scored._asdict()).encode())
    return scored


def _score_on_ray(
    ray: Any, content: bytes, parts: Sequence[Part], results: Results, settings: tuple[Any, ...], workers: int | None,
    threads: int, device: str,
) -> None:  # fmt: skip
    """Score parts on workers that hold the guard."""
    count, gpus = worker_count(ray, workers, threads), _gpus(ray, device)
    given = ray.put(content), "cuda" if gpus else "cpu", threads, results.out.address, *settings
    items = [{"part": part.to_text()} for part in parts]
    rows = mapped(ScoringActor, given, items, count, threads, gpus)
    try:
        results.keep(parts, ((row["file"], row["sha256"]) for row in rows))
    except ray.exceptions.RayError as error:
        first = results.missing(parts)[0]
        raise StorageError(
            f"workers died or failed, perhaps for lack of memory: {error!s:.500}; the first part that is missing is "
            f"{first.file}, {first.rows:,} rows from {first.files()[0]} on. What was written is kept: run the command again"
        ) from error


def _gpus(ray: Any, device: str) -> int:
    """How many GPUs a worker gets."""
    require_choice("device", device, ("auto", "cpu", "cuda"))
    there = ray.cluster_resources().get("GPU", 0) >= 1
    if device == "cuda" and not there:
        raise InputError("device is 'cuda', but the cluster has no GPU; use cpu or auto")
    return int(there and device != "cpu")


class Scorer:
    """A guard that scores parts into a folder; ``mark`` and ``columns`` are of :class:`Results`."""

    def __init__(self, guard: Guard, out: Place, on_error: str, mark: str, columns: Mapping[str, str]) -> None:
        self.guard, self.out, self.on_error, self.mark, self.columns = guard, out, on_error, mark, columns

    def write(self, part: Part) -> str:
        """Score a part, write its results, and give their SHA-256; a part that is there already is left as it is."""
        place = self.out.under(part.file)
        if place.exists():
            content = place.read()
        else:
            content = self.as_parquet(self.verdicts(part))
            place.write(content)
        return hashlib.sha256(content).hexdigest()

    def verdicts(self, part: Part) -> list[Verdict]:
        """A verdict on each row of a part, in order, whose file is what the row is called."""
        files = part.files()
        if part.holds_images():
            found = [*self.guard.stream(PartImages(part, files), on_error=self.on_error, workers=0)]
        else:
            rows = part.features([*self.guard.widths])
            with as_ours(f"{part.prefix}, rows {part.start:,} to {part.stop:,}", None, OutfieldError):
                found = [*self.guard.judge(rows, files)]
        if not part.names and part.place().stamp() != part.stamp:
            raise FileFormatError(f"{part.prefix} was changed while it was scored; score it anew, into another folder")
        return found

    def as_parquet(self, verdicts: Sequence[Verdict]) -> bytes:
        """Verdicts as a Parquet file that bears the mark, with the same columns whatever the verdicts are."""
        pyarrow, columns, file = arrow(), {}, io.BytesIO()
        kinds = dict.fromkeys(("file", "class_name", "triggered_by", "error", "group", "why_not"), "string")
        kinds |= {"is_ood": "bool", "accept": "bool", "class_index": "int64"}
        for name in (*COLUMNS, *(() if self.guard.decision is None else self.guard.decision.columns)):
            cells = [getattr(one, name) for one in verdicts]
            columns[self.columns.get(name, name)] = pyarrow.array(cells, kinds.get(name, "float64"))
        for member in self.guard.members:
            columns[f"p_value {member}"] = pyarrow.array([one.members.get(member) for one in verdicts], "float64")
        table = pyarrow.table(columns).replace_schema_metadata({MARK: self.mark.encode()})
        pyarrow.parquet.write_table(table, file, write_page_checksum=True)
        return file.getvalue()


class ScoringActor(Scorer):
    """What a worker of Ray Data holds: the guard, read from its bytes in the cluster's memory once."""

    def __init__(self, content: Any, device: str, threads: int, out: str, *settings: Any) -> None:
        torch.set_num_threads(threads)  # the process is the worker's own
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "worker.guard"
            path.write_bytes(library("ray", extra="ray").get(content))
            super().__init__(Guard.load(path, device), Place.of(out), *settings)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
        (text,) = batch["part"]
        part, sha256, error = Part.of_text(str(text)), "", ""
        try:
            sha256 = self.write(part)
        except OutfieldError as problem:
            error = error_text(problem)
        return {"file": [part.file], "sha256": [sha256], "error": [error]}


class PartImages(ImageSource):
    """The images of a part, each decoded when the guard asks for it."""

    def __init__(self, part: Part, names: Sequence[str]) -> None:
        self.part, self.names, self.name = part, tuple(names), part.file
        self.files = self.names
        self.labels, self.classes = None, None
        self._first = 0
        self._window: Sequence[bytes | OutfieldError | None] = () if part.names else part.encoded_images()

    def __len__(self) -> int:
        return self.part.rows

    def __getitem__(self, index: int) -> np.ndarray:
        if not self._first <= index < self._first + len(self._window):
            self._first, window = index, slice(index, index + WINDOW)
            with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
                self._window = [*pool.map(_content, self.part.addresses()[window], self.files[window])]
        content = self._window[index - self._first]
        if isinstance(content, OutfieldError):
            raise content
        if content is None:
            raise FileFormatError(f"{self.files[index]} is empty")
        return decode(content, self.files[index])


def _content(address: str, shown: str) -> bytes | OutfieldError:
    """What an image file holds, or why it cannot be read: an address that leads nowhere is the error of its own row alone."""
    try:
        content = replace(Place.of(address), shown=shown).read(BYTES_AT_MOST + 1)
    except OutfieldError as error:
        return error
    if len(content) > BYTES_AT_MOST:
        return StorageError(f"cannot read {shown}: an image may have {BYTES_AT_MOST:,} bytes")
    return content
