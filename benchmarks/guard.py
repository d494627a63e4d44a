"""What a guard costs beside the bare network: one image in Python, one photograph on the command line, a thousand of them.

python benchmarks/guard.py --json guard.json

Every ratio is of two things that are timed in turns, in one run. The network has random weights: what it costs does not depend
on them. Of each pair the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import outfield as of

BARE_START = """
import sys, numpy, torch
from PIL import Image
import timm
from safetensors.torch import load_file
network = timm.create_model("resnet18", pretrained=False, num_classes=10)
network.load_state_dict(load_file(sys.argv[1]))
network.eval()
image = Image.open(sys.argv[2]).convert("RGB").resize((224, 224))
pixels = torch.from_numpy(numpy.array(image)).permute(2, 0, 1).float().div(255).sub(0.5).div(0.5)
with torch.inference_mode():
    print(int(network(pixels[None]).argmax()))
"""


def pictures(count: int, size: tuple[int, int], seed: int) -> np.ndarray:
    """Smooth pictures (N, H, W, 3): what a camera sees is compressed about as well."""
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.random((count, 3, 8, 8), np.float32))
    fine = torch.nn.functional.interpolate(coarse, size, mode="bicubic").mul(255).clamp(0, 255)
    noisy = fine.add(torch.from_numpy(rng.normal(0, 6, fine.shape).astype(np.float32))).clamp(0, 255)
    return noisy.permute(0, 2, 3, 1).to(torch.uint8).contiguous().numpy()


def classifier(folder: Path, size: int) -> Path:
    """A file of ``outfield train``, of random weights."""
    made = of.Classifier("resnet18", classes=10, small_images=size <= 64, size=(size, size))
    path = folder / f"net{size}.safetensors"
    of.save_classifier(path, made, made.build().state_dict())
    return path


def in_turns(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 2):
        for kept, function in zip(times, (one, other), strict=True):
            began = time.perf_counter()
            function()
            kept.append(time.perf_counter() - began)
    return statistics.median(times[0][2:]), statistics.median(times[1][2:])


def built(folder: Path, size: int, images: int) -> of.Guard:
    train, held = (of.ImageArray(pictures(n, (size, size), seed)) for n, seed in ((images, 1), (120, 2)))
    path = folder / f"{size}-{images}.guard"
    of.Guard.build(str(classifier(folder, size)), train, held, device="cpu").save(path)
    return of.Guard.load(path, device="cpu")


def one_image(guard: of.Guard, shape: tuple[int, int], rounds: int) -> dict[str, Any]:
    """A guard's call against the bare network with its preprocessing."""
    image = pictures(1, shape, 3)[0]
    network, way = guard.backbone.network, guard.backbone.preprocessing

    def bare() -> object:
        with torch.inference_mode():
            return network(way.tensor(image)[None])

    plain, ours = in_turns(bare, lambda: guard(image), rounds)
    return {"bare_ms": 1e3 * plain, "guard_ms": 1e3 * ours, "ratio": ours / plain, "members": guard.members}


def many(guard: of.Guard, folder: Path, count: int) -> dict[str, Any]:
    """The share of the time in which the network runs while a folder of photographs is checked."""
    from PIL import Image

    photographs = folder / "photographs"
    photographs.mkdir()
    for number, image in enumerate(pictures(min(count, 50), (375, 500), 5)):
        for copy in range(number, count, 50):
            Image.fromarray(image).save(photographs / f"{copy:05d}.jpg", quality=90)
    busy, since = 0.0, 0.0

    def enter(*_: object) -> None:
        nonlocal since
        since = time.perf_counter()

    def leave(*_: object) -> None:
        nonlocal busy
        busy += time.perf_counter() - since

    hooks = [
        guard.backbone.network.register_forward_pre_hook(enter),
        guard.backbone.network.register_forward_hook(leave),
    ]
    began = time.perf_counter()
    verdicts = guard(photographs, on_error="skip")
    seconds = time.perf_counter() - began
    for hook in hooks:
        hook.remove()
    found = len(verdicts) if isinstance(verdicts, of.Verdicts) else 1
    return {"images": found, "seconds": seconds, "per_second": found / seconds, "busy": busy / seconds}


def processor_seconds(words: list[str]) -> float:
    """That a Python program takes, whatever else runs beside it."""
    running = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(running.pid, 0)
    if status:
        raise SystemExit(f"{words[:4]} failed")
    return used.ru_utime + used.ru_stime


def command_line(folder: Path, guard: Path, rounds: int) -> dict[str, Any]:
    """``outfield guard check`` of one photograph against ``import torch`` and a script that runs the network alone."""
    from PIL import Image
    from safetensors.torch import save_file

    save_file(of.load_classifier(folder / "net224.safetensors")[0].state_dict(), folder / "w.safetensors")
    Image.fromarray(pictures(1, (375, 500), 6)[0]).save(folder / "photo.jpg")
    commands = {
        "torch": ["-c", "import torch"],
        "network": ["-c", BARE_START, str(folder / "w.safetensors"), str(folder / "photo.jpg")],
        "check": ["-m", "outfield", "guard", "check", str(guard), str(folder / "photo.jpg"), "--json"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, words in commands.items():
            times[name].append(processor_seconds(words))
    found = {name: statistics.median(values) for name, values in times.items()}
    return {**found, "ratio": found["check"] / found["network"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=int, default=2000, help="that the guard of the small network is built of")
    parser.add_argument("--photographs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    results: dict[str, Any] = {"threads": given.threads, "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        small = built(folder, 32, given.images)
        results["one 32-pixel image"] = one_image(small, (32, 32), given.rounds)
        large = built(folder, 224, 300)
        results["one photograph, 224 pixels"] = one_image(large, (375, 500), given.rounds)
        results["folder"] = many(large, folder, given.photographs)
        results["command line"] = command_line(folder, folder / "224-300.guard", 5)
    for name, found in results.items():
        print(f"{name}: {found}")
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
