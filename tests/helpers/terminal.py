"""A program on a terminal: what it draws, and when."""

import fcntl
import itertools
import os
import re
import statistics
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass


@dataclass
class Session:
    """What came to the terminal, in pieces with the seconds since the start, and the exit code."""

    pieces: list[tuple[float, str]]
    code: int
    seconds: float

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)

    def usual_silence(self) -> float:
        """The median time between two pieces: a machine under load may be late now and then."""
        return statistics.median(b - a for (a, _), (b, _) in itertools.pairwise(self.pieces))

    def drawn(self) -> list[str]:
        """Every line that stood at the cursor for a moment, without codes."""
        parts = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text))
        return [part for part in parts if part.strip()]

    def left(self) -> list[str]:
        """The lines that stay on the screen at the end."""
        lines, row, column = [""], 0, 0
        for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", self.text):
            line = lines[row]
            if token == "\x1b[2K":
                lines[row] = ""
            elif token == "\x1b[1A":
                row -= 1
            elif token == "\r":
                column = 0
            elif token == "\n":
                row, column = row + 1, 0
                lines += [""] * (row == len(lines))
            elif token[0] != "\x1b":
                lines[row] = line[:column].ljust(column) + token + line[column + len(token) :]
                column += len(token)
        return [line.rstrip() for line in lines if line.strip()]


def on_terminal(command: list[str], columns: int = 100, stdout: int | None = None, **environment: str) -> Session:
    """Run a command with stderr, and stdout if it is not given, on a terminal of so many columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    began = time.monotonic()
    running = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env={**inherited, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux says so when nobody holds the other end
            break
        if not piece:
            break
        pieces.append((time.monotonic() - began, piece.decode(errors="replace")))
    os.close(ours)
    return Session(pieces, running.wait(timeout=300), time.monotonic() - began)


def python_on_terminal(code: str, columns: int = 100, **environment: str) -> Session:
    return on_terminal([sys.executable, "-c", code], columns, **environment)
