"""The command line: in this process, which has torch in memory already, or as a program of its own."""

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


def outfield(*arguments: object, cwd: Any = None, encoding: str = "utf-8", code: int | None = None) -> Done:
    """Run ``outfield`` with these arguments, as its entry point does, in this process; it must end with ``code``, if given."""
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
            ended: Any = 0
        except SystemExit as stop:
            ended = stop.code
    texts = [stream.buffer.getvalue().decode(encoding, "surrogateescape") for stream in (out, err)]
    assert code in (None, ended or 0), texts[1][-3000:]
    return Done(ended or 0, *texts)


def settings(*pairs: str) -> list[str]:
    """``--set`` before each of these."""
    return [word for pair in pairs for word in ("--set", pair)]


def program(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run ``outfield`` as a program of its own."""
    more = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 300} | more
    return subprocess.run([sys.executable, "-m", "outfield", *map(os.fsencode, map(str, arguments))], **more)
