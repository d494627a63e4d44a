"""Run the fuzzer for long: odd inputs by the thousand on the public surface.

    python tools/fuzz.py --count 20000 --seed 0      # inputs 0 to 19,999 of a sequence
    python tools/fuzz.py --only damaged:123          # one of them again

Cases run in processes of their own, so that a crash or a hang costs one case and is reported like any other failure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

CHUNK = 150
"""Cases that one process runs before a fresh one takes over."""
PATIENCE = 90.0
"""Seconds without a sign of life after which a process is ended."""

Case = tuple[str, int]


def work(cases: list[Case], out: Connection) -> None:
    """Run cases one after the other, telling of each when it begins and how it ended."""
    import torch
    from tests.fuzz.cases import run_case

    torch.set_num_threads(1)
    for surface, seed in cases:
        out.send(("begin", surface, seed, None))
        out.send(("end", surface, seed, run_case(surface, seed)))


class Worker:
    """A process that runs a chunk of cases, restarted behind the case that ended it."""

    def __init__(self, cases: list[Case]) -> None:
        self.left = cases
        self.now: Case | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(self.left, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.seen = time.monotonic()

    def results(self) -> list[tuple[Case, str | None]]:
        """What ended since the last call."""
        found: list[tuple[Case, str | None]] = []
        try:
            while self.pipe.poll(0.05):
                what, surface, seed, failure = self.pipe.recv()
                self.seen = time.monotonic()
                if what == "begin":
                    self.now = (surface, seed)
                else:
                    found.append(((surface, seed), failure))
                    self.left = self.left[1:]
        except EOFError:
            self.process.join()
        silent = time.monotonic() - self.seen > PATIENCE
        if self.left and (silent or not self.process.is_alive()):
            if silent:
                self.process.kill()
                self.process.join()
            reason = "hung and was ended" if silent else f"ended the process (exit code {self.process.exitcode})"
            found.append((self.left[0], f"the case {reason}"))
            self.left = self.left[1:]
            if self.left:
                self._start()
        return found


def main() -> int:
    """Run what the command line asks for; 1 where anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="another seed, other inputs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--surfaces", nargs="*", help="only these")
    parser.add_argument("--only", help="one case, SURFACE:SEED")
    arguments = parser.parse_args()
    from tests.fuzz.cases import SURFACES, run_case

    if arguments.only:
        surface, _, seed = arguments.only.partition(":")
        print(run_case(surface, int(seed)) or "all is well")
        return 0
    names = arguments.surfaces or list(SURFACES)
    first = arguments.seed * 10_000_000
    cases = [(names[i % len(names)], first + i // len(names)) for i in range(arguments.count)]
    chunks = [cases[i : i + CHUNK] for i in range(0, len(cases), CHUNK)]
    failures: dict[Case, str] = {}
    done: Counter[str] = Counter()
    workers: list[Worker] = []
    told = began = time.monotonic()
    while chunks or workers:
        while chunks and len(workers) < arguments.jobs:
            workers.append(Worker(chunks.pop(0)))
        for worker in workers:
            for case, failure in worker.results():
                done[case[0]] += 1
                if failure is not None:
                    failures[case] = failure
                    print(f"\n{case[0]}:{case[1]}\n{failure}", flush=True)
        workers = [worker for worker in workers if worker.left]
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"{done.total():,} of {len(cases):,} inputs, {len(failures)} failures", flush=True)
    seconds = time.monotonic() - began
    print(f"\n{done.total():,} inputs on {len(done)} surfaces in {seconds:.0f} s: {len(failures)} failures")
    for surface, count in sorted(done.items()):
        print(f"  {surface:12} {count:6,} inputs, {sum(case[0] == surface for case in failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
