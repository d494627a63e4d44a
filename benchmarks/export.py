"""An exported guard in ONNX Runtime beside the guard itself in PyTorch: the same bytes in, timed in turns, in one run.

python benchmarks/export.py --json export.json

A ResNet-18 of random weights for 32 × 32 pixels: what it costs does not depend on them. Its detector is the sum of the logits'
energy, the distance to the fifth neighbour among 10,000 rows, and SSD. Medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import outfield as of
from outfield.adapters import to_onnx

SIZE = 32
MEMBERS = (of.EnergyLogits(), of.KNN(k=5), of.SSD())


def pixels(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3), dtype=np.uint8)


def guard(folder: Path, train: int) -> of.Guard:
    made = of.Classifier("resnet18", classes=10, small_images=True, size=(SIZE, SIZE))
    of.save_classifier(folder / "net.safetensors", made, made.build().state_dict())
    images, held_out = (of.ImageArray(pixels(count, seed)) for count, seed in ((train, 0), (1000, 1)))
    network = str(folder / "net.safetensors")
    return of.Guard.build(network, images, held_out, detector=of.Fused(MEMBERS), device="cpu", batch_size=256)


def in_turns(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Medians of the seconds that each takes."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for run, times in zip((one, other), seconds, strict=True):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def session(path: Path, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=10_000, help="rows that the detector is fitted on")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found: dict[str, Any] = {"threads": given.threads, "train": given.train}
    with tempfile.TemporaryDirectory() as folder:
        model = guard(Path(folder), given.train)
        path = Path(folder) / "guard.onnx"
        began = time.perf_counter()
        written = to_onnx(model, path)
        found |= {"export_s": time.perf_counter() - began, "megabytes": written.size / 1e6}
        runtime = session(path, given.threads)
        for rows in (1, 32):
            images = pixels(rows, 2)
            tensor = torch.from_numpy(images)
            theirs = runtime.run(["score"], {"pixels": images})[0]
            ours = model.judge_pixels(tensor).scores
            apart = float(np.abs(theirs / ours - 1).max())
            one, other = in_turns(
                lambda tensor=tensor: model.judge_pixels(tensor),  # type: ignore[misc]
                lambda images=images: runtime.run(None, {"pixels": images}),  # type: ignore[misc]
                given.rounds,
            )
            found[f"{rows} at once"] = {"pytorch_ms": 1e3 * one, "onnx_ms": 1e3 * other, "score_apart": apart}
            print(
                f"{rows} at once: PyTorch {1e3 * one:.1f} ms, ONNX Runtime {1e3 * other:.1f} ms; scores {apart:.1e} apart"
            )
    print(f"{found['megabytes']:.1f} MB, exported in {found['export_s']:.1f} s")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
