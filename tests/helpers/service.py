"""Services of small guards on this machine: in this process, or as a program of their own."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from tests.helpers.guards import small_guard, ssd_guard, trained

from outfield.serve import Service, Settings, make_server


def guard_files(folder: Path) -> dict[str, Path]:
    """Two guards of one small network, ``fused.guard`` and ``ssd.guard``."""
    trained(folder / "net.safetensors")
    paths = {name: folder / f"{name}.guard" for name in ("fused", "ssd")}
    for path, content in zip(paths.values(), _guards(), strict=True):
        path.write_bytes(content)
    return paths


@functools.cache
def _guards() -> tuple[bytes, bytes]:
    """The content of both files: built once by a process, however many tests serve them."""
    with tempfile.TemporaryDirectory() as folder:
        network, path = trained(Path(folder) / "net.safetensors"), Path(folder) / "made.guard"
        small_guard(network).save(path)
        fused = path.read_bytes()
        ssd_guard().save(path)
        return fused, path.read_bytes()


def png(image: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind)
    return buffer.getvalue()


class Running:
    """A service with its address and a client."""

    def __init__(self, service: Service, address: str, token: str | None = None) -> None:
        self.service, self.address = service, address
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=address, headers=headers, timeout=120, trust_env=False)

    @property
    def port(self) -> int:
        return httpx.URL(self.address).port or 80

    def check(self, *images: bytes, **query: str) -> httpx.Response:
        """Upload images as a form."""
        files = [("file", (f"{number}.png", image)) for number, image in enumerate(images)]
        return self.client.post("/v1/check", files=files, params=query)


def parsed_metrics(text: str) -> dict[tuple[Any, ...], float]:
    """Values of Prometheus's text format, by name and labels."""
    families = text_string_to_metric_families(text)
    return {(one.name, *sorted(one.labels.items())): one.value for family in families for one in family.samples}


@contextlib.contextmanager
def running(*paths: Path, **settings: object):
    """Serve guards from a thread of this process."""
    made = Settings(**{"device": "cpu", **settings})  # type: ignore[arg-type]
    service = Service(paths, made)
    addresses: list[str] = []
    server = make_server(service, port=0, ready=addresses.append)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 120
    while not addresses and thread.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    found = Running(service, addresses[0], made.token)
    try:
        yield found
    finally:
        found.client.close()
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()


class Program:
    """``outfield serve`` as a program of its own; stderr goes to a file of JSON lines, stdout to another."""

    def __init__(self, folder: Path, *arguments: object, **environment: str) -> None:
        self.log = folder / f"log-{time.monotonic_ns()}.jsonl"
        fixed = ("--port", "0", "--device", "cpu", "--drain", "1")
        command = [sys.executable, "-m", "outfield", "serve", *map(str, arguments), *fixed]
        self.out = self.log.with_suffix(".txt")
        with self.log.open("w") as errors, self.out.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=errors, env={**os.environ, **environment})
        self.address = self.wait_for("serving")["address"]

    def lines(self) -> list[dict[str, object]]:
        """All that was said, every whole line of which is JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, event: str, seconds: float = 300) -> dict[str, str]:
        """The first log line of an event."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            found = [line for line in self.lines() if line["event"] == event]
            if found:
                return found[0]  # type: ignore[return-value]
            time.sleep(0.05)
        raise AssertionError(f"no {event!r}: {self.log.read_text()[-2000:]}")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(120)
