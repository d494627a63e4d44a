"""Micro-batching: one thread runs a guard's network, on whatever images have arrived meanwhile, several requests at once."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outfield.errors import OutfieldError
from outfield.features import FeatureSet
from outfield.guard import Guard, Verdict


@dataclass(eq=False)
class Job:
    """What one request wants to know.

    Attributes:
        guard: That prepared the images, and judges them: another one may have taken its place meanwhile.
        rows: Images that :meth:`outfield.Guard.prepare` gave, stacked (N, h, w, C), or rows of the network.
        deadline: When nobody waits for the answer any more, by the monotonic clock.
        answer: The verdicts, once they are there.
    """

    guard: Guard
    rows: Tensor | FeatureSet
    deadline: float
    answer: Future[list[Verdict]] = field(default_factory=Future)

    def __len__(self) -> int:
        return len(self.rows)


class Batcher:
    """A queue of jobs, and the thread that works on them in their order.

    Args:
        name: Of the guard, for the thread.
        batch: Images at once; a job that alone has more is not divided here.
        wait: Seconds for which a batch that is not full waits while more images are on their way.
        done: Called in the thread with the verdicts of each batch, before anybody has the answer.
    """

    def __init__(self, name: str, batch: int, wait: float, done: Callable[[Guard, Sequence[Verdict]], None]) -> None:
        self.batch, self.wait, self._done = batch, wait, done
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._coming = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"outfield {name}", daemon=True)
        self._thread.start()

    def announce(self, images: int) -> None:
        """So many images more (or fewer) are being decoded: a batch may wait for them."""
        with self._changed:
            self._coming += images
            self._changed.notify()

    def submit(self, job: Job) -> Future[list[Verdict]]:
        """Put a job at the end of the queue.

        Raises:
            RuntimeError: The batcher was stopped.
        """
        with self._changed:
            if self._stopping:
                raise RuntimeError("the batcher was stopped")
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
            now = time.monotonic()
            live = [job for job in jobs if job.deadline > now and job.answer.set_running_or_notify_cancel()]
            for job in jobs:
                if job not in live and not job.answer.done():
                    job.answer.set_exception(TimeoutError())
            if live:
                self._judge(live)

    def _next(self) -> list[Job]:
        """The jobs of the next batch; none once the batcher was stopped and the queue is empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopping)
            if not self._jobs:
                return []
            until = time.monotonic() + self.wait
            while self._fitting() is None and self._coming > 0 and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            count = self._fitting() or len(self._jobs)
            return [self._jobs.popleft() for _ in range(count)]

    def _fitting(self) -> int | None:
        """How many jobs make a full batch, all of one guard and of images; None where more could be added to all there are."""
        images, first = 0, self._jobs[0]
        for count, job in enumerate(self._jobs):
            alone = not isinstance(job.rows, Tensor) or job.guard is not first.guard
            if count and (alone or not isinstance(first.rows, Tensor) or images + len(job) > self.batch):
                return count
            images += len(job)
        return len(self._jobs) if images >= self.batch or not isinstance(first.rows, Tensor) else None

    def _judge(self, jobs: list[Job]) -> None:
        try:
            verdicts = self._verdicts(jobs)
            self._done(jobs[0].guard, verdicts)
        except Exception as error:  # whatever it is, those who wait are told, and the thread goes on
            if len(jobs) > 1 and isinstance(error, OutfieldError):
                for job in jobs:  # only the one whose rows are wrong is told so
                    self._judge([job])
                return
            for job in jobs:
                job.answer.set_exception(error)
            return
        start = 0
        for job in jobs:
            job.answer.set_result(verdicts[start : start + len(job)])
            start += len(job)

    def _verdicts(self, jobs: list[Job]) -> list[Verdict]:
        guard, rows = jobs[0].guard, [job.rows for job in jobs]
        if isinstance(rows[0], FeatureSet):
            return [verdict for one in rows if isinstance(one, FeatureSet) for verdict in guard.judge(one)]
        images = [one for one in rows if isinstance(one, Tensor)]
        return [*guard.judge_pixels(images[0] if len(images) == 1 else torch.cat(images))]
