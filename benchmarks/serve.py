"""What the service gives: throughput against the bare network, latency, memory under load with reloads, and bad requests.

python benchmarks/serve.py --json serve.json            (all four, short: about four minutes)
python benchmarks/serve.py --only speed --photographs   (ResNet-18 at 224 pixels, JPEG)
python benchmarks/serve.py --only soak --minutes 30
python benchmarks/serve.py --only mixed --requests 10000

Every service is a process of its own on this machine's loopback address. "Bare" is the same server with a guard that decodes the
image and runs the network, and neither scores nor counts drift. Guard and bare are measured in turns in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import torch

import outfield as of
from guard import built, pictures
from serve_client import Connection, Given, encoded, load, mixture, post

TOKEN = "a-token-for-measurements"
BODY = 1_000_000


class Bare:
    """A guard that runs the network and says nothing about OOD: what serving costs without us."""

    def __init__(self, guard: of.Guard) -> None:
        self.prepare, self.threshold, self.watched, self._network = guard.prepare, None, None, guard.backbone.network
        self.takes, self.reader = guard.takes, guard.reader
        self._rows = guard.image_reader.rows  # smaller pieces are faster on a CPU, and the guard has them too
        self._normalise = guard.backbone.preprocessing.preparation(guard.device, torch.float32, torch.contiguous_format)

    def judge_pixels(self, pixels: torch.Tensor) -> list[of.Verdict]:
        """The class of each image."""
        with torch.inference_mode():
            logits = torch.cat([self._network(self._normalise(part)) for part in pixels.split(self._rows)])
        return [of.Verdict(None, index, None, 0.0, 1.0, False) for index in logits.argmax(1).tolist()]


def child(path: Path, bare: bool, timeout: float, body: int, token: str | None) -> None:
    """The process that serves; it prints its port."""
    from outfield.serve import Limits, Service, Settings, make_server
    from outfield.serve.telemetry import log

    log.setLevel("WARNING")
    service = Service([path], Settings(Limits(body=body, timeout=timeout), token, device="cpu", look_every=0.5))
    if bare:
        for model in service.models.values():
            model.guard = cast("of.Guard", Bare(model.guard))
    make_server(service, port=0, ready=lambda address: print(address.split(":")[2].strip("/"), flush=True)).run()


@contextmanager
def serving(path: Path, *options: str) -> Iterator[tuple[int, psutil.Process]]:
    """A service; its port and its process."""
    command = [sys.executable, __file__, "--child", str(path), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), psutil.Process(process.pid)
        process.terminate()
        assert process.wait(60) == 0, "the service did not end as it should"
    finally:
        if process.poll() is None:
            process.kill()


def speed(path: Path, image: bytes, clients: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Requests a second of the guard and of the bare network in turns, and the latency of the guard."""
    request = post("/v1/check", image, "Content-Type: application/octet-stream")
    rates: dict[str, list[float]] = {"guard": [], "bare": []}
    latency: dict[str, list[float]] = {"guard": [], "bare": []}
    with serving(path) as (guard, _), serving(path, "--bare") as (bare, _):
        for port in (guard, bare):
            asyncio.run(load(port, request, clients, 2))
        for _ in range(rounds):
            for name, port in (("guard", guard), ("bare", bare)):
                began = time.perf_counter()
                times, failed = asyncio.run(load(port, request, clients, seconds))
                assert not failed
                rates[name].append(len(times) / (time.perf_counter() - began))
                latency[name] += times
    p50, p99 = (1000 * float(np.quantile(latency["guard"], q)) for q in (0.5, 0.99))
    return {
        "clients": clients,
        "guard_per_s": statistics.median(rates["guard"]),
        "bare_per_s": statistics.median(rates["bare"]),
        "ratio": statistics.median(g / b for g, b in zip(rates["guard"], rates["bare"], strict=True)),
        "p50_ms": p50,
        "p99_ms": p99,
        "p99_over_p50": p99 / p50,
        "requests": len(latency["guard"]),
    }


def soak(path: Path, image: bytes, minutes: float, reload_every: float) -> dict[str, Any]:
    """Memory of a service under load, while its guard is replaced again and again."""
    request = post("/v1/check", image, "Content-Type: application/octet-stream")
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / path.name
        shutil.copy(path, own)
        with serving(own) as (port, process):

            async def run() -> tuple[list[float], int, int, int]:
                ended, memory, reloads = time.monotonic() + 60 * minutes, list[float](), 0
                work = asyncio.create_task(load(port, request, 16, 60 * minutes))
                last = time.monotonic()
                while time.monotonic() < ended:
                    await asyncio.sleep(1)
                    memory.append(process.memory_info().rss / 2**20)
                    if time.monotonic() - last >= reload_every:
                        shutil.copy(path, own.with_suffix(".next"))
                        os.replace(own.with_suffix(".next"), own)
                        reloads, last = reloads + 1, time.monotonic()
                times, failed = await work
                return memory, len(times), failed, reloads

            memory, requests, failed, reloads = asyncio.run(run())
    settled = memory[len(memory) // 3 :]
    half = len(settled) // 2
    before, after = statistics.median(settled[:half]), statistics.median(settled[half:])
    return {
        "minutes": minutes,
        "requests": requests,
        "failed": failed,
        "reloads": reloads,
        "mebibytes": after,
        "change": after / before - 1,
        "largest_over_median": max(settled) / statistics.median(settled) - 1,
    }


async def send(given: Given, connection: Connection, port: int) -> tuple[int | None, bytes]:
    """One request of the mixture, the ugly ones on a connection of their own."""
    if given.part is None and not given.kind.startswith("huge"):
        return await connection.ask(given.content)
    await connection.close()  # it would be idle meanwhile, and the service may hang up
    own = Connection(port)
    try:
        if given.status is not None:
            return await own.ask(given.content[: given.part])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(given.content[: given.part])
        await writer.drain()
        writer.transport.abort()
        return None, b""
    finally:
        await own.close()


def mixed(path: Path, images: list[np.ndarray], requests: int, clients: int) -> dict[str, Any]:
    """Good and bad requests at the same time: every answer must be the right one, and the service must still run."""
    guard = of.Guard.load(path, device="cpu")
    expected = [guard(image) for image in images]
    given = mixture(requests, path.stem, images, BODY, TOKEN, seed=0)
    found: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []

    def right(one: Given, status: int | None, body: bytes) -> bool:
        if status != one.status or one.image is None:
            return status == one.status
        said, verdict = json.loads(body), cast("of.Verdict", expected[one.image])
        if one.kind == "check":
            score, ood, label = (said[0][name] for name in ("score", "is_ood", "class_index"))
        else:
            columns = {output["name"]: output["data"][0] for output in said["outputs"]}
            score, ood, label = (columns[name] for name in ("score", "is_ood", "label"))
        assert verdict.score is not None
        close = abs(score - verdict.score) <= 1e-3 * max(1, abs(verdict.score))
        return close and (ood, label) == (verdict.is_ood, verdict.class_index)

    with serving(path, "--timeout", "5", "--body", str(BODY), "--token", TOKEN) as (port, process):

        async def run() -> str:
            todo = iter(given)

            async def client() -> None:
                connection = Connection(port)
                for one in todo:
                    try:
                        status, body = await send(one, connection, port)
                        while status == 429:  # not accepted: come back, as it says
                            found["429, asked again"] += 1
                            await asyncio.sleep(0.2)
                            status, body = await send(one, connection, port)
                    except (OSError, EOFError, TimeoutError) as error:
                        status, body = -1, repr(error).encode()
                        await connection.close()
                    found[f"{one.kind}: {status}"] += 1
                    if not right(one, status, body):
                        wrong.append(f"{one.kind}: {status} {body[:200]!r}")
                await connection.close()

            await asyncio.gather(*(client() for _ in range(clients)))
            await asyncio.sleep(1)
            connection = Connection(port)
            request = f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            status, body = await connection.ask(request.encode())
            await connection.close()
            assert status == 200
            return body.decode()

        began = time.monotonic()
        metrics = asyncio.run(run())
        alive, memory = process.is_running(), process.memory_info().rss / 2**20
    lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    name = path.stem
    judged = sum(
        int(lines[f'outfield_samples_total{{model_name="{name}",decision="{which}"}}']) for which in ("id", "ood")
    )
    return {
        "requests": len(given),
        "seconds": time.monotonic() - began,
        "good": sum(one.image is not None for one in given),
        "images_judged": judged,
        "left_in_queue": int(lines[f'outfield_queue_images{{model_name="{name}"}}']),
        "wrong": len(wrong),
        "first_wrong": wrong[:5],
        "alive": alive,
        "mebibytes": memory,
        "by_kind": dict(sorted(found.items())),
    }


def demo_guard() -> Path:
    from importlib import resources

    return Path(str(resources.files("outfield_demo") / "cifar10.guard"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("speed", "soak", "mixed"))
    parser.add_argument("--guard", type=Path, help="a guard; the demo's if not given")
    parser.add_argument(
        "--photographs", action="store_true", help="a ResNet-18 at 224 pixels of random weights instead"
    )
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8, help="of one round of the speed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1, help="of the soak")
    parser.add_argument("--reload-every", type=float, default=5, help="seconds")
    parser.add_argument("--requests", type=int, default=2000, help="of the mixture")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=60, help=argparse.SUPPRESS)
    parser.add_argument("--body", type=int, default=2**25, help=argparse.SUPPRESS)
    parser.add_argument("--token", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.child, given.bare, given.timeout, given.body, given.token)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = given.guard or demo_guard()
        size, kind = (32, 32), "PNG"
        if given.photographs:
            built(Path(folder), 224, 300)
            path, size, kind = Path(folder) / "224-300.guard", (480, 640), "JPEG"
        images = [*pictures(16, size, 5), *np.random.default_rng(0).integers(0, 256, (16, *size, 3), np.uint8)]
        image = encoded(images[0], kind)
        parts: dict[str, Any] = {}
        if given.only in (None, "speed"):
            parts["speed"] = speed(path, image, given.clients, given.seconds, given.rounds)
        if given.only in (None, "soak"):
            parts["soak"] = soak(path, image, given.minutes, given.reload_every)
        if given.only in (None, "mixed"):
            parts["mixed"] = mixed(path, images, given.requests, given.clients)
    for name, part in parts.items():
        print(name, json.dumps(part, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(parts, indent=1) + "\n")


if __name__ == "__main__":
    main()
