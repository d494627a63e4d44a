"""A small HTTP/1.1 client for measurements: one connection, as little of its own as possible; and requests, good and bad."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import random
import struct
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image


class Connection:
    """Keeps a connection open and asks one thing after the other."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, request: bytes, seconds: float = 60.0) -> tuple[int, bytes]:
        """Send a request and read the answer: its status and body."""
        async with asyncio.timeout(seconds):
            if self.writer is None:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
            assert self.reader is not None
            self.writer.write(request)
            with contextlib.suppress(ConnectionError):  # an answer may come before all was taken
                await self.writer.drain()
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length:")[2].partition("\r\n")[0])
            body = await self.reader.readexactly(length)
            if "connection: close" in head:
                await self.close()
            return int(head.split(" ", 2)[1]), body

    async def close(self) -> None:
        """Hang up."""
        if self.writer is not None:
            self.writer.close()
            with contextlib.suppress(OSError):
                await self.writer.wait_closed()
        self.reader = self.writer = None


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    """An image as a file."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, quality=90)
    return buffer.getvalue()


def bomb() -> bytes:
    """A PNG of 60,000 × 60,000 pixels, in a few bytes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@dataclass(frozen=True)
class Given:
    """One request of the mixture.

    Attributes:
        kind: What it is.
        content: Bytes to send.
        status: That must come back; None where the client hangs up before.
        image: Number of the image that is judged, or None.
        part: Send only so much of it.
    """

    kind: str
    content: bytes
    status: int | None
    image: int | None = None
    part: int | None = None


def mixture(count: int, guard: str, images: list[np.ndarray], body: int, token: str, seed: int) -> list[Given]:
    """Good and bad requests in random order; half of them good."""
    rng = random.Random(seed)
    auth = f"Authorization: Bearer {token}"
    files = [encoded(image) for image in images]
    infer, check = f"/v2/models/{guard}/infer", f"/v1/check?guard={guard}"
    png = "Content-Type: image/png"

    def tensor(number: int, **changed: object) -> bytes:
        data = base64.b64encode(files[number]).decode()
        return json.dumps(
            {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [data], **changed}]}
        ).encode()

    def binary(number: int) -> bytes:
        shape = [1, *images[number].shape]
        said = {
            "name": "pixels",
            "datatype": "UINT8",
            "shape": shape,
            "parameters": {"binary_data_size": images[number].size},
        }
        head = json.dumps({"inputs": [said]}).encode()
        return post(infer, head + images[number].tobytes(), auth, f"Inference-Header-Content-Length: {len(head)}")

    def one() -> Given:
        number = rng.randrange(len(files))
        file = files[number]
        kind = rng.choice(["check", "json", "binary"]) if rng.random() < 0.5 else rng.choice(BAD)
        good = post(check, file, auth, png)
        match kind:
            case "check":
                return Given(kind, good, 200, number)
            case "json":
                return Given(kind, post(infer, tensor(number), auth), 200, number)
            case "binary":
                return Given(kind, binary(number), 200, number)
            case "broken image":
                cut = file[: rng.randrange(len(file) // 2)]
                return Given(kind, post(infer, json.dumps({"inputs": [_bytes(cut)]}).encode(), auth), 400)
            case "bomb":
                return Given(kind, post(infer, json.dumps({"inputs": [_bytes(bomb())]}).encode(), auth), 400)
            case "wrong type":
                wrong: dict[str, Any] = rng.choice(
                    [{"datatype": "FP64"}, {"shape": [2]}, {"shape": "x"}, {"data": [1]}, {"name": 7}]
                )
                return Given(kind, post(infer, tensor(number, **wrong), auth), 400)
            case "no json":
                return Given(kind, post(infer, rng.randbytes(100), auth), 400)
            case "wrong token":
                return Given(kind, post(check, file, f"Authorization: Bearer {token[:-1]}", png), 401)
            case "unknown guard":
                return Given(kind, post("/v2/models/none/infer", tensor(number), auth), 404)
            case "huge":
                return Given(kind, post(check, bytes(body + 1), auth, png), 413)
            case "huge, chunked":
                head = "\r\n".join(
                    [f"POST {check} HTTP/1.1", "Host: 127.0.0.1", "Transfer-Encoding: chunked", auth, png, "", ""]
                )
                piece = f"{body // 4:x}\r\n".encode() + bytes(body // 4) + b"\r\n"
                return Given(kind, head.encode() + 5 * piece + b"0\r\n\r\n", 413)
            case "slow":
                return Given(kind, good, 408, part=len(good) - 5)
            case _:  # "aborted"
                return Given(kind, good, None, part=rng.randrange(1, len(good)))

    return [one() for _ in range(count)]


WRONG: list[dict[str, Any]] = [{"datatype": "FP64"}, {"shape": [2]}, {"shape": "x"}, {"data": [1]}, {"name": 7}]
BAD = [
    *("broken image", "bomb", "wrong type", "no json", "wrong token", "unknown guard", "aborted") * 5,
    *("huge", "huge, chunked", "slow"),
]
"""Kinds of bad requests; the costly ones are rarer."""


def _bytes(content: bytes) -> dict[str, object]:
    return {"name": "image", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(content).decode()]}


async def load(port: int, request: bytes, clients: int, seconds: float) -> tuple[list[float], int]:
    """Several clients, each of which asks again when it has its answer: seconds of each request, and how many failed."""
    ended, times, failed = time.perf_counter() + seconds, list[float](), 0

    async def client() -> None:
        nonlocal failed
        connection = Connection(port)
        while (began := time.perf_counter()) < ended:
            status, _ = await connection.ask(request)
            times.append(time.perf_counter() - began)
            failed += status != 200
        await connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return times, failed
