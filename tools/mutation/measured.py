"""Which tests run which lines: measured once, kept, and measured anew only for what has changed."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mutation.project import Project
from mutation.recorder import Measurement
from mutation.server import Server
from mutation.sites import body_lines
from mutation.subprocess_coverage import PACKAGE

TOOLS = Path(__file__).resolve().parents[1]
LONGEST = 900.0  # seconds that a test file may take


@dataclass(frozen=True)
class Test:
    """A test that passes.

    Attributes:
        id: Its name in pytest.
        own: Seconds that it takes itself.
        shared: Seconds of each fixture that it shares with other tests of its file.
        lines: The lines of functions that it runs, with its fixtures: per source file a bit mask.
    """

    id: str
    own: float
    shared: dict[str, float]
    lines: dict[str, int]

    @cached_property
    def seconds(self) -> float:
        """How long it takes alone."""
        return self.own + sum(self.shared.values())

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]

    @property
    def function(self) -> str:
        """The test without its parameters."""
        return self.id.partition("[")[0]

    @cached_property
    def size(self) -> int:
        """How many lines it runs; few means that it is about little else."""
        return sum(mask.bit_count() for mask in self.lines.values())


def environment(project: Project) -> dict[str, str]:
    """The environment of tests: the project's own package, one thread, the same examples of properties each time."""
    paths = [
        str(TOOLS / "mutation" / "startup"),
        str(TOOLS),
        str(project.source_root),
        os.environ.get("PYTHONPATH", ""),
    ]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    fixed = {"CI": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(project.work / "hypothesis")}
    if not Path("/dev/nvidiactl").exists():  # asking torch would start CUDA, which cannot be used after a fork
        fixed["TRITON_INTERPRET"] = "1"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MUTANT_")}
    return {**inherited, **threads, **fixed, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def seconds_of(tests: list[Test]) -> float:
    """How long tests take one after the other, each shared fixture built once."""
    shared = {(test.file, name): seconds for test in tests for name, seconds in test.shared.items()}
    return sum(test.own for test in tests) + sum(shared.values())


class Measured:
    """The kept measurement of a project's tests.

    A test file is measured anew when it has changed, or a source file of which it runs a function, or what all
    tests share. Each is kept as soon as it is measured.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.path = project.work / "coverage.json"
        kept: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        same = kept.get("shared") == project.shared_digest
        self.files: dict[str, Any] = kept["files"] if same else {}
        self._bodies = {file: body_lines(project.read(file)) for file in project.source_files}

    def tests(self) -> list[Test]:
        """Every test that passes."""
        return [
            Test(
                name, test["seconds"], test["shared"], {source: int(mask, 16) for source, mask in test["lines"].items()}
            )
            for file in self.project.test_files
            for name, test in self.files[file]["tests"].items()
            if test["outcome"] == "passed"
        ]

    def stale(self) -> list[str]:
        """Test files to be measured, those that took long before or are long first."""
        found = [file for file in self.project.test_files if not self._holds(file)]
        return sorted(found, key=lambda file: (-self._seconds(file), -len(self.project.read(file))))

    def bring_up_to_date(self, server: Server, jobs: int) -> None:
        """Measure every stale file, `jobs` at once."""
        waiting = self.stale()
        if not waiting:
            return
        print(f"measuring which lines the tests of {len(waiting)} files run …", flush=True)
        start, whole = time.monotonic(), len(waiting)
        running: dict[int, str] = {}
        while waiting or running:
            while waiting and len(running) < jobs:
                file = waiting.pop(0)
                running[server.start(self._work(file))] = file
            number, ended = server.wait()
            file = running.pop(number)
            tests = ended.note.get("tests", {})
            failed = tuple(test for test, record in tests.items() if record["outcome"] == "failed")
            if failed and ended.code is not None:
                # A test that measures its own processes may fail because they are measured by us, too.
                tests |= self._again(server, failed)
            self._keep(file, tests)
            done = whole - len(waiting) - len(running)
            words = "" if tests or ended.code == 5 else f" — no result: {ended.reason or 'it took too long'}"
            print(
                f"{done}/{whole} after {time.monotonic() - start:.0f} s: {file}, {len(tests)} tests{words}", flush=True
            )

    def _work(self, *arguments: str, processes: bool = True) -> Measurement:
        variables = environment(self.project) | {PACKAGE: str(self.project.root / self.project.package)}
        return Measurement(self.project.root, variables, LONGEST, LONGEST, arguments, processes)

    def _again(self, server: Server, failed: tuple[str, ...]) -> dict[str, Any]:
        """The failed tests that pass when the processes they start are left alone."""
        note = server.run(self._work(*failed, processes=False)).note
        passed = {test: record for test, record in note.get("tests", {}).items() if record["outcome"] == "passed"}
        for test in failed:
            if test not in passed:
                print(f"left out, for it fails without any mutant: {test}", flush=True)
        return passed

    def _keep(self, file: str, tests: dict[str, Any]) -> None:
        used: set[str] = set()
        for test in tests.values():
            lines = {}
            for name, mask in test["lines"].items():
                source = self.project.relative(Path(name))
                if inside := int(mask, 16) & self._bodies.get(source, 0):
                    lines[source] = f"{inside:x}"
            test["lines"] = lines
            used |= lines.keys()
        sources = {source: self.project.digest([source]) for source in sorted(used)}
        self.files[file] = {"digest": self.project.digest([file]), "sources": sources, "tests": tests}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".tmp")
        scratch.write_text(json.dumps({"shared": self.project.shared_digest, "files": self.files}))
        scratch.replace(self.path)

    def _holds(self, file: str) -> bool:
        record = self.files.get(file)
        if record is None or record["digest"] != self.project.digest([file]):
            return False
        sources: dict[str, str] = record["sources"]
        return all(name in self._bodies and digest == self.project.digest([name]) for name, digest in sources.items())

    def _seconds(self, file: str) -> float:
        tests: dict[str, Any] = self.files.get(file, {}).get("tests", {})
        return sum(float(test["seconds"]) for test in tests.values())
