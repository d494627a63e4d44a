"""Bodies of requests, counted and timed while they are read: the files of forms, and the rows of CSV and JSON."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import csv
import io
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from outfield.errors import InputError, as_ours
from outfield.features import NUMBER, TRUTH, FeatureSet
from outfield.guard import Guard
from outfield.percent import counted
from outfield.serve.limits import Limits, Refused, busy

DRAIN_SECONDS = 2.0  # for which a refused body is read on: a client that is still sending would not see the answer


class Bodies:
    """Reads bodies, and knows how many bytes are held of all of them."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.held = limits, 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """The body, for as long as the block runs, which ends when the time of the request is over."""
        body, has_come, began = bytearray(), False, request.scope["state"]["began"]
        try:
            async with asyncio.timeout(began + self.limits.timeout - time.monotonic()):
                try:
                    self._check(int(request.headers.get("content-length", "0")))
                    if request.headers.get("content-encoding", "identity").lower() != "identity":
                        raise Refused(415, "the body is compressed (Content-Encoding); send it as it is")
                    async for part in request.stream():
                        self._check(len(body) + len(part))
                        if self.held + len(part) > 8 * self.limits.body:
                            raise busy("the requests of all clients together are too long")
                        body += part
                        self.held += len(part)
                except Refused as refused:
                    await drain(request, 4 * self.limits.body)
                    refused.headers = {**(refused.headers or {}), "Connection": "close"}
                    raise
                has_come = True
                yield body
        except TimeoutError as error:
            if has_come:
                raise Refused(504, f"there was no answer within {self.limits.timeout:g} s") from error
            message = f"the request did not arrive within {self.limits.timeout:g} s"
            raise Refused(408, message, {"Connection": "close"}) from error
        finally:
            self.held -= len(body)

    def _check(self, length: int) -> None:
        if length > self.limits.body:
            raise Refused(413, f"the request is longer than {self.limits.body:,} bytes; send less at once")


async def drain(request: Request, most: int) -> None:
    """Read on for a moment, up to so many bytes, unless the client waits to be told to send."""
    left = 0 if request.headers.get("expect", "").lower() == "100-continue" else most
    with contextlib.suppress(TimeoutError, RuntimeError):  # the latter where the stream had ended
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0:
                message = await request.receive()
                left = left - len(message["body"]) if message.get("more_body") else 0


# CloudEvents 1.0 over HTTP, as payload loggers and brokers post them

ATTRIBUTES = ("specversion", "id", "source", "type")  # what every event has
LONGEST_ATTRIBUTE = 2048


class Event(NamedTuple):
    """An event: its attributes by name, and its data."""

    about: dict[str, str]
    data: bytes

    def header(self, name: str) -> str | None:
        """A header of the request that was logged, where KServe's logger was told to keep it (``metadataHeaders``)."""
        try:
            kept = json.loads(self.about.get("metadata", "{}"))
            return next(str(value[0]) for own, value in kept.items() if own.lower() == name)
        except (ValueError, RecursionError, AttributeError, LookupError, TypeError, StopIteration):
            return None


def event_of(headers: Headers, body: bytearray) -> Event:
    """The event that a request is: in headers ``ce-…`` and the body (binary mode), or in a JSON object (structured mode)."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("application/cloudevents") and kind != "application/cloudevents+json":
        raise Refused(
            415, f"events come one by one, in binary mode or as application/cloudevents+json, not as {kind:.60}"
        )
    with as_ours("the event cannot be read", InputError, ValueError, RecursionError, AttributeError):
        if kind == "application/cloudevents+json":
            said = json.loads(body)
            about = {name: value for name, value in said.items() if isinstance(value, str)}
            packed = said.get("data_base64")
            if packed is not None and ("data" in said or not isinstance(packed, str)):
                raise ValueError("data_base64 is a text, and there where data is not")
            data = json.dumps(said.get("data")).encode() if packed is None else base64.b64decode(packed, validate=True)
        else:
            about = {name[3:]: _unescaped(value) for name, value in headers.items() if name.startswith("ce-")}
            data = bytes(body)
    *others, last = [name for name in ATTRIBUTES if not about.get(name)] or [""]
    if last:
        what = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        raise InputError(f"not a CloudEvent: {what} missing (headers ce-…, or a JSON object)")
    if about["specversion"] != "1.0":
        raise InputError(f"the event is of CloudEvents {about['specversion']:.20}; send 1.0")
    if max(len(about[name]) for name in ATTRIBUTES) > LONGEST_ATTRIBUTE:
        raise InputError(f"an attribute of the event is longer than {LONGEST_ATTRIBUTE:,} letters")
    return Event(about, data)


def _unescaped(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    return unquote(value, errors="strict")


OUTLIER = "org.kubeflow.serving.inference.outlier"  # of the event that answers, as of alibi-detect's server on KServe
TAKEN_OVER = ("inferenceservicename", "namespace", "component", "endpoint")
PRINTABLE = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")


def answering(event: Event, source: str) -> dict[str, str]:
    """Headers of the event that answers: its id is that of the request."""
    about = {"specversion": "1.0", "type": OUTLIER, "source": source, "id": event.about["id"]}
    about |= {name: event.about[name][:LONGEST_ATTRIBUTE] for name in TAKEN_OVER if name in event.about}
    return {f"ce-{name}": quote(value, PRINTABLE, errors="replace") for name, value in about.items()}


AT_ONCE = 65_536  # bytes of a body that are read without giving other clients a turn
KINDS = "multipart/form-data with files, an image (image/…), or rows as text/csv or application/json"


Rows = FeatureSet | Mapping[str, np.ndarray]


class Upload(NamedTuple):
    """A file of a form, or all of a body: the name that the client gave, or None, and the bytes."""

    name: str | None
    content: bytes
    is_json: bool = False


async def uploads_of(body: bytearray, content_type: str, limits: Limits) -> list[Upload]:
    """The files of a form, or the one file that the body is."""
    kind, options = parse_options_header(content_type)
    if kind.startswith(b"image/") or kind in (b"application/octet-stream", b"text/csv", b"application/json"):
        return [Upload(None, bytes(body), kind == b"application/json")]
    if kind != b"multipart/form-data" or not (boundary := options.get(b"boundary")):
        raise Refused(415, f"the Content-Type is {content_type[:100]!r}; send {KINDS}")
    if b"--" + boundary + b"--" not in body[-len(boundary) - 64 :]:
        raise InputError("the form is broken: its end is missing")
    parser = MultiPartParser(Headers({"content-type": content_type}), _pieces(body), max_files=limits.images)
    parser.spool_max_size = limits.body + 1  # so that no file is written to disk
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        said = getattr(error, "message", str(error))
        if "Too many files" in said:
            raise Refused(413, f"the form has more than {limits.images} files; send fewer at once") from error
        raise InputError(f"the form is broken: {said}") from error
    files = [one for _, one in form.multi_items() if isinstance(one, UploadFile)]
    if not files:
        raise InputError("there is no file in the form; send at least one")
    named = [(_file_name(one.filename or ""), one.file.read()) for one in files]
    return [Upload(name, content, name.lower().endswith(".json")) for name, content in named]


async def _pieces(body: bytearray) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), AT_ONCE):
        yield bytes(body[start : start + AT_ONCE])
        await asyncio.sleep(0)
    yield b""


def _file_name(given: str) -> str:
    """The last part of a name, without letters that cannot be shown."""
    return re.sub(r"[\x00-\x1f\x7f]", "", given.replace("\\", "/").rpartition("/")[2])[:255] or "a file without a name"


# Rows, of a table objects or lines below the names of the columns, of features lists of numbers

MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null")  # cells of a CSV that hold nothing
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def rows_of(upload: Upload, guard: Guard) -> list[Any]:
    """Each row of a text as :func:`together` takes it, or, as an InputError, why it cannot be used."""
    kind = "JSON" if upload.is_json else "CSV"
    with as_ours(f"this is no {kind} in UTF-8", InputError, ValueError, RecursionError, csv.Error):
        text = upload.content.decode("utf-8-sig")
        listed = json.loads(text) if upload.is_json else _lines(text)
        listed = [listed] if guard.takes == "texts" and isinstance(listed, str | dict) else listed
    if not isinstance(listed, list):
        raise InputError("rows in JSON are a list: of objects, of lists of numbers (a guard of features), or of texts")
    width, columns = sum(guard.widths.values()), guard.reader.columns
    if upload.is_json and guard.takes == "texts":
        listed = [{columns[0].name: row} if isinstance(row, str) else row for row in listed]
    if not columns:
        listed = listed[1:] if listed and listed[0][:1] == ["feature_0"] else listed
        found = [_or_error(_numbers, row, width) for row in listed]
    elif upload.is_json:
        found = [_or_error(_object, row, guard) for row in listed]
    else:
        names = [name.strip() for name in listed[0]] if listed else []
        if len({*names}) < len(names):
            raise InputError(f"the first line names {max(names, key=names.count)!r:.60} twice")
        _object(dict.fromkeys(names), guard, "the first line")
        kinds = {column.name: column.kind for column in columns}
        found = [_or_error(_cells, line, names, kinds) for line in listed[1:]]
    if not found:
        raise InputError("there are no rows; in a CSV the first line names the columns of a table, the others are rows")
    return found


def together(rows: list[Any], guard: Guard) -> Rows:
    """Rows as features, or as the columns of a table."""
    if guard.reader.columns:
        names = dict.fromkeys(chain.from_iterable(rows))
        return {name: np.fromiter((row.get(name) for row in rows), object, len(rows)) for name in names}
    parts = np.split(np.stack(rows), np.cumsum([*guard.widths.values()])[:-1], axis=1)
    return FeatureSet(**{"features": parts[0], **dict(zip(guard.widths, parts, strict=True))})


def _lines(text: str) -> list[list[str]]:
    """The lines of a CSV; cells that were copied from a sheet are parted by tabs."""
    mark = "\t" if "\t" in text.partition("\n")[0] else ","
    return [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True) if line]


def _or_error(read: Callable[..., Any], *given: Any) -> Any:
    try:
        return read(*given)
    except InputError as error:
        return error


def _object(row: Any, guard: Guard, it: str = "it") -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InputError("a row is an object, {column: cell}")
    if guard.table is not None and (unknown := guard.table.unknown(row)):
        raise InputError(f"{it} has {unknown}, which the guard does not know")
    return row


def _numbers(row: Any, width: int) -> np.ndarray:
    with as_ours("it is no list of numbers", InputError, ValueError, TypeError, OverflowError):
        found = np.array(row, np.float64)
    if found.shape != (width,):
        raise InputError(f"it has {found.size} numbers; this guard takes {width}")
    if not (np.abs(found) <= np.finfo(np.float32).max).all():
        raise InputError("a number is missing, infinite or above 3.4e38")
    return found.astype(np.float32)


def _cells(line: list[str], names: list[str], kinds: Mapping[str, str]) -> dict[str, Any]:
    if len(line) != len(names):
        raise InputError(f"it has {counted(len(line), 'cell')}, but the header {counted(len(names), 'column')}")
    return {name: _cell(text, kinds.get(name)) for name, text in zip(names, line, strict=True)}


def _cell(text: str, kind: str | None) -> Any:
    """A cell as a number or a truth where it is one: that it should be, the table says."""
    plain = text.strip()
    if plain in MISSING:
        return None
    if kind == TRUTH:
        return TRUTHS.get(plain.lower(), text)
    with contextlib.suppress(ValueError):
        return float(plain) if kind == NUMBER and "_" not in plain else text
    return text
