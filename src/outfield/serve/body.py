"""Bodies of requests, counted and timed while they are read, and the files of forms, which browsers and ``curl -F`` send."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from outfield.serve.limits import Limits, Refused, busy

DRAIN_SECONDS = 2.0
"""For which more of a body that is refused is read and thrown away: a client that is still sending would not see the answer."""


class Bodies:
    """Reads bodies, and knows how many bytes are held of all of them."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.held = limits, 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request, deadline: float) -> AsyncIterator[bytearray]:
        """The body, for as long as the block runs."""
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


AT_ONCE = 65_536
"""Bytes of a body that are read without giving other clients a turn."""


async def files_of(body: bytearray, content_type: str, limits: Limits) -> list[tuple[str | None, bytes]]:
    """The files of a form, or the one image that the body is: the name that the client gave, or None, and the bytes."""
    kind, options = parse_options_header(content_type)
    if kind.startswith(b"image/") or kind == b"application/octet-stream":
        return [(None, bytes(body))]
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise Refused(415, "send multipart/form-data with files, or one image as the body (Content-Type: image/…)")
    if b"--" + boundary + b"--" not in body[-len(boundary) - 64 :]:
        raise Refused(400, "the form is broken: its end is missing")
    parser = MultiPartParser(Headers({"content-type": content_type}), _pieces(body), max_files=limits.images)
    parser.spool_max_size = limits.body + 1  # so that no file is written to disk
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        said = getattr(error, "message", str(error))
        if "Too many files" in said:
            raise Refused(413, f"the form has more than {limits.images} files; send fewer at once") from error
        raise Refused(400, f"the form is broken: {said}") from error
    files = [one for _, one in form.multi_items() if isinstance(one, UploadFile)]
    if not files:
        raise Refused(400, "there is no file in the form; send at least one")
    return [(_file_name(one.filename or ""), one.file.read()) for one in files]


async def _pieces(body: bytearray) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), AT_ONCE):
        yield bytes(body[start : start + AT_ONCE])
        await asyncio.sleep(0)
    yield b""


def _file_name(given: str) -> str | None:
    """The last part of a name, without letters that cannot be shown."""
    return re.sub(r"[\x00-\x1f\x7f]", "", given.replace("\\", "/").rpartition("/")[2])[:255] or None
