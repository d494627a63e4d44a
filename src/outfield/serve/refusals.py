"""A request that is refused: a status, a sentence, and what the client should do."""

from __future__ import annotations

from collections.abc import Mapping

RETRY_AFTER = 1
"""Seconds after which a client whom we could not serve may come back."""


class Refused(Exception):  # noqa: N818  # not a failure of ours
    """An answer other than 200.

    Args:
        status: Of HTTP.
        message: For the client: what was wrong, and what would be right.
        headers: Of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def busy(why: str) -> Refused:
    """There is no room now."""
    return Refused(429, f"{why}; come back in a moment", {"Retry-After": str(RETRY_AFTER)})
