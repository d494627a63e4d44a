"""A guard that is served: its file, the thread that runs it, what it has seen, and how another takes its place."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from outfield.errors import InputError, OutfieldError
from outfield.guard import Guard, Verdict
from outfield.scores import Drift, same
from outfield.serve.batcher import Batcher
from outfield.serve.limits import Settings
from outfield.serve.queue import ReviewQueue
from outfield.serve.telemetry import Counts, tell


class Model:
    """One guard: its file, what it has seen (``drift``, kept in ``state`` if that is a file), and images ``accepted`` now."""

    def __init__(self, path: Path, guard: Guard, settings: Settings, counts: Counts, state: Path | None) -> None:
        self.name = name = path.stem
        self.path, self.guard, self.settings, self.counts = path, guard, settings, counts
        self.state, self.drift = state, _restored(state, guard, name)
        self.accepted = 0
        self._saved, self._stamp = self.drift.summary()["samples"], stamp(path)
        self._reloading, self._lots = threading.Lock(), random.Random(0)
        counts.add_guard(self)
        self.queue = None if settings.keep is None else ReviewQueue(name, settings.keep, counts)
        self.batcher = Batcher(name, settings.limits.batch, self._seen)

    def _seen(self, guard: Guard, verdicts: Sequence[Verdict]) -> None:
        judged = [scored for one in verdicts if (scored := [row for row in one.rows if row.score is not None])]
        self.counts.see(self.name, [*chain(*judged)])
        drift = self.drift
        if not judged or guard.watched is not drift.threshold:
            return  # of the latter: the guard was replaced meanwhile, and another test has begun
        alarm = drift.alarm
        drawn = [self._lots.choice(rows) for rows in judged]  # boxes of one image are alike: one tells as much as all
        if drift.update(np.array([one.score for one in drawn])) and not alarm:
            tell(logging.WARNING, "drift alarm", guard=self.name, samples=drift.summary()["samples"])

    def reload(self, even_unchanged: bool = False) -> bool | None:
        """Read the file again and let its guard take the place of this one, which finishes what it was given.

        A file that cannot be read, or holds no guard, changes nothing. Gives whether the guard was replaced; None where the file
        looks as it did the last time, unless ``even_unchanged``.
        """
        with self._reloading:
            found = stamp(self.path)
            if found is None or (found == self._stamp and not even_unchanged):
                return None
            self._stamp = found
            try:
                guard = ready_guard(self.path, self.settings)
            except OutfieldError as error:
                self.counts.reloads.labels(self.name, "failed").inc()
                tell(logging.ERROR, "reload failed", guard=self.name, error=str(error))
                return False
            drift = self.drift
            if drift.threshold is not None and same(drift.threshold, guard.watched):
                guard.watched = drift.threshold  # equal; what was seen goes on
            else:
                drift = Drift(guard.watched)
                tell(logging.WARNING, "drift begins anew", guard=self.name, samples=self.drift.summary()["samples"])
            self.guard, self.drift = guard, drift
            self.counts.reloads.labels(self.name, "replaced").inc()
            tell(logging.INFO, "reloaded", guard=self.name, network=guard.fingerprint[:16])
            return True

    def save(self) -> None:
        """Write what was seen, if there is anything new; a file that cannot be written is logged."""
        seen = self.drift.summary()["samples"]
        if self.state is None or seen == self._saved:
            return
        try:
            self.drift.save(self.state)
            self._saved = seen
        except OutfieldError as error:
            tell(logging.ERROR, "drift state not saved", guard=self.name, error=str(error))

    def stop(self) -> None:
        """Finish what was accepted, and write what was seen."""
        self.batcher.stop()
        if self.queue is not None:
            self.queue.stop()
        self.save()


def ready_guard(path: Path, settings: Settings) -> Guard:
    """The guard of a file, after it has judged an input alone and in a full batch."""
    guard = Guard.load(path, settings.device)
    for count in (1, settings.limits.batch):
        guard.warm_up(count)
    return guard


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written again; None where there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def load_models(paths: Sequence[Path], settings: Settings, counts: Counts) -> dict[str, Model]:
    """The guards of some files, by the names of the files without their endings."""
    names = [path.stem for path in paths]
    if not paths or len({*names}) < len(names):
        raise InputError(f"guards are served by the names of their files, which must differ: {sorted(names)}")
    guards = [ready_guard(path, settings) for path in paths]
    boxes = [name for name, guard in zip(names, guards, strict=True) if guard.reader.scored == "boxes"]
    if settings.keep is not None and boxes:
        what = f"--keep is for guards that outfield guard update takes, but {boxes[0]} judges boxes"
        raise InputError(f"{what}; serve it without --keep")
    state, found = settings.drift_state, {}
    for name, path, guard in zip(names, paths, guards, strict=True):
        own = state.with_name(f"{state.stem}-{name}{state.suffix}") if state is not None and len(names) > 1 else state
        found[name] = Model(path, guard, settings, counts, own)
    return found


def _restored(state: Path | None, guard: Guard, name: str) -> Drift:
    """What the file holds, or a new beginning; a file of another guard, or a broken one, is moved aside."""
    if state is None or not state.exists():
        return Drift(guard.watched)
    try:
        drift = Drift.load(state)
        if drift.threshold is None or not same(drift.threshold, guard.watched):
            raise InputError(f"{state} was kept with another threshold")
    except OutfieldError as error:
        aside = state.with_name(f"{state.stem}.before{state.suffix}")
        os.replace(state, aside)
        tell(logging.WARNING, "drift begins anew", guard=name, error=str(error), kept_as=str(aside))
        return Drift(guard.watched)
    guard.watched = drift.threshold
    return drift
