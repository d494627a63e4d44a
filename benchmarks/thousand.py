"""A thousand classes and a million rows: fit and score from disk, beside the matrix products inside them.

    python benchmarks/thousand.py make --folder DATA          (1,281,167 × 2,048 float16, logits and test rows: 8.1 GB)
    python benchmarks/thousand.py ssd vim --folder DATA --out ssd.json
    python benchmarks/thousand.py make --folder DATA --device cuda
    python benchmarks/thousand.py corrected --epochs 1 --folder DATA --device cuda --out corrected.json
    python benchmarks/thousand.py table ssd.json corrected.json

``--rows``, ``--width``, ``--classes`` and ``--queries`` of ``make`` give a smaller set (:mod:`thousand_data` says what is in it).
Every detector is fitted on all training rows. SSD, ViM and EnergyCorrected then score the training rows, KNN and Fused the test
rows, from disk each; ivf and hnsw are KNN with faiss's indexes, whose share is of the exact search's product.

"products" is the time that the matrix products inside take alone, on resident operands of the shapes in which they occur, on all
threads, measured before and after: share = products / time. Fitting SSD is the float64 product of the scatter matrix, 2 N D²
operations, though only half of that symmetric matrix is computed. What comes once after it, however many rows there are, is told
apart ("then"): the decomposition of the covariance, the digest of what was learned, faiss's index. "reading" is the time of plain
reads of the same file, which a GPU waits for. Memory is what was allocated at most above what there was before and what the
fitted detector keeps.
"""

from __future__ import annotations

import argparse
import json
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import outfield as of
from measure import machine
from outfield.detectors.distance.neighbours import INDEXES
from outfield.detectors.head.vim import principal_dimension
from outfield.energy.loop import Run
from thousand_data import CLASSES, QUERIES, ROWS, WIDTH, Size, forget, make, opened, size_of

TIMED_ROWS = {"cpu": 4096, "cuda": 8192}
BANK_ROWS = 16_384
HIDDEN, DEPTH = 1024, 4


@dataclass(frozen=True)
class Product:
    """(rows, inner) · (inner, columns), taken some rows at a time; or, of a scatter matrix, (inner, rows) · (rows, columns)."""

    rows: int
    inner: int
    columns: int
    dtype: torch.dtype
    scatter: bool = False

    def seconds(self, device: torch.device, most: float = 2.0) -> float:
        """Time of the whole, by taking a part of it again and again."""
        count, columns = min(self.rows, TIMED_ROWS[device.type]), min(self.columns, BANK_ROWS)
        left = torch.rand(count, self.inner, dtype=self.dtype, device=device)
        right = left if self.scatter else torch.rand(self.inner, columns, dtype=self.dtype, device=device)
        left = left.T if self.scatter else left
        out = left @ right
        wait(device)
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < most and done < 20:
            torch.mm(left, right, out=out)
            done += 1
            wait(device)
        each = (time.perf_counter() - begin) / done
        return each * (self.rows / count) * (self.columns / columns)


def fit_products(name: str, size: Size) -> list[Product]:
    n, d, k, double = size.rows, size.width, size.classes, torch.float64
    scatter = Product(n, d, d, double, scatter=True)
    if name == "vim":
        return [scatter, Product(n, d, d - principal_dimension(d), double), Product(n, d, k, double)]
    if name == "fused":
        held_out = replace(size, queries=round(0.1 * n), rows=n - round(0.1 * n))
        return [replace(scatter, rows=held_out.rows), *score_products(name, held_out)]
    return [scatter] if name == "ssd" else []


def score_products(name: str, size: Size) -> list[Product]:
    n, d, k, single = size.rows, size.width, size.classes, torch.float32
    mixture = [Product(n, d, d, single), Product(n, d, k, single)]
    nearest = Product(size.queries, d, n, single)
    return {
        "ssd": mixture,
        "vim": [Product(n, d, d - principal_dimension(d), torch.float64), Product(n, d, k, torch.float64)],
        "knn": [nearest],
        "ivf": [nearest],
        "hnsw": [nearest],
        "fused": [*(replace(one, rows=size.queries) for one in mixture), nearest],
        "corrected": [*mixture, Product(n, d, HIDDEN, single), Product(n, HIDDEN, DEPTH * HIDDEN, single)],
    }[name]


class Watch:
    """Time and memory of a piece of work: megabytes above what there was, on the machine and on the GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self.resident, self.on_gpu = device, 0.0, 0.0, 0.0

    def run(self, work: Callable[[], object]) -> None:
        done, highest, before = threading.Event(), [0], resident()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            allocated = torch.cuda.memory_allocated()

        def look() -> None:
            while not done.wait(0.005):
                highest[0] = max(highest[0], resident())

        thread = threading.Thread(target=look)
        thread.start()
        begin = time.perf_counter()
        try:
            work()
            wait(self.device)
        finally:
            self.seconds = time.perf_counter() - begin
            done.set()
            thread.join()
        self.resident = max(0, highest[0] - before) / 1e6
        if self.device.type == "cuda":
            self.on_gpu = (torch.cuda.max_memory_allocated() - allocated) / 1e6


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def reading(folder: Path, name: str) -> float:
    """Seconds that plain reads of the features take, by the first gigabyte."""
    path, buffer, done = folder / f"{name}_features.npy", bytearray(2**23), 0
    begin = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while done < 10**9 and (count := file.readinto(buffer)):
            done += count
    return (time.perf_counter() - begin) * path.stat().st_size / done


def measured(
    work: Callable[[], object], products: Sequence[Product], device: torch.device, repeats: int
) -> dict[str, float]:
    """What ``work`` takes and what its products take alone, in turns; of several turns the one with the median share."""
    turns = []
    before = sum(product.seconds(device) for product in products)
    for _ in range(repeats):
        watch = Watch(device)
        watch.run(work)
        after = sum(product.seconds(device) for product in products)
        alone, before = (before + after) / 2, after
        turns.append({"seconds": watch.seconds, "products": alone, "resident": watch.resident, "on_gpu": watch.on_gpu})
    memory = {name: max(turn[name] for turn in turns) for name in ("resident", "on_gpu")}
    turns.sort(key=lambda turn: turn["products"] / turn["seconds"])
    shares = [turn["products"] / turn["seconds"] for turn in turns]
    return turns[len(turns) // 2] | memory | {"lowest": shares[0], "highest": shares[-1], "turns": len(turns)}


def detector_for(name: str, epochs: int) -> of.Detector:
    if name == "corrected":
        return of.EnergyCorrected(training=of.Training(epochs=epochs))
    if name in INDEXES:
        return of.KNN(index=name)
    made: of.Detector = {"ssd": of.SSD, "vim": of.ViM, "knn": of.KNN, "fused": of.Fused}[name]()
    return made


class Steps:
    """Watches the steps of a training, and ends each epoch after ``most`` of them where that is given."""

    def __init__(self, most: int, device: torch.device) -> None:
        self.times: list[float] = []
        step = Run.step

        def watched(run: Run) -> None:
            run.batches = min(run.batches, most or run.batches)
            step(run)
            self.count = run.batches * run.training.epochs
            if len(self.times) < 3 or run.batch == 0:
                wait(device)
            self.times.append(time.perf_counter())

        setattr(Run, "step", watched)  # noqa: B010  # a method is replaced, which no type allows

    def report(self) -> dict[str, float]:
        """Steps, and the seconds of one once kernels were compiled and recorded, which the first two steps do."""
        return {"steps": self.count, "step_seconds": (self.times[-1] - self.times[2]) / max(1, len(self.times) - 3)}


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Fit and score one detector; a line for the table."""
    folder, device, size = options.folder, torch.device(options.device), size_of(options.folder)
    detector = detector_for(name, options.epochs).to(options.device)
    steps = Steps(options.steps, device) if name == "corrected" else None
    scored = "train" if name in ("ssd", "vim", "corrected") else "test"
    train, test = opened(folder, "train"), opened(folder, scored)
    found: dict[str, Any] = {"name": name, "machine": described(device), "size": asdict(size)}
    if options.cold:
        forget(folder)
    found["fit"] = measured(lambda: detector.fit(train), fit_products(name, size), device, options.repeats)
    begin = time.perf_counter()
    detector.fingerprint()
    if isinstance(detector, of.KNN):
        _ = detector._neighbours
    wait(device)
    found["fit"]["once"] = time.perf_counter() - begin
    if steps is not None:
        found["fit"] |= steps.report() | {"epochs": options.epochs}
    found["score"] = measured(lambda: detector.score(test), score_products(name, size), device, options.repeats)
    found["score"]["rows"] = len(test)
    if isinstance(detector, of.KNN) and detector.index != "exact":
        found["score"]["recall"] = detector.recall(test)
    found["model"] = sum(value.numel() * value.element_size() for value in detector._state().values()) / 1e6
    found["fit"]["reading"], found["score"]["reading"] = reading(folder, "train"), reading(folder, scored)
    return found


def described(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}"
    return machine()


def row(found: dict[str, Any], step: str) -> str:
    """A line of the table in Markdown."""
    part, size = found[step], found["size"]
    rows = size["rows"] if step == "fit" else part["rows"]
    alone, share = "–", "–"
    if part["products"] and "steps" not in part:
        alone, share = f"{part['products']:.1f} s", f"{part['products'] / part['seconds']:.2f}"
    if part["products"] and part["turns"] > 1:
        share += f" ({part['lowest']:.2f} to {part['highest']:.2f})"
    here, there = part["resident"], part["on_gpu"]
    if step == "fit":  # the detector is where it was fitted
        here, there = (here, there - found["model"]) if there else (here - found["model"], there)
    memory = f"{max(0.0, here):,.0f} MB" + (f", on the GPU {max(0.0, there):,.0f} MB" if part["on_gpu"] else "")
    note = f", then {part['once']:.1f} s" if part.get("once", 0) >= 0.1 else ""
    if "recall" in part:
        note += f", recall {part['recall']:.3f}"
    if "steps" in part:
        note += f", {part['epochs']} × {part['steps'] // part['epochs']:,} steps of {1e3 * part['step_seconds']:.2f} ms"
    return (
        f"| {found['name']} {step}{note} | {rows:,} | {part['seconds']:.1f} s | {alone} | {share} "
        f"| {part['reading']:.1f} s | {found['model']:,.0f} MB | {memory} |"
    )


def table(paths: Sequence[Path]) -> None:
    """Print what was measured, a table for each machine and size."""
    lines = [line for path in paths for line in json.loads(path.read_text())]
    for title in dict.fromkeys(heading(line) for line in lines):
        print(f"\n{title}\n\n| | rows | time | products alone | share | reading alone | model | memory above it |")
        print("|---|---|---|---|---|---|---|---|")
        for line in lines:
            if heading(line) == title:
                print(row(line, "fit"))
                print(row(line, "score"))


def heading(line: dict[str, Any]) -> str:
    size = Size(**line["size"])
    return f"{line['machine']}: N = {size.rows:,}, D = {size.width:,}, K = {size.classes:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="+", help="make, table FILES, or any of ssd, vim, knn, ivf, hnsw, fused, corrected"
    )
    parser.add_argument("--folder", type=Path, default=Path("thousand"), help="where the rows are, or go")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--epochs", type=int, default=20, help="of the correction")
    parser.add_argument("--steps", type=int, default=0, help="end each epoch of the correction after so many steps")
    parser.add_argument("--repeats", type=int, default=1, help="turns of the work and its products")
    parser.add_argument("--cold", action="store_true", help="ask the system to forget the file before the fit")
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args()
    first, *rest = options.what
    if first == "table":
        table([Path(path) for path in rest])
    elif first == "make":
        begin = time.perf_counter()
        make(options.folder, Size(options.rows, options.width, options.classes, options.queries), options.device)
        print(f"wrote {options.rows:,} rows in {time.perf_counter() - begin:.1f} s")
    else:
        found = []
        for name in options.what:
            found.append(run(name, options))
            print(row(found[-1], "fit"), row(found[-1], "score"), sep="\n", flush=True)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
