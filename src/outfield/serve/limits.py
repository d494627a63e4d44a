"""What clients may ask for, how a service is set up, and how a request is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException

from outfield.config import require, require_number
from outfield.errors import InputError, StorageError, as_ours


@dataclass(frozen=True)
class Limits:
    """What one client, and all of them together, may ask for."""

    body: int = 32 * 2**20  # bytes of one request, and an eighth of those that are held of all requests
    pixels: int = 50_000_000  # of one image, before it is resized, and a fourth of those of all images of one request
    images: int = 64  # of one request
    timeout: float = 30.0  # seconds for one request, from its first line to its answer
    queue: int = 256  # images of all requests to one guard at a time; beyond it clients are told to come back
    batch: int = 32  # images that a network is given at once, unless one request has more

    def __post_init__(self) -> None:
        for name in ("body", "pixels", "images", "queue", "batch"):
            require_number(name, getattr(self, name), least=1, whole=True)
        require_number("timeout", self.timeout, above=0, most=86_400)
        require(self.images <= self.queue, "images", self.images, f"at most queue, {self.queue}")


@dataclass(frozen=True)
class Keep:
    """What is kept for people to look at."""

    folder: Path  # in it a folder for each guard
    share: float = 1.0  # of the inputs that are refused
    sample: float = 0.0  # of all inputs, whatever the verdict
    limit: int = 2**30  # bytes for each guard; beyond it the oldest are removed

    def __post_init__(self) -> None:
        for name in ("share", "sample"):
            require_number(name, getattr(self, name), least=0, most=1)
        require_number("limit", self.limit, least=1, whole=True)


@dataclass(frozen=True)
class Settings:
    """How a service is reached and what it keeps."""

    limits: Limits = Limits()
    token: str | None = None  # which clients must send
    drift_state: Path | None = None  # file that keeps what was seen
    keep: Keep | None = None  # inputs that are kept for review
    look_every: float = 1.0  # seconds between two looks for a changed guard; at each fifth what was seen is written
    device: str = "auto"  # where the networks run
    otlp: str | None = None  # address of an OpenTelemetry collector
    drain: float = 5.0  # seconds for which a service that was asked to end takes requests and says that it is not ready


def read_token(file: Path | None, environment: str | None) -> str | None:
    """The token of a file, or else of the environment; None where neither gives one."""
    if file is None and environment is None:
        return None
    with as_ours(f"cannot read the token from {file}", StorageError, OSError, UnicodeDecodeError):
        token = (environment or "") if file is None else file.read_text("utf-8")
    token = token.strip()
    where = "OUTFIELD_TOKEN" if file is None else str(file)
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"{where} must hold a token of printable ASCII letters without spaces")
    return token


class Refused(HTTPException):  # not a failure of ours
    """An answer other than 200; the message says what was wrong, and what would be right."""


def busy(why: str) -> Refused:
    """There is no room now; the client may come back after a second."""
    return Refused(429, f"{why}; come back in a moment", {"Retry-After": "1"})
