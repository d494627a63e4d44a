"""Tests run to note for each which lines of the package it runs, how long it takes and how it ends.

What a fixture of a module or a session runs is noted for every test that asks for the fixture, not only for
the first, which happens to build it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mutation.child import Work
from mutation.subprocess_coverage import CONTEXT, FOLDER, new_coverage

FIXTURE = "fixture "  # begins the name of a fixture's context; no test's name begins so


@dataclass(frozen=True)
class Measurement(Work):
    """A test file, or some of its tests, to be measured; with the processes that tests start, or without."""

    arguments: tuple[str, ...]
    processes: bool = True

    def run(self, folder: Path) -> tuple[int, dict[str, Any]]:
        os.environ[FOLDER] = str(folder)
        recorder = Recorder()
        if not self.processes:
            del os.environ[FOLDER]
        code = self.pytest(folder, list(self.arguments), recorder)
        recorder.coverage.stop()
        recorder.coverage.save()
        return code, {"tests": recorder.tests(_lines_by_context(folder))}


class Recorder:
    """A pytest plugin that measures."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.outcomes: dict[str, str] = {}
        self.fixtures: dict[str, set[str]] = {}
        self._contexts: list[str] = []
        self.coverage = new_coverage("coverage-tests")
        self.coverage.start()

    def _enter(self, context: str) -> None:
        self._contexts.append(context)
        self._tell()

    def _leave(self) -> None:
        self._contexts.pop()
        self._tell()

    def _tell(self) -> None:
        context = self._contexts[-1] if self._contexts else ""
        self.coverage.switch_context(context)
        os.environ[CONTEXT] = context  # for processes that a test starts

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """A module of the package that is named for its examples has no tests besides them."""
        items[:] = [item for item in items if not isinstance(item, pytest.Function) or item.path.name[:5] == "test_"]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.fixtures[item.nodeid] = {f"{FIXTURE}{name}" for name in getattr(item, "fixturenames", ())}
        start = _processor_time()
        self._enter(item.nodeid)
        try:
            return (yield)
        finally:
            self._leave()
            self.seconds[item.nodeid] += _processor_time() - start

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        context = f"{FIXTURE}{fixturedef.argname}"
        self._enter(context)
        start = _processor_time()
        try:
            return (yield)
        finally:
            self._leave()
            passed = _processor_time() - start
            self.seconds[context] = max(self.seconds[context], passed)
            if self._contexts:
                self.seconds[self._contexts[-1]] -= passed  # the test that happens to build it

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.outcomes.get(report.nodeid, "passed") == "passed":
            self.outcomes[report.nodeid] = report.outcome

    def tests(self, lines: dict[str, dict[str, int]]) -> dict[str, Any]:
        """Per test: outcome, seconds, those of the fixtures it shares, and the lines of both, as hexadecimal masks."""
        found = {}
        for test, outcome in self.outcomes.items():
            contexts = [test, *sorted(self.fixtures.get(test, set()) & self.seconds.keys())]
            masks: dict[str, int] = defaultdict(int)
            for context in contexts:
                for file, mask in lines.get(context, {}).items():
                    masks[file] |= mask
            shown = {file: f"{mask:x}" for file, mask in sorted(masks.items())}
            seconds = [round(max(0.0, self.seconds[context]), 4) for context in contexts]
            shared = dict(zip(contexts[1:], seconds[1:], strict=True))
            found[test] = {"outcome": outcome, "seconds": seconds[0], "shared": shared, "lines": shown}
        return found


def _processor_time() -> float:
    """Seconds that this process and the ones it waited for have computed, however busy the machine is."""
    return sum(os.times()[:4])


def _lines_by_context(folder: Path) -> dict[str, dict[str, int]]:
    """Per test or fixture and per absolute file name: the lines that ran, as a bit mask."""
    import coverage

    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in sorted(folder.glob("coverage-*")):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in contexts:
                    found[context][file] |= 1 << line
    return found
