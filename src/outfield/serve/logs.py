"""Logs as one JSON object a line: what happened, to which guard, how long it took. Never an image, never a token."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

log = logging.getLogger("outfield.serve")
LONGEST = 500
"""Letters of a text in a line; some come from clients."""


def tell(level: int, event: str, **about: Any) -> None:
    """Log an event.

    Args:
        level: Of :mod:`logging`.
        event: What happened, in a word or two.
        about: Plain values.
    """
    log.log(level, event, extra={"about": about})


class JsonLines(logging.Formatter):
    """A record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """The object, on one line."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()[:LONGEST]}
        about: dict[str, Any] = getattr(record, "about", {})
        line |= {name: value[:LONGEST] if isinstance(value, str) else value for name, value in about.items()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


@contextlib.contextmanager
def json_lines() -> Iterator[None]:
    """While the block runs, what Outfield and uvicorn log goes to stderr as JSON lines, and nowhere else."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    loggers = [logging.getLogger(name) for name in ("outfield", "uvicorn", "asyncio", "python_multipart")]
    before = [(one, one.handlers[:], one.propagate) for one in loggers]
    for one in loggers:
        one.handlers, one.propagate = [handler], False
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # what is wrong with a form is in the answer
    try:
        yield
    finally:
        for one, handlers, propagate in before:
            one.handlers, one.propagate = handlers, propagate
