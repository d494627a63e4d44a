"""Which tests are run against a mutant, and in which order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from mutation.measured import Test, seconds_of
from mutation.mutant import Lines, Mutant
from mutation.project import Project
from mutation.sites import line_mask

FIRST = (8, 10.0)  # tests and seconds of the first attempt, which catches most mutants
SECOND = (40, 60.0)
LONGEST = 150.0  # seconds of tests, all attempts together
SECONDS_A_LINE = 0.0005  # what it counts against a test that it runs one more line
TABLES = ("tests/test_defaults.py",)
FOREIGN = 3.0  # how much less the tests of another room are liked


class Choice:
    """Orders the tests that may notice a mutant, the cheapest and most specific first."""

    def __init__(self, project: Project, tests: list[Test]) -> None:
        self.project = project
        self.tests = {test.id: test for test in tests}
        self._by_source: dict[str, list[Test]] = defaultdict(list)
        for test in tests:
            for source in test.lines:
                self._by_source[source].append(test)

    def for_mutant(self, mutant: Mutant) -> list[Test]:
        """The tests that run the changed place.

        A place that runs at import has no such tests. Then, one after the other: those that hold defaults and limits
        against a table, those that run the function or class around it, any function of the module, those of the
        room's folder, and those that run a module which mentions the changed name. A place that no test was seen to
        run falls back to the room's folder.
        """
        groups: list[Iterable[Test]]
        if mutant.at_import:
            groups = [[test for test in self.tests.values() if test.file in TABLES]]
            groups += [self._running(mutant.file, mutant.near)] if mutant.near else []
            groups += [self._running(mutant.file, None), self._in_folder(mutant), self._mentioning(mutant)]
        else:
            reached = self._running(mutant.file, mutant.lines) or self._running(mutant.file, mutant.statement)
            groups = [reached or self._in_folder(mutant)]
        ordered: dict[str, Test] = {}
        for group in groups:
            ordered |= {test.id: test for test in self._ordered(group, mutant) if test.id not in ordered}
        return list(ordered.values())

    def _running(self, source: str, lines: Lines | None) -> list[Test]:
        wanted = line_mask(lines) if lines else -1
        return [test for test in self._by_source[source] if test.lines[source] & wanted]

    def _folder(self, mutant: Mutant) -> tuple[str, str]:
        """Where the tests of a mutant's room are, and its own examples."""
        return f"tests/{self.project.room_of(mutant.file)}/", mutant.file

    def _in_folder(self, mutant: Mutant) -> list[Test]:
        return [test for test in self.tests.values() if test.id.startswith(self._folder(mutant))]

    def _mentioning(self, mutant: Mutant) -> Iterator[Test]:
        if mutant.name:
            pattern = re.compile(rb"\b" + mutant.name.encode() + rb"\b")
            for source in self._by_source:
                if pattern.search(self.project.read(source)):
                    yield from self._by_source[source]

    def _ordered(self, tests: Iterable[Test], mutant: Mutant) -> list[Test]:
        own = self._folder(mutant)
        subject = PurePosixPath(mutant.file).stem

        def cost(test: Test) -> float:
            near = 1.0 if test.id.startswith(own) or subject in test.file else FOREIGN
            return (test.seconds + 0.01 + SECONDS_A_LINE * test.size) * near

        cheapest = sorted(tests, key=lambda test: (cost(test), test.id))
        # Another test says more than the same test with another parameter.
        rank: dict[str, int] = defaultdict(int)
        costs = {}
        for test in cheapest:
            rank[test.function] += 1
            costs[test.id] = cost(test) * rank[test.function]
        return sorted(cheapest, key=lambda test: (costs[test.id], test.id))


def attempts(tests: list[Test]) -> Iterator[list[Test]]:
    """The tests cut into at most three attempts: a short one, a longer one, and the rest up to a limit.

    Within an attempt the tests of a file stand together, so that fixtures are built once.
    """
    left, spent = list(tests), 0.0
    for most, seconds in (FIRST, SECOND, (len(tests), LONGEST)):
        taken: list[Test] = []
        while left and len(taken) < most and (spent + seconds_of([*taken, left[0]]) <= seconds or not (taken or spent)):
            taken.append(left.pop(0))
        if taken:
            spent += seconds_of(taken)
            files = [test.file for test in taken]
            yield sorted(taken, key=lambda test: files.index(test.file))
