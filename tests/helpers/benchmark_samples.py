"""Benchmark runs made up of random numbers, in which every mean is known."""

import numpy as np

from outfield.benchmark import BenchmarkRun, Key, Layout, Protocol, Result
from outfield.energy import History

PROTOCOL = Protocol("known", near=("apes", "bees"), mid=("cats", "dogs"), far=("elks", "fish"))
SHIFTS = {"known": 0.0, "apes": 1.0, "bees": 1.3, "cats": 2.0, "dogs": 2.2, "elks": 3.0, "fish": 4.0}
LEARNED = ("EBM", "EnergyCorrected")


def make_run(
    protocol: Protocol = PROTOCOL,
    backbones: tuple[str, ...] = ("one", "two"),
    detectors: tuple[str, ...] = ("MSP", "SSD", "EBM", "EnergyCorrected"),
    seeds: tuple[int, ...] = (0, 1),
    n: int = 200,
) -> BenchmarkRun:
    """A whole run: records, scores, training curves, layouts, provenance."""
    run = BenchmarkRun(protocol)
    rng = np.random.default_rng(0)
    shifts = dict(zip((protocol.id, *protocol.ood), SHIFTS.values(), strict=False))
    for backbone in backbones:
        for detector in detectors:
            for seed in seeds if detector in LEARNED else (None,):
                _fit(run, Key(backbone, detector, seed), shifts, rng, n)
        sets = tuple(name for name in shifts for _ in range(20))
        points = rng.standard_normal((len(sets), 2)).astype(np.float32)
        labels = np.where(np.array(sets) == protocol.id, np.arange(len(sets)) % 3, -1)
        run.layouts.append(Layout(backbone, points, sets, labels))
        run.accuracies[backbone] = 0.9 + 0.01 * len(run.accuracies)
    run.provenance = {
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "started": "2025-01-02T03:04:05+00:00",
        "versions": {"python": "3.11.0", "outfield": "0.1.0", "cuda": None},
        "seeds": list(seeds),
        "detectors": {
            "KNN": {"settings": {"type": "KNN", "k": 50, "inner": {"type": "MLP", "rate": 1e-5}}, "given": []}
        },
        "backbones": {name: {"accuracy": 0.9, "sha256": 64 * "a"} for name in backbones},
        "data": {name: {"train": {"images": 50_000, "sha256": 64 * "b"}} for name in backbones},
        "stages": [
            {"what": "scores", "detector": "MSP", "seconds": 1.25},
            {"what": "scores", "detector": "MSP", "seconds": 2},
        ],
    }
    return run


def _fit(run: BenchmarkRun, key: Key, shifts: dict[str, float], rng: np.random.Generator, n: int) -> None:
    strength = {"MSP": 0.5, "SSD": 0.8}.get(key.detector, 1.0)
    scores = {name: (rng.standard_normal(n) + strength * shift).astype(np.float32) for name, shift in shifts.items()}
    if key.detector == "MSP":
        scores = {name: np.exp(3 * values) for name, values in scores.items()}  # a long tail
    run.scores[key] = scores
    for ood in run.protocol.ood:
        level = run.protocol.level_of(ood)
        run.records.append(Result.of(key, ood, level, scores[run.protocol.id], scores[ood]))
    if key.seed is not None:
        run.histories[key] = History([3.0, 2.0, 1.0], [0.5, 0.2, 0.1], [0.6, 0.7, 0.8 + key.seed])


PAPER = {
    "MSP": {"apes": (57.25, 88.0), "near": (55.5, 87.5), "average": (48.25, 91.25)},
    "SSD": {name: (value, 90.0) for name, value in zip(PROTOCOL.ood, (10, 20, 30, 40, 50, 61), strict=True)},
}
