"""Bodies of requests: counted and timed while they are read, whatever their length is said to be."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from starlette.requests import Request

from outfield.serve.limits import Limits, Refused, busy

DRAIN_SECONDS = 2.0
"""For which more of a body that is refused is read and thrown away: a client that is still sending would not see the answer."""


class Bodies:
    """Reads bodies, and knows how many bytes are held of all of them.

    Args:
        limits: Of one body, of all, and of time.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.held = limits, 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request, deadline: float) -> AsyncIterator[bytearray]:
        """The body, for as long as the block runs.

        Raises:
            Refused: It is too long or too slow, there is no room for it, or it is compressed.
        """
        body = bytearray()
        try:
            try:
                self._check_head(request)
                async with asyncio.timeout(deadline - time.monotonic()):
                    async for part in request.stream():
                        self._take(body, part)
            except TimeoutError as error:
                message = f"the request did not arrive within {self.limits.timeout:g} s"
                raise Refused(408, message, {"Connection": "close"}) from error
            except Refused as refused:
                await self._drain(request)
                refused.headers["Connection"] = "close"
                raise
            yield body
        finally:
            self.held -= len(body)

    def _check_head(self, request: Request) -> None:
        said = request.headers.get("content-length", "0")
        if not said.isdecimal() or int(said) > self.limits.body:
            raise self._too_long()
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "the body is compressed (Content-Encoding); send it as it is")

    def _take(self, body: bytearray, part: bytes) -> None:
        if len(body) + len(part) > self.limits.body:
            raise self._too_long()
        if self.held + len(part) > self.limits.held:
            raise busy("the requests of all clients together are too long")
        body += part
        self.held += len(part)

    def _too_long(self) -> Refused:
        return Refused(413, f"the request is longer than {self.limits.body:,} bytes; send less at once")

    async def _drain(self, request: Request) -> None:
        """Read on for a moment, up to four times what a body may have, unless the client waits to be told to send."""
        left = 0 if request.headers.get("expect", "").lower() == "100-continue" else 4 * self.limits.body
        with contextlib.suppress(TimeoutError, RuntimeError):  # the latter where the stream had ended
            async with asyncio.timeout(DRAIN_SECONDS):
                while left > 0:
                    message = await request.receive()
                    left -= len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return
