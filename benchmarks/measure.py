"""What the benchmark scripts share: timing two things in turns, memory, the work of a training step, data, and tables."""

from __future__ import annotations

import json
import platform
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from outfield.energy import MixturePrior, Prior
from outfield.energy.chains import relu_sphere
from outfield.percent import percent

D, HIDDEN, DEPTH = 512, 1024, 4


@dataclass(frozen=True)
class Line:
    """One comparison: ours against another, in one run. ``ratio`` is how many times as fast ours is."""

    what: str
    ours: float
    other: float
    ratio: float
    target: float | None = None
    share: float | None = None
    note: str = ""


@dataclass
class Results:
    """Lines as they come, printed at once and kept for a file."""

    machine: str
    lines: list[Line] = field(default_factory=list)

    def start(self) -> None:
        print(self.machine)
        print(f"{'':<58}{'ours':>10}{'beside':>11}{'ratio':>9}{'target':>8}{'of limit':>10}  ")

    def add(self, line: Line) -> None:
        self.lines.append(line)
        target = f"≥ {line.target:g}" if line.target is not None else "–"
        share = percent(line.share, 0) if line.share is not None else "–"
        print(
            f"{line.what:<58}{_seconds(line.ours):>10}{_seconds(line.other):>11}{line.ratio:>8.1f}×{target:>8}{share:>10}"
            f"  {line.note}",
            flush=True,
        )

    def save(self, path: Path | None) -> None:
        if path is not None:
            path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


def _seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if value * scale >= 0.1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def machine() -> str:
    """The processor, its threads and torch's version."""
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def in_turns(ours: Callable[[], object], other: Callable[[], object], repeats: int = 5) -> tuple[float, float, float]:
    """Median times of both, taken in turns so that a noisy machine disturbs both alike, and the median of other / ours."""
    ours()
    other()
    pairs = []
    for _ in range(repeats):
        a = time.perf_counter()
        ours()
        b = time.perf_counter()
        other()
        pairs.append((b - a, time.perf_counter() - b))
    medians = [statistics.median(times) for times in zip(*pairs, strict=True)]
    return medians[0], medians[1], statistics.median(b / a for a, b in pairs)


def peak_memory(work: Callable[[], object]) -> float:
    """Megabytes by which the resident size rose at most while ``work`` ran."""
    import psutil

    process, done, highest = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def watch() -> None:
        while not done.is_set():
            highest[0] = max(highest[0], process.memory_info().rss)
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return float(highest[0] - before) / 2**20


def features(n: int, classes: int, width: int = D, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Non-negative rows (n, width) in classes, on the unit sphere, and labels."""
    generator = torch.Generator(device).manual_seed(0)
    labels = torch.arange(n, device=device) % classes
    centres = torch.rand(classes, width, generator=generator, device=device)
    z = centres[labels] + 0.3 * torch.randn(n, width, generator=generator, device=device)
    return relu_sphere(z), labels


def step_flops(batch: int, steps: int, classes: int | None) -> float:
    """Floating-point operations of one training step's matrix products (the paper's network; K classes or no prior)."""
    network = D * HIDDEN + DEPTH * HIDDEN**2
    chains = steps * batch * 2 * (2 * network)  # forward and input gradient
    loss = 2 * batch * 2 * (3 * network - D * HIDDEN)  # both passes, without the first layer's input gradient
    prior = 0 if classes is None else steps * batch * 2 * (2 * D * D + 2 * D * classes)
    return float(chains + loss + prior)


class TorchMixture(Prior):
    """The same mixture through ``torch.distributions.MixtureSameFamily``: what one would write without thinking of speed."""

    def __init__(self, fitted: MixturePrior, like: Tensor) -> None:
        p = fitted.parameters_
        covariance = (p.eigenvectors * p.eigenvalues) @ p.eigenvectors.T
        scale = torch.linalg.cholesky(covariance).to(like)
        weights = torch.distributions.Categorical(logits=p.log_weights.to(like))
        parts = torch.distributions.MultivariateNormal(p.means.to(like), scale_tril=scale.expand(len(p.means), -1, -1))
        self.parts, self.mixture = parts, torch.distributions.MixtureSameFamily(weights, parts)

    def fit(self, z: Tensor, labels: Tensor | None) -> TorchMixture:
        return self

    def energy(self, z: Tensor) -> Tensor:
        return -self.mixture.log_prob(z)  # type: ignore[no-any-return]

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.mixture.sample((n,))  # type: ignore[no-any-return]

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> TorchMixture:
        return self
