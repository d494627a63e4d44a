"""Cost of a row by this process and on Ray, two workers against one, and what 10⁹ rows cost by that.

python benchmarks/cluster.py --rows 512 --pairs 3
python benchmarks/cluster.py --rows 512 --pairs 3 --architecture resnet18 --size 224

Runs with one and with two workers take turns, so that whatever else the machine does hits both. The time of a run is measured
twice: all of it on a cluster that is there already, and between its first and its last part of results, which is what counts
where there are many. The CPU time of a row is told, too, which other work on the machine changes less, and who used the cores
between the first and the last part: the workers, this process (the driver), the rest of Ray, or nobody; what is missing to the
number of cores went to programs of others.
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
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow
import ray
from PIL import Image
from pyarrow import parquet

import outfield as of
from outfield.backbone import Classifier
from outfield.scale import connected
from outfield.scale import score_files as score

PART = 32
SMALL = 64
"""Up to so many pixels, networks have a stem for small images, and images are noise in PNG."""


def picture(rng: np.random.Generator, size: int) -> Image.Image:
    """Noise; of larger images, noise of 32 × 32 pixels made larger, which JPEG shrinks about as it does photographs."""
    image = Image.fromarray(rng.integers(0, 256, (min(size, 32), min(size, 32), 3), dtype=np.uint8))
    return image.resize((size, size), Image.Resampling.BICUBIC)


def make(folder: Path, architecture: str, rows: int, size: int = 32, seed: int = 0) -> None:
    """A guard of an untrained network, a folder of images of ``size`` × ``size``, and Parquet of features."""
    rng = np.random.default_rng(seed)
    classifier = Classifier(architecture, 10, small_images=size <= SMALL, size=(size, size))
    of.save_classifier(folder / "net.safetensors", classifier, classifier.build(0).state_dict())
    pixels = np.stack([np.asarray(picture(rng, size)) for _ in range(400)])
    images = of.ImageArray(pixels, rng.integers(0, 10, 400))
    guard = of.Guard.build(str(folder / "net.safetensors"), images, detector="SSD", device="cpu", workers=0)
    guard.save(folder / "my.guard")
    (folder / "photos").mkdir()
    for i in range(rows):
        picture(rng, size).save(folder / "photos" / f"{i:06d}.{'png' if size <= SMALL else 'jpg'}")
    features = rng.random((40_000, guard.widths["features"]), dtype=np.float32)
    parquet.write_table(pyarrow.table({"features": [*features]}), folder / "features.parquet")


class Look(NamedTuple):
    """What there is at a moment: parts of results, and seconds of CPU so far, by who used them."""

    time: float
    parts: int
    workers: dict[int, float]
    others: dict[str, float]


class Watch:
    """Looks at this process and those of Ray while they run."""

    def __init__(self, out: Path) -> None:
        self.out, self.over = out, threading.Event()
        self.seen: list[Look] = []
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            self.seen.append(self._look())

    def _look(self) -> Look:
        workers, others = {}, {"driver": time.process_time(), "rest of Ray": 0.0, "nobody": psutil.cpu_times().idle}
        for one in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                used = one.cpu_times()
                if "ScoringActor" in " ".join(one.cmdline()):
                    workers[one.pid] = used.user + used.system
                else:
                    others["rest of Ray"] += used.user + used.system
        return Look(time.monotonic(), len([*self.out.glob("part-*")]), workers, others)

    def ended(self, workers: int, size: float) -> dict[str, Any]:
        """Seconds of CPU of a row, and cores by who used them, while all workers were at work."""
        self.over.set()
        self.thread.join()
        there = [look for look in self.seen if look.parts >= 2 * workers and len(look.workers) == workers]
        if len(there) < 2 or there[-1].parts == there[0].parts:
            return {}
        first, last = there[0], there[-1]
        wall, used = (
            last.time - first.time,
            sum(last.workers[pid] - first.workers.get(pid, 0.0) for pid in last.workers),
        )
        cores = {name: (last.others[name] - first.others[name]) / wall for name in first.others}
        rows = (last.parts - first.parts) * size
        return {"cpu of a row on Ray": used / rows, "cores": {"workers": used / wall, **cores}}


def timed(folder: Path, source: str, out: str, **settings: Any) -> dict[str, Any]:
    """Seconds of a run, seconds of CPU of this process, and rows a second between its first and last part."""
    watch = Watch(folder / out)
    began, cpu = time.monotonic(), time.process_time()
    done = score(folder / "my.guard", str(folder / source), str(folder / out), device="cpu", **settings)
    found: dict[str, Any] = {"seconds": time.monotonic() - began, "cpu": time.process_time() - cpu, "rows": done.rows}
    times = sorted(path.stat().st_mtime for path in (folder / out).glob("part-*"))
    workers = settings.get("workers", 1)
    # The first part of each worker ends when its start-up does; from then on all of them are at work.
    size, steady = done.rows / done.parts, times[-1] - times[workers - 1]
    found |= watch.ended(workers, size)
    return {**found, "rate": (done.parts - workers) * size / steady if steady else float("nan")}


def column(runs: dict[int, list[dict[str, Any]]], name: str) -> dict[int, list[Any]]:
    """A number of all runs, by how many workers they had."""
    return {workers: [run.get(name) for run in some] for workers, some in runs.items()}


def ratios(name: str, found: dict[int, list[float]], *, faster: bool) -> dict[str, Any]:
    """How many times as fast two workers are as one, pair by pair: by rates, or by seconds."""
    pairs = [b / a if faster else a / b for a, b in zip(found[1], found[2], strict=True)]
    return {f"ratio of {name}": pairs, f"median ratio of {name}": statistics.median(pairs)}


def main() -> None:
    """Measure, and print a line of JSON."""
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=512)
    options.add_argument("--pairs", type=int, default=3)
    options.add_argument("--architecture", default="resnet34")
    options.add_argument("--size", type=int, default=32, help="height and width of the images")
    given = options.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as name:
        folder = Path(name)
        make(folder, given.architecture, given.rows, given.size)
        local = timed(folder, "photos", "local", part_rows=PART)
        tables = timed(folder, "features.parquet", "tables", part_rows=4096)
        began = time.monotonic()
        with connected("local", 2):
            start = time.monotonic() - began
            runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
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
            "pixels": given.size,
            "rows": given.rows,
            "local": local,
            "tables": tables,
            "tables on ray": on_ray,
            "start of a cluster": start,
            "eight images": {"local": tiny_local["seconds"], "ray": tiny["seconds"]},
            "rates": column(runs, "rate"),
            "seconds": column(runs, "seconds"),
            "cpu of a row": column(runs, "cpu of a row on Ray"),
            "cores": column(runs, "cores"),
            **ratios("rates", column(runs, "rate"), faster=True),
            **ratios("whole runs", column(runs, "seconds"), faster=False),
            "ray": ray.__version__,
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
