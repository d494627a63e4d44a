"""Cost of a row by this process and on Ray, two workers against one, and what 10⁹ rows cost by that.

python benchmarks/cluster.py --rows 512 --pairs 3

Runs with one and with two workers take turns, so that whatever else the machine does hits both. The time of a run is measured
twice: all of it on a cluster that is there already, and between its first and its last part of results, which is what counts
where there are many. The CPU time of a row is told, too, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow
import ray
from PIL import Image
from pyarrow import parquet

import outfield as of
from outfield.backbone.architectures import Classifier
from outfield.cluster.connection import connected
from outfield.cluster.score import score

PART = 32


def make(folder: Path, architecture: str, rows: int, seed: int = 0) -> None:
    """A guard of an untrained network, a folder of images of 32 × 32, and Parquet of features."""
    rng = np.random.default_rng(seed)
    classifier = Classifier(architecture, 10)
    of.save_classifier(folder / "net.safetensors", classifier, classifier.build(0).state_dict())
    images = of.ImageArray(rng.integers(0, 256, (400, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 400))
    guard = of.Guard.build(str(folder / "net.safetensors"), images, detector="SSD", device="cpu", workers=0)
    guard.save(folder / "my.guard")
    (folder / "photos").mkdir()
    for i in range(rows):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / "photos" / f"{i:06d}.png")
    features = rng.random((40_000, guard.widths["features"]), dtype=np.float32)
    parquet.write_table(pyarrow.table({"features": [*features]}), folder / "features.parquet")


class Watch:
    """Looks at the workers of Ray while they run: their CPU time, and how many parts there are by then."""

    def __init__(self, out: Path) -> None:
        self.out, self.over = out, threading.Event()
        self.seen: list[tuple[int, dict[int, float]]] = []
        self.thread = threading.Thread(target=self._look)
        self.thread.start()

    def _look(self) -> None:
        while not self.over.wait(0.2):
            times = {}
            for one in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "ScoringActor" in " ".join(one.cmdline()):
                        used = one.cpu_times()
                        times[one.pid] = used.user + used.system
            self.seen.append((len([*self.out.glob("part-*")]), times))

    def cpu_of_a_part(self, workers: int) -> float:
        """Seconds of CPU for each part behind the first ones, during which workers start."""
        self.over.set()
        self.thread.join()
        there = [(parts, times) for parts, times in self.seen if parts >= 2 * workers and len(times) == workers]
        if len(there) < 2 or there[-1][0] == there[0][0]:
            return float("nan")
        (first, before), (last, after) = there[0], there[-1]
        return sum(after[pid] - before.get(pid, 0.0) for pid in after) / (last - first)


def timed(folder: Path, source: str, out: str, **settings: Any) -> dict[str, float]:
    """Seconds of a run, seconds of CPU of this process, and rows a second between its first and last part."""
    watch = Watch(folder / out)
    began, cpu = time.monotonic(), time.process_time()
    done = score(folder / "my.guard", str(folder / source), str(folder / out), device="cpu", **settings)
    found = {"seconds": time.monotonic() - began, "cpu": time.process_time() - cpu, "rows": done.rows}
    times = sorted(path.stat().st_mtime for path in (folder / out).glob("part-*"))
    workers = settings.get("workers", 1)
    # The first part of each worker ends when its start-up does; from then on all of them are at work.
    size, steady = done.rows / done.parts, times[-1] - times[workers - 1]
    found["cpu of a row on Ray"] = watch.cpu_of_a_part(workers) / size
    return {**found, "rate": (done.parts - workers) * size / steady if steady else float("nan")}


def main() -> None:
    """Measure, and print a line of JSON."""
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=512)
    options.add_argument("--pairs", type=int, default=3)
    options.add_argument("--architecture", default="resnet34")
    given = options.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as name:
        folder = Path(name)
        make(folder, given.architecture, given.rows)
        local = timed(folder, "photos", "local", part_rows=PART)
        tables = timed(folder, "features.parquet", "tables", part_rows=4096)
        began = time.monotonic()
        with connected("local", 2):
            start = time.monotonic() - began
            runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
            for i in range(given.pairs):
                for workers in (1, 2):
                    settings = {"engine": "ray", "workers": workers, "part_rows": PART}
                    runs[workers].append(timed(folder, "photos", f"ray{workers}-{i}", **settings))
                    print(workers, runs[workers][-1], file=sys.stderr)
            (folder / "few").mkdir()
            for path in sorted((folder / "photos").iterdir())[:8]:
                (folder / "few" / path.name).write_bytes(path.read_bytes())
            tiny = timed(folder, "few", "few-ray", engine="ray", workers=1)
            on_ray = timed(folder, "features.parquet", "tables-ray", engine="ray", workers=2, part_rows=4096)
        tiny_local = timed(folder, "few", "few-local")
        found = {
            "load before": load,
            "load after": os.getloadavg()[0],
            "network": given.architecture,
            "rows": given.rows,
            "local": local,
            "tables": tables,
            "tables on ray": on_ray,
            "start of a cluster": start,
            "eight images": {"local": tiny_local["seconds"], "ray": tiny["seconds"]},
            "rates": {workers: [run["rate"] for run in some] for workers, some in runs.items()},
            "seconds": {workers: [run["seconds"] for run in some] for workers, some in runs.items()},
            "cpu of a row": {workers: [run["cpu of a row on Ray"] for run in some] for workers, some in runs.items()},
            "ratio of rates": [b["rate"] / a["rate"] for a, b in zip(runs[1], runs[2], strict=True)],
            "median ratio": statistics.median(b["rate"] / a["rate"] for a, b in zip(runs[1], runs[2], strict=True)),
            "ray": ray.__version__,
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
