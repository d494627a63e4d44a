"""The command line: in this process, which has torch in memory already, or as a program of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass
class Done:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """What it wrote to stderr, on one line and without a frame."""
        return " ".join(self.stderr.replace("│", " ").split())


def outfield(*arguments: object, cwd: Any = None, encoding: str = "utf-8") -> Done:
    """Run ``outfield`` with these arguments, as its entry point does, in this process."""
    from outfield.cli import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(os.curdir if cwd is None else cwd),
        mock.patch.object(sys, "argv", ["outfield", *map(str, arguments)]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        try:
            main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code
    texts = [stream.buffer.getvalue().decode(encoding, "surrogateescape") for stream in (out, err)]
    return Done(code or 0, *texts)


def program(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run ``outfield`` as a program of its own."""
    settings = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 300} | settings
    return subprocess.run([sys.executable, "-m", "outfield", *map(os.fsencode, map(str, arguments))], **settings)
