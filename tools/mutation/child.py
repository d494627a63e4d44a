"""A forked process: its limits, its environment, and the tests that it runs."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

MEMORY = 4 * 2**30  # bytes that a child may take beyond what the parent has
PARENT_DIED = 1  # PR_SET_PDEATHSIG of Linux
NOTE = "note"  # file in which a child says how it went


@dataclass(frozen=True)
class Work:
    """Tests to run in a child.

    Attributes:
        root: The project's folder.
        environment: All variables of the child's environment.
        seconds: How much processor time it may take; a busy machine does not use it up.
        wall: How much time may pass.
    """

    root: Path
    environment: dict[str, str]
    seconds: float
    wall: float

    def run(self, folder: Path) -> tuple[int, dict[str, Any]]:
        """Run the tests; pytest's exit code, and a note for the parent. Files may be left in `folder`."""
        raise NotImplementedError

    def pytest(self, folder: Path, arguments: list[str], plugin: object) -> int:
        """Run pytest in this process."""
        import pytest

        scratch = folder / "tmp"
        scratch.mkdir()
        os.environ["TMPDIR"] = str(scratch)
        os.chdir(self.root)
        sys.path[:0] = [path for path in self.environment["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
        options = ["-q", "--tb=short", f"--basetemp={folder / 'basetemp'}", "-p", "no:cacheprovider", "-p", "no:xdist"]
        return int(pytest.main([*options, *arguments], plugins=[plugin]))


def run_child(work: Work, folder: Path) -> NoReturn:
    """Do the work in this process and end it. What it prints and its note are files in `folder`."""
    code = 70
    try:
        os.setsid()  # a group of its own, so that its processes can be ended together
        _end_with_parent()
        _limit(work.seconds)
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        null = os.open(os.devnull, os.O_RDONLY)
        for stream, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(stream, target)
        os.environ.clear()
        os.environ.update(work.environment)
        code, note = work.run(folder)
        (folder / NOTE).write_text(json.dumps(note))
    except BaseException as error:
        (folder / NOTE).write_text(json.dumps({"reason": repr(error)[:300]}))
    finally:
        os._exit(code)


def _limit(seconds: float) -> None:
    """Limit processor time and memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 6))
    status = Path("/proc/self/status")
    if status.exists():
        used = next((line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmData")), "0")
        most = int(used) * 1024 + MEMORY
        already = resource.getrlimit(resource.RLIMIT_DATA)[1]  # of a child within a child; it cannot be raised
        if already == resource.RLIM_INFINITY or most < already:
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _end_with_parent() -> None:
    """Let the system end this process when the parent is killed; other systems than Linux cannot."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DIED, signal.SIGKILL)
