"""A sequence of operations that is run as it is on a CPU, and recorded once and replayed on a GPU."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

LANES = 4
"""Parallel branches of a recording."""


class Recorder:
    """Runs a sequence of operations; on a GPU once as it is, then as a CUDA graph recorded from it."""

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator]) -> None:
        self.generators = generators
        self.device, self.on_gpu = device, device.type == "cuda"
        self.runs = 0
        if self.on_gpu:
            self.main, self.sides = torch.cuda.Stream(device), [torch.cuda.Stream(device) for _ in range(LANES)]
            self.busy: set[torch.cuda.Stream] = set()
            self.graph = torch.cuda.CUDAGraph()

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Makes this GPU the current one, so that streams and kernels are its own."""
        return torch.cuda.device(self.device) if self.on_gpu else contextlib.nullcontext()

    def run(self, work: Callable[[], None]) -> None:
        """Do ``work``, or replay what it did: it must be the same in every call."""
        if not self.on_gpu:
            work()
        elif self.runs == 0:
            self._first(work)
        else:
            if self.runs == 1:
                self._record(work)
            self.graph.replay()
        self.runs += 1

    def _first(self, work: Callable[[], None]) -> None:
        """The first step also compiles kernels and prepares libraries, which a recording must not contain."""
        self.main.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.main):
            work()
        torch.cuda.current_stream().wait_stream(self.main)

    def _record(self, work: Callable[[], None]) -> None:
        for generator in self.generators:
            self.graph.register_generator_state(generator)
        # A graph or stream that the garbage collector frees meanwhile would spoil the recording.
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        try:
            # Only this thread's mistakes count: another may be reading the next rows into pinned memory.
            with torch.cuda.graph(self.graph, stream=self.main, capture_error_mode="thread_local"):
                work()
        finally:
            if collecting:
                gc.enable()

    @contextlib.contextmanager
    def beside(self, lane: int = 0) -> Iterator[None]:
        """What happens inside may run at the same time as what follows, or as other lanes, until :meth:`join`."""
        if not self.on_gpu:
            yield
            return
        side = self.sides[lane % len(self.sides)]
        side.wait_stream(torch.cuda.current_stream())
        self.busy.add(side)
        with torch.cuda.stream(side):
            yield

    def join(self) -> None:
        """Wait for what :meth:`beside` began."""
        while self.on_gpu and self.busy:
            torch.cuda.current_stream().wait_stream(self.busy.pop())
