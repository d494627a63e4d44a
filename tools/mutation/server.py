"""A warm parent process that forks a child for each attempt."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation.child import NOTE, Work, run_child

# Whatever tests import that takes long and is not mutated. What is not installed is passed over. pyarrow is left out:
# it starts a thread, and only a process without threads is safe to fork.
WARM = [
    "pytest",
    "_pytest.doctest",
    "anyio.pytest_plugin",
    "coverage",
    "coverage.sqldata",
    "hypothesis",
    "_hypothesis_pytestplugin",
    "hypothesis.extra.numpy",
    "numpy",
    "torch",
    "torch._dynamo",
    "safetensors.torch",
    "scipy.stats",
    "scipy.special",
    "sklearn.mixture",
    "sklearn.neighbors",
    "sklearn.covariance",
    "sklearn.metrics",
    "timm",
    "torchvision.transforms",
    "PIL.Image",
    "matplotlib.figure",
    "matplotlib.pyplot",
    "faiss",
    "lmdb",
    "typer.testing",
    "rich.console",
    "rich.table",
    "rich.progress",
    "jinja2",
    "psutil",
]


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, or None when its time was over, and the note that it left."""

    code: int | None
    note: dict[str, Any]

    @property
    def reason(self) -> str:
        """Why it failed, as far as it is known."""
        if self.code is not None and self.code < 0:
            return f"ended by signal {-self.code}"
        return str(self.note.get("reason", ""))


@dataclass
class _Child:
    pid: int
    folder: Path
    until: float


class Server:
    """Forks children, waits for them, and ends them when their time is over."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        self._children: dict[int, _Child] = {}
        self._ended: dict[int, Ended] = {}
        self._started = 0

    def warm(self, modules: list[str]) -> None:
        """Import what children would otherwise import again and again; never the mutated package."""
        for module in modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        gc.collect()
        gc.freeze()

    def start(self, work: Work) -> int:
        """Start a child and return its number, the id of its process."""
        self._started += 1
        folder = self._folder / str(self._started)
        folder.mkdir()
        pid = os.fork()
        if pid == 0:
            run_child(work, folder)
        self._children[pid] = _Child(pid, folder, time.monotonic() + work.wall)
        return pid

    def run(self, work: Work) -> Ended:
        """Start a child and wait for it, while others go on."""
        started = self.start(work)
        while started not in self._ended:
            number, ended = self._wait()
            self._ended[number] = ended
        return self._ended.pop(started)

    def wait(self) -> tuple[int, Ended]:
        """Wait until a child ends: its number and how it ended."""
        if self._ended:
            return self._ended.popitem()
        return self._wait()

    def _wait(self) -> tuple[int, Ended]:
        while True:
            for child in list(self._children.values()):
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    ended = _ended(status, child.folder)
                elif time.monotonic() > child.until:
                    _end(child.pid)
                    os.waitpid(child.pid, 0)
                    ended = Ended(None, {})
                else:
                    continue
                self._forget(child)
                return child.pid, ended
            time.sleep(0.01)

    def close(self) -> None:
        """End every child that still runs, and remove everything they wrote."""
        for child in list(self._children.values()):
            _end(child.pid)
            os.waitpid(child.pid, 0)
            self._forget(child)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _forget(self, child: _Child) -> None:
        _end(child.pid)  # what its tests left running
        del self._children[child.pid]
        shutil.rmtree(child.folder, ignore_errors=True)


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _ended(status: int, folder: Path) -> Ended:
    note: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        note = json.loads((folder / NOTE).read_text())
    code = os.waitstatus_to_exitcode(status)
    return Ended(None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code, note)
