"""One mutant against its tests."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mutation.attempt import Attempt
from mutation.choice import Choice, attempts
from mutation.measured import Test, environment, seconds_of
from mutation.mutant import Mutant
from mutation.project import Project
from mutation.server import Ended, Server

PASSED = (0, 5)  # pytest's exit codes: all passed, and no tests left


@dataclass(frozen=True)
class Result:
    """What became of a mutant: caught, survived, timed out (which counts as caught) or equivalent."""

    key: str
    file: str
    line: int
    kind: str
    before: str
    after: str
    status: str
    tests: int = 0
    seconds: float = 0.0
    caught_by: str = ""
    reason: str = ""

    def record(self) -> dict[str, Any]:
        return asdict(self)


def result(mutant: Mutant, status: str, **more: Any) -> Result:
    """The result of a mutant, with how often, how long and by what it was tried."""
    return Result(mutant.key, mutant.file, mutant.line, mutant.kind, mutant.before, mutant.after, status, **more)


@dataclass
class Trials:
    """Tries mutants, several at once.

    A failure counts only if the same test passes in the same way without the change. That is tried once for
    every test that catches something; a test that fails then is left out from there on.
    """

    project: Project
    choice: Choice
    server: Server
    jobs: int

    def __post_init__(self) -> None:
        self._passes_unchanged: dict[tuple[str, ...], bool] = {}
        self._environment = environment(self.project)

    def run(self, mutants: list[Mutant]) -> Iterator[Result]:
        """The results, in the order in which they become known."""
        waiting = [self._trial(mutant) for mutant in reversed(mutants)]
        running: dict[int, Generator[Attempt, Ended, Result]] = {}
        while waiting or running:
            while waiting and len(running) < self.jobs:
                trial = waiting.pop()
                try:
                    running[self.server.start(next(trial))] = trial
                except StopIteration as end:
                    yield end.value
            if not running:
                continue
            number, ended = self.server.wait()
            trial = running.pop(number)
            try:
                running[self.server.start(trial.send(ended))] = trial
            except StopIteration as end:
                yield end.value

    def _attempt(self, mutant: Mutant, source: bytes, tests: list[Test]) -> Attempt:
        expected = seconds_of(tests)
        return Attempt(
            root=self.project.root,
            environment=self._environment,
            seconds=20 + 4 * expected,
            wall=60 + 8 * expected,
            module=self.project.module(mutant.file),
            source=source,
            tests=tuple(test.id for test in tests),
        )

    def _trial(self, mutant: Mutant) -> Generator[Attempt, Ended, Result]:
        changed = mutant.apply(self.project.read(mutant.file))
        ran: list[Test] = []
        for tests in attempts(self.choice.for_mutant(mutant)):
            left = [test for test in tests if self._passes_unchanged.get((test.id,), True)]
            while left:
                ended = yield self._attempt(mutant, changed, left)
                if ended.code in PASSED:
                    ran += left
                    break
                if ended.code is None:
                    return _result(mutant, "timed out", ran + left)
                by = ended.note.get("test", "")
                blamed = [test for test in left if test.id == by] or left
                if (yield from self._pass_unchanged(mutant, blamed)):
                    return _result(mutant, "caught", ran + left, caught_by=by, reason=ended.reason)
                left = [test for test in left if test not in blamed]
        return _result(mutant, "survived", ran)

    def _pass_unchanged(self, mutant: Mutant, tests: list[Test]) -> Generator[Attempt, Ended, bool]:
        names = tuple(test.id for test in tests)
        if names not in self._passes_unchanged:
            ended = yield self._attempt(mutant, self.project.read(mutant.file), tests)
            self._passes_unchanged[names] = ended.code in PASSED
        return self._passes_unchanged[names]


def _result(mutant: Mutant, status: str, tests: list[Test], **more: str) -> Result:
    return result(mutant, status, tests=len(tests), seconds=round(seconds_of(tests), 3), **more)
