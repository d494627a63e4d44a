"""Files of a form: what browsers and ``curl -F`` send."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import NamedTuple

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from outfield.serve.limits import Limits, Refused

AT_ONCE = 65_536
"""Bytes of a body that are read without giving other clients a turn."""


class Upload(NamedTuple):
    """One file of a form: the name that the client gave it, or None, and its bytes."""

    name: str | None
    content: bytes


async def files_of(body: bytearray, content_type: str, limits: Limits) -> list[Upload]:
    """The files of a form, or the one image that the body is.

    Raises:
        Refused: The body is neither, or has too many files, or none.
    """
    kind, options = parse_options_header(content_type)
    if kind.startswith(b"image/") or kind == b"application/octet-stream":
        return [Upload(None, bytes(body))]
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise Refused(415, "send multipart/form-data with files, or one image as the body (Content-Type: image/…)")
    if b"--" + boundary + b"--" not in body[-len(boundary) - 64 :]:
        raise Refused(400, "the form is broken: its end is missing")
    parser = MultiPartParser(Headers({"content-type": content_type}), _pieces(body), max_files=limits.images)
    parser.spool_max_size = limits.body + 1  # so that no file is written to disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            message = f"there are more than {limits.images} files in the form; send fewer at once"
            raise Refused(413, message) from error
        raise Refused(400, f"the form is broken: {error.message}") from error
    except (KeyError, ValueError) as error:
        raise Refused(400, f"the form is broken: {error}") from error
    files = [one for _, one in form.multi_items() if isinstance(one, UploadFile)]
    if not files:
        raise Refused(400, "there is no file in the form; send at least one")
    return [Upload(_file_name(one.filename or ""), one.file.read()) for one in files]


async def _pieces(body: bytearray) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), AT_ONCE):
        yield bytes(body[start : start + AT_ONCE])
        await asyncio.sleep(0)
    yield b""


def _file_name(given: str) -> str | None:
    """The last part of a name, without letters that cannot be shown."""
    return re.sub(r"[\x00-\x1f\x7f]", "", given.replace("\\", "/").rpartition("/")[2])[:255] or None
