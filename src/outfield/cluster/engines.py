"""Who scores parts: this process, or the workers of a Ray cluster. Both do the same to each part."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outfield.cluster.connection import connected, workers_of
from outfield.cluster.parts import Part
from outfield.cluster.places import Place
from outfield.cluster.pool import mapped, told
from outfield.cluster.scoring import Counts, Scorer, checked
from outfield.cluster.tries import MOST, Tries
from outfield.energy.priors.workers import limited_worker
from outfield.errors import FileFormatError, InputError, OutfieldError, StorageError
from outfield.extras import library
from outfield.guard.guard import Guard

Done = Callable[[int], None]
"""Called with the number of parts that are done."""
NAMED = 20
"""Damaged files that an error names, at most."""


def score_here(scorer: Scorer, parts: Sequence[Part], out: Place, threads: int, done: Done) -> None:
    """Score parts one after the other in a thread of this process that uses so many cores."""
    with limited_worker("scoring", threads) as pool:
        for number, part in enumerate(parts):
            pool.submit(scorer.write, part, out).result()
            done(number + 1)


class ScoringActor:
    """What a worker holds: the guard, read from its bytes once.

    Args:
        content: a reference to the guard's file in the cluster's memory.
        tries: the cluster's :class:`Tries`.
        out: address of the folder of results.
        threads: on which the network runs.
        on_error: see :class:`Scorer`.
        mark: see :class:`Scorer`.
        device: where the network runs.
    """

    def __init__(self, content: Any, tries: Any, out: str, threads: int, on_error: str, mark: str, device: str) -> None:
        torch.set_num_threads(threads)  # the process is the worker's own
        ray = library("ray", extra="ray")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "worker.guard"
            path.write_bytes(ray.get(content))
            self.scorer = Scorer(Guard.load(path, device), on_error, mark)
        self.ray, self.tries, self.out = ray, tries, Place.of(out)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
        """Write the results of parts."""
        errors = []
        for text in batch["part"]:
            try:
                self._write(Part.of_text(str(text)))
                errors.append("")
            except OutfieldError as error:
                errors.append(told(error))
        return {"error": errors}

    def _write(self, part: Part) -> None:
        if self.ray.get(self.tries.begin.remote(part.number)) > MOST:
            first = part.files()[0]
            raise StorageError(
                f"workers died {MOST} times at the {part.rows:,} rows from {first} on, perhaps for lack of memory; what they "
                "wrote is kept: run the same command again to go on"
            )
        self.scorer.write(part, self.out)


def score_on_ray(
    content: bytes,
    parts: Sequence[Part],
    out: Place,
    *,
    workers: int | None,
    threads: int,
    on_error: str,
    mark: str,
    device: str,
    address: str,
    done: Done,
) -> None:
    """Score parts on workers that hold the guard. A part whose workers die is begun :data:`MOST` times.

    Raises:
        OutfieldError: what a worker raised; or workers died at the same part again and again.
    """
    with connected(address, None if workers is None else workers * threads, len(content)) as ray:
        count, gpus = workers_of(ray, workers, threads), _gpus(ray, device)
        tries = ray.remote(num_cpus=0)(Tries).remote()
        given = (ray.put(content), tries, out.address, threads, on_error, mark, "cuda" if gpus else "cpu")
        items = [{"part": part.to_text()} for part in parts]
        rows = mapped(ray, ScoringActor, given, items, workers=count, cpus=threads, gpus=gpus)
        for number, _ in enumerate(rows):
            done(number + 1)


def _gpus(ray: Any, device: str) -> int:
    """How many GPUs a worker gets."""
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device is {device!r}; workers of Ray take auto, cpu or cuda")
    there = ray.cluster_resources().get("GPU", 0) >= 1
    if device == "cuda" and not there:
        raise InputError("device is 'cuda', but the cluster has no GPU; use cpu or auto")
    return int(there and device != "cpu")


def counted(parts: Sequence[Part], out: Place, mark: str) -> Counts:
    """The rows of all parts, read back several files at a time: that is waiting for files most of the time.

    Raises:
        FileFormatError: files of results are damaged or not what they should be; it names some, and says how many there are.
    """
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda part: checked(part, out, mark), parts)]
    wrong = [(part.file, one) for part, one in zip(parts, found, strict=True) if isinstance(one, FileFormatError)]
    if len(wrong) == 1:
        raise FileFormatError(f"{wrong[0][1]}; remove it and run again")
    if wrong:
        names = ", ".join(name for name, _ in wrong[:NAMED]) + ", …" * (len(wrong) > NAMED)
        raise FileFormatError(f"{wrong[0][1]}; there are {len(wrong):,} such files: remove {names} and run again")
    return Counts(*(sum(column) for column in zip(*(one for one in found if isinstance(one, Counts)), strict=True)))
