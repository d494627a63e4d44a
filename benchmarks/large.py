"""Fitting and scoring a file larger than one would load, beside what bounds it: the float64 product and the disk.

    python benchmarks/large.py                      (5,000,000 × 512 float16, 5.1 GB, written to the temporary folder)
    python benchmarks/large.py --rows 500000 --format safetensors --folder /data

Each fit and score runs in a process of its own; its memory is that process's highest resident size, interpreter and torch
included. The product is that of the fit (``z.T @ z`` in double) or of the score (``z @ whitening`` in float) on all threads,
2 N D² operations, timed before and after each run. "cold" means that the system was asked to forget the file's pages
(posix_fadvise, which it may ignore); "warm" that the file has just been read. A share of 1 is the rate of the slower of the
two bounds, product and disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

import outfield as of

PIECE = 65_536
CLASSES = 10


def make_rows(start: int, count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Non-negative float16 features in classes, and their labels, the same whatever the pieces are asked for."""
    rng = np.random.default_rng(start)
    labels = np.arange(start, start + count) % CLASSES
    centres = np.random.default_rng(99).random((CLASSES, width), np.float32)
    noise = rng.standard_normal((count, width), np.float32)
    return np.maximum(centres[labels] + 0.3 * noise, 0).astype(np.float16), labels


def write(folder: Path, rows: int, width: int, ending: str) -> list[Path]:
    """The test data as ``features.npy`` and ``labels.npy`` or as one safetensors file, in pieces."""
    places = _npy_places(folder, rows, width) if ending == "npy" else _safetensors_places(folder, rows, width)
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("r+b")) for path, _ in places]
        for file, (_, offset) in zip(files, places, strict=True):
            file.seek(offset)
        for start in range(0, rows, PIECE):
            for file, array in zip(files, make_rows(start, min(PIECE, rows - start), width), strict=True):
                file.write(array.tobytes())
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    return list(dict.fromkeys(path for path, _ in places))


def _npy_places(folder: Path, rows: int, width: int) -> list[tuple[Path, int]]:
    """Files that hold only headers yet, and where the arrays go."""
    places = []
    for name, dtype, shape in (("features", "<f2", (rows, width)), ("labels", "<i8", (rows,))):
        with (folder / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
            places.append((folder / f"{name}.npy", file.tell()))
    return places


def _safetensors_places(folder: Path, rows: int, width: int) -> list[tuple[Path, int]]:
    path, middle, end = folder / "train.safetensors", 2 * rows * width, 2 * rows * width + 8 * rows
    header = {
        "features": {"dtype": "F16", "shape": [rows, width], "data_offsets": [0, middle]},
        "labels": {"dtype": "I64", "shape": [rows], "data_offsets": [middle, end]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return [(path, 8 + len(text)), (path, 8 + len(text) + middle)]


def forget(paths: list[Path]) -> None:
    """Ask the system to drop what it keeps of these files in memory."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_rate(paths: list[Path]) -> float:
    """Bytes a second of plain sequential reads."""
    buffer, begin = bytearray(2**23), time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return sum(path.stat().st_size for path in paths) / (time.perf_counter() - begin)


def product_rate(what: str, width: int, seconds: float = 3.0) -> float:
    """Rows a second of the product inside a fit (z.T @ z in double) or a score (z @ whitening in float)."""
    z = torch.rand(PIECE // 2, width, dtype=torch.float64 if what == "fit" else torch.float32)
    left, right = (z.T, z) if what == "fit" else (z, z[:width].clone())
    torch.mm(left, right)
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        torch.mm(left, right)
        done += len(z)
    return done / (time.perf_counter() - begin)


def highest_resident() -> float:
    """Megabytes; of this process alone, which ru_maxrss is not where a large parent started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(what: str, paths: list[Path], kept: Path) -> None:
    """Fit or score in this process and print what it took."""
    stream = of.open_features(paths[0], labels=paths[1] if len(paths) > 1 else None)
    begin = time.perf_counter()
    if what == "fit":
        detector = of.SSD().to("cpu").fit(stream)
        detector.save(kept)
    else:
        of.load(kept).to("cpu").score(stream)
    seconds = time.perf_counter() - begin
    print(json.dumps({"rows": len(stream), "seconds": seconds, "memory": highest_resident()}))


def in_turns(folder: Path, width: int, repeats: int = 7) -> None:
    """Fit on the first rows and the product of as many, in turns, so that a noisy machine disturbs both alike."""
    features, labels = write(folder, 4 * PIECE, width, "npy")
    stream, z, pairs = of.open_features(features, labels=labels), torch.rand(PIECE, width, dtype=torch.float64), []
    for _ in range(repeats):
        begin = time.perf_counter()
        of.SSD().to("cpu").fit(stream)
        middle = time.perf_counter()
        for _ in range(4):
            torch.mm(z.T, z)
        pairs.append((time.perf_counter() - middle) / (middle - begin))
    print(
        f"fit beside its product in turns, {4 * PIECE:,} rows, {repeats} times: median share {statistics.median(pairs):.2f}, "
        f"lowest {min(pairs):.2f}, highest {max(pairs):.2f}"
    )


def in_its_own_process(what: str, paths: list[Path], kept: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, str(kept), *map(str, paths)]
    result: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return result


def measure(what: str, paths: list[Path], width: int, cold: bool, kept: Path) -> None:
    if cold:
        forget(paths)
    disk = read_rate(paths)
    if cold:
        forget(paths)
    before = product_rate(what, width)
    run = in_its_own_process(what, paths, kept)
    product = (before + product_rate(what, width)) / 2
    rate = run["rows"] / run["seconds"]
    of_disk = disk / (sum(path.stat().st_size for path in paths) / run["rows"])
    print(
        f"{what:<6}{'cold' if cold else 'warm':<6}{run['seconds']:>7.1f} s{rate:>13,.0f} rows/s"
        f"{product:>13,.0f} rows/s{disk / 1e9:>8.2f} GB/s{rate / min(product, of_disk):>7.2f}{run['memory']:>9.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--format", choices=["npy", "safetensors"], default="npy")
    parser.add_argument("--folder", type=Path, default=None, help="where the test file goes; it is deleted afterwards")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        what, kept, *paths = chosen.child
        child(what, [Path(path) for path in paths], Path(kept))
        return
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        begin = time.perf_counter()
        paths = write(Path(name), chosen.rows, chosen.width, chosen.format)
        size = sum(path.stat().st_size for path in paths)
        print(
            f"wrote {chosen.rows:,} × {chosen.width} float16, {size / 1e9:.2f} GB, {time.perf_counter() - begin:.0f} s"
        )
        print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, format {chosen.format}")
        print(f"{'SSD':<12}{'time':>9}{'rate':>20}{'its product':>20}{'disk':>13}{'share':>7}{'peak memory':>12}")
        kept = Path(name) / "ssd.safetensors"
        for what, cold in (("fit", True), ("fit", False), ("score", False)):
            measure(what, paths, chosen.width, cold, kept)
        in_turns(Path(name), chosen.width)


if __name__ == "__main__":
    main()
