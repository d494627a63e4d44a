"""Which lines run in processes that tests start."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

import coverage

FOLDER = "MUTANT_COVERAGE"  # environment variables: where to write, what to measure, which test is running
PACKAGE = "MUTANT_PACKAGE"
CONTEXT = "MUTANT_CONTEXT"


def new_coverage(name: str, context: str | None = None) -> coverage.Coverage:
    """A measurement of the package's lines, kept in a file of this name."""
    folder, package = Path(os.environ[FOLDER]), os.environ[PACKAGE]
    return coverage.Coverage(
        data_file=folder / name, config_file=False, include=[f"{package}/*"], context=context, messages=False
    )


def measure_this_process() -> None:
    """Measure from here to the end of the process, in the name of the test that started it."""
    measured = new_coverage(f"coverage-{os.getpid()}-{os.urandom(4).hex()}", os.environ.get(CONTEXT, ""))
    measured.start()

    def finish() -> None:
        measured.stop()
        measured.save()

    atexit.register(finish)
