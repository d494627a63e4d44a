"""What is kept for people to look at: refused inputs, and a random sample of all, written by a thread of its own."""

from __future__ import annotations

import json
import logging
import math
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from outfield.errors import OutfieldError
from outfield.features import TRUTH, FeatureSet
from outfield.files import make_folder
from outfield.guard import Guard, ReviewFolder, Verdict
from outfield.images import as_png
from outfield.serve.body import Rows
from outfield.serve.limits import Keep
from outfield.serve.telemetry import Counts, tell

# Bytes that wait to be written: from half of it on only the sample is taken, from there on nothing
PENDING = 64 * 2**20
ABOUT = 4096  # bytes that an item needs beside its content, at most
PAUSE = 10.0  # seconds without writing after a failure; what comes meanwhile waits, or is dropped
SLACK = 10  # the folder is looked through after each such part of its limit, and may then be full but for one
PAGE_SIZE = 20
SHOWN = ("open", "sample", "all")  # what nobody looked at, that of the random sample, or everything


class ReviewQueue:
    """Keeps inputs of one guard in a folder, up to a limit of bytes; requests never wait for the disk."""

    def __init__(self, name: str, keep: Keep, counts: Counts) -> None:
        self.name, self.keep, self.folder = name, keep, ReviewFolder(keep.folder / name)
        self.told = {"share": keep.share, "sample": keep.sample, "limit": keep.limit}
        make_folder(self.folder.path)
        self._results = {one: counts.kept.labels(name, one) for one in ("kept", "dropped", "failed", "removed")}
        self._chance, self._ended = random.SystemRandom(), threading.Event()
        self._writer = ThreadPoolExecutor(1, f"outfield review {name}")
        self._taken = self._done = 0  # bytes, each counted by one thread
        self._left = 0.0  # bytes that may be written before the folder is looked through

    def offer(self, guard: Guard, inputs: Sequence[bytes | np.ndarray] | Rows, verdicts: Sequence[Verdict]) -> None:
        """Keep those that chance picks, and those that were refused."""
        if isinstance(inputs, FeatureSet) and guard.takes == "images":
            return  # of these there is no image to look at
        for place, verdict in enumerate(verdicts):
            sample = self._chance.random() < self.keep.sample  # whatever the verdict
            wanted = sample or (verdict.refused and self._chance.random() < self.keep.share)
            if verdict.error is not None or not wanted:
                continue
            about = {"guard": self.name, "fingerprint": guard.fingerprint, "verdict": plain(verdict)}
            image: bytes | np.ndarray | None = None
            if isinstance(inputs, Sequence):
                image = inputs[place].copy() if isinstance(inputs[place], np.ndarray) else inputs[place]  # type: ignore[union-attr]
                size = image.nbytes if isinstance(image, np.ndarray) else len(image)
            else:
                about["row"] = _row(guard, inputs, place)
                size = len(json.dumps(about["row"]))
            if self._taken - self._done >= (PENDING if sample else PENDING // 2):
                self._results["dropped"].inc()
            else:
                self._taken += size + ABOUT
                self._writer.submit(self._write, about, image, sample, size + ABOUT)

    def _write(self, about: dict[str, Any], image: bytes | np.ndarray | None, sample: bool, size: int) -> None:
        try:
            content = as_png(image) if isinstance(image, np.ndarray) else image
            needed = size if content is None else len(content) + ABOUT
            if needed > self.keep.limit // SLACK:
                self._results["dropped"].inc()
                return
            if self._left < needed:
                self._results["removed"].inc(self.folder.make_room(self.keep.limit - self.keep.limit // SLACK))
                self._left = self.keep.limit / SLACK
            self.folder.add(about, content, sample)
            self._left -= needed
            self._results["kept"].inc()
        except Exception as error:  # whatever it is, requests go on
            self._results["failed"].inc()
            tell(logging.WARNING, "not kept for review", guard=self.name, error=str(error))
            self._ended.wait(PAUSE)
        finally:
            self._done += size

    def page(self, after: str = "", show: str = SHOWN[0]) -> dict[str, Any]:
        """Some items, the oldest first, those behind ``after``, and where to go on."""
        ids = self.folder.ids()
        open_or_all = [own for own, seen in ids.items() if own[1:] > after[1:] and (show == "all" or not seen)]
        wanted = [own for own in open_or_all if show != "sample" or own[0] == "s"]
        found = []
        for own in wanted[:PAGE_SIZE]:
            try:
                found.append(self.folder.item(own))
            except OutfieldError as error:
                found.append({"id": own, "error": str(error)})
        following = wanted[PAGE_SIZE - 1] if len(wanted) > PAGE_SIZE else None
        sample = [seen for own, seen in ids.items() if own[0] == "s"]
        counts = {"items": len(ids), "reviewed": sum(ids.values())}
        counts |= {"sample": len(sample), "sample_reviewed": sum(sample)}
        return {"guard": self.name, "counts": counts, "items": found, "next": following}

    def stop(self) -> None:
        """Write what waits, then end the thread."""
        self._ended.set()
        self._writer.shutdown()


def plain(one: Verdict) -> dict[str, Any]:
    """A verdict ready for JSON, which knows no infinite numbers: null stands for those."""
    told = one.to_dict()
    for own in told.get("boxes", [told]):
        if isinstance(own["score"], float) and not math.isfinite(own["score"]):
            own["score"] = None
    return told


def _row(guard: Guard, rows: Rows, place: int) -> dict[str, Any]:
    """A row ready for JSON: its fields, or the cells that the guard looks at, null where one is missing."""
    if isinstance(rows, FeatureSet):
        return {name: values[place].tolist() for name, values in rows.tensors().items()}
    found = {}
    for column in guard.reader.columns:
        cell = rows[column.name][place]
        cell = column.cell(cell.item() if isinstance(cell, np.generic) else cell, missing=True, from_text=False)
        found[column.name] = bool(cell) if column.kind == TRUTH and cell is not None else cell
    return found
