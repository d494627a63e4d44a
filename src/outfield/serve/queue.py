"""What is kept for people to look at: refused inputs, and a random sample of all, written by a thread of its own."""

from __future__ import annotations

import json
import logging
import math
import random
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from outfield.errors import OutfieldError
from outfield.features import TRUTH, FeatureSet
from outfield.files import make_folder
from outfield.guard import Guard, ReviewFolder, Verdict
from outfield.images import as_png
from outfield.serve.limits import Keep
from outfield.serve.telemetry import Counts, tell

PENDING = 64 * 2**20
"""Bytes that wait to be written: from half of it on no more of what was refused is taken, from there on nothing."""
ABOUT = 4096
"""Bytes that an item needs beside its content, at most."""
PAUSE = 10.0
"""Seconds without writing after a failure; what comes meanwhile waits, and is then dropped whatever its size."""
SLACK = 10
"""The folder is looked through after each such part of its limit, and may then be full but for one."""
PAGE_SIZE = 20
SHOWN = ("open", "sample", "all")
"""What is listed: what nobody looked at, that of the random sample, or everything."""


class Item(NamedTuple):
    """An input that waits to be written: what is known of it, and the image, as it came or as pixels."""

    about: dict[str, Any]
    image: bytes | np.ndarray | None
    sample: bool
    size: int


class ReviewQueue:
    """Keeps inputs of one guard in a folder, up to a limit of bytes; requests never wait for the disk."""

    def __init__(self, name: str, keep: Keep, counts: Counts) -> None:
        self.name, self.keep, self.folder = name, keep, ReviewFolder(keep.folder / name)
        make_folder(self.folder.path)
        self._results = {one: counts.kept.labels(name, one) for one in ("kept", "dropped", "failed", "removed")}
        self._chance = random.SystemRandom()
        self._waiting: deque[Item] = deque()
        self._bytes, self._left = 0, 0.0  # that wait, and that may be written before the folder is looked through
        self._changed, self._stopping = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name=f"outfield review {name}", daemon=True)
        self._thread.start()

    def offer(
        self,
        guard: Guard,
        inputs: Sequence[bytes | np.ndarray] | FeatureSet | Mapping[str, np.ndarray],
        verdicts: Sequence[Verdict],
    ) -> None:
        """Keep those that chance picks, and those that were refused."""
        if isinstance(inputs, FeatureSet) and guard.takes == "images":
            return  # of these there is no image to look at
        for place, verdict in enumerate(verdicts):
            sample = self._chance.random() < self.keep.sample  # whatever the verdict
            if verdict.error is None and (sample or (verdict.refused and self._chance.random() < self.keep.share)):
                about = {"guard": self.name, "fingerprint": guard.fingerprint, "verdict": plain(verdict)}
                if isinstance(inputs, Sequence):
                    image = inputs[place]
                    size = image.nbytes if isinstance(image, np.ndarray) else len(image)
                    own = image.copy() if isinstance(image, np.ndarray) else image  # without the rest of the request
                    self._put(Item(about, own, sample, size + ABOUT))
                else:
                    row = _row(guard, inputs, place)
                    self._put(Item({**about, "row": row}, None, sample, len(json.dumps(row)) + ABOUT))

    def page(self, after: str = "", show: str = SHOWN[0]) -> dict[str, Any]:
        """Some items, the oldest first, those behind ``after``, and where to go on."""
        ids = self.folder.ids()
        wanted = [
            own for own, seen in ids.items()
            if own[1:] > after[1:] and (show == "all" or not seen) and (show != "sample" or own[0] == "s")
        ]  # fmt: skip
        found = []
        for own in wanted[:PAGE_SIZE]:
            try:
                found.append(self.folder.item(own))
            except OutfieldError as error:
                found.append({"id": own, "error": str(error)})
        following = wanted[PAGE_SIZE - 1] if len(wanted) > PAGE_SIZE else None
        return {"guard": self.name, "counts": self.folder.counts(ids)._asdict(), "items": found, "next": following}

    def about(self) -> dict[str, Any]:
        """What is kept, for people."""
        return {"share": self.keep.share, "sample": self.keep.sample, "limit": self.keep.limit}

    def stop(self) -> None:
        """Write what waits, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _put(self, item: Item) -> None:
        with self._changed:
            if self._bytes >= (PENDING if item.sample else PENDING // 2):
                self._results["dropped"].inc()
                return
            self._waiting.append(item)
            self._bytes += item.size
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if not self._waiting:
                    return
                item = self._waiting[0]
            try:
                self._results[self._write(item)].inc()
            except (OutfieldError, OSError) as error:
                self._results["failed"].inc()
                tell(logging.WARNING, "not kept for review", guard=self.name, error=str(error))
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, PAUSE)
            with self._changed:
                self._waiting.popleft()
                self._bytes -= item.size

    def _write(self, item: Item) -> str:
        image = as_png(item.image) if isinstance(item.image, np.ndarray) else item.image
        size = item.size if image is None else len(image) + ABOUT
        if size > self.keep.limit // SLACK:
            return "dropped"
        if self._left < size:
            room = self.keep.limit - self.keep.limit // SLACK
            self._results["removed"].inc(self.folder.make_room(room)[1])
            self._left = self.keep.limit / SLACK
        self._left -= self.folder.add(item.about, image, item.sample)
        return "kept"


def plain(one: Verdict) -> dict[str, Any]:
    """A verdict ready for JSON, which knows no infinite numbers: null stands for those."""
    told = one.to_dict()
    if isinstance(told["score"], float) and not math.isfinite(told["score"]):
        told["score"] = None
    return told


def _row(guard: Guard, rows: FeatureSet | Mapping[str, np.ndarray], place: int) -> dict[str, Any]:
    """A row ready for JSON: its fields, or the cells that the guard looks at, null where one is missing."""
    if isinstance(rows, FeatureSet) or guard.table is None:
        return {name: values[place].tolist() for name, values in rows.tensors().items()}  # type: ignore[union-attr]
    found = {}
    for column in guard.table.columns:
        cell = rows[column.name][place]
        cell = column.cell(cell.item() if isinstance(cell, np.generic) else cell, missing=True, from_text=False)
        found[column.name] = bool(cell) if column.kind == TRUTH and cell is not None else cell
    return found
