"""Micro-batching: one thread runs a guard's network, on whatever images have arrived meanwhile, several requests at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from outfield.features import FeatureSet
from outfield.guard import ExplainedVerdict, Guard, Verdict
from outfield.serve.body import Rows

WAIT = 0.004  # seconds for which a batch that is not full waits for images on their way
COLUMNS_TOLD = 3  # of a row that is OOD, at most


@dataclass(eq=False)
class Job:
    """One request: images or rows, and the guard that judges them."""

    guard: Guard
    rows: Tensor | list[Tensor] | Rows  # images (N, h, w, C), or for a guard of boxes (3, H, W) of sizes of their own
    why: bool = False  # whether the verdicts on rows of a table name columns
    answer: Future[list[Verdict]] = field(default_factory=Future)


class Batcher:
    """A queue of jobs, and the thread that works on them in their order.

    A batch has ``batch`` images at most, unless one job has more. ``done`` is called in the thread with the verdicts of each
    batch, before clients get the answer.
    """

    def __init__(self, name: str, batch: int, done: Callable[[Guard, Sequence[Verdict]], None]) -> None:
        self.batch, self._done = batch, done
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._coming = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"outfield {name}", daemon=True)
        self._thread.start()

    def announce(self, images: int) -> None:
        """More images (or, below 0, fewer) are being decoded: a batch may wait for them."""
        with self._changed:
            self._coming += images
            self._changed.notify()

    def submit(self, job: Job) -> Future[list[Verdict]]:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
        return job.answer

    def stop(self) -> None:
        """Finish every job that was accepted, then end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while jobs := self._next():
            if live := [job for job in jobs if job.answer.set_running_or_notify_cancel()]:  # for which somebody waits
                self._judge(live)

    def _next(self) -> list[Job]:
        """The jobs of the next batch; none once the batcher was stopped and the queue is empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopping)
            if not self._jobs:
                return []
            self._changed.wait_for(lambda: self._fitting() is not None or self._coming <= 0, WAIT)
            count = self._fitting() or len(self._jobs)
            return [self._jobs.popleft() for _ in range(count)]

    def _fitting(self) -> int | None:
        """How many jobs make a full batch, all images of one guard; None where more could be added to all there are."""
        first = self._jobs[0]
        if not isinstance(first.rows, Tensor):
            return 1
        images = 0
        for count, job in enumerate(self._jobs):
            same = isinstance(job.rows, Tensor) and job.guard is first.guard
            if count and (not same or images + len(job.rows) > self.batch):
                return count
            images += len(job.rows)
        return len(self._jobs) if images >= self.batch else None

    def _judge(self, jobs: list[Job]) -> None:
        try:
            verdicts = _verdicts(jobs)
            self._done(jobs[0].guard, verdicts)
        except Exception as error:  # whatever it is, those who wait are told, and the thread goes on
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
            else:  # only the one whose rows are wrong is told so
                for job in jobs:
                    self._judge([job])
            return
        left = iter(verdicts)
        for job in jobs:  # several have images, each as many as verdicts
            job.answer.set_result(verdicts if len(jobs) == 1 else [*islice(left, len(job.rows))])


def _verdicts(jobs: list[Job]) -> list[Verdict]:
    guard, rows = jobs[0].guard, jobs[0].rows
    if isinstance(rows, Tensor):
        return [*guard.judge_pixels(torch.cat([job.rows for job in jobs if isinstance(job.rows, Tensor)]))]
    if isinstance(rows, FeatureSet):
        return [*guard.judge(rows)]
    found: list[Verdict] = [*guard(rows, on_error="skip")]  # type: ignore[misc]
    if not jobs[0].why:
        return found
    reasons = {one.row: one for one in guard.why(rows, most=COLUMNS_TOLD, on_error="skip")}
    return [ExplainedVerdict(**vars(one), why=reasons.get(row)) for row, one in enumerate(found)]
