"""What fusing costs: scoring with Fused against its members one by one, and how long a choice takes, on made-up features.

    python benchmarks/fusing.py --rows 50000 --width 512

Ten classes, ten sets of 1,000 stand-ins, 1,000 held-out rows, three stages and the spread beside the features.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import outfield as of

CLASSES, HELD_OUT, REPEATS = 10, 1000, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    centres = np.abs(np.random.default_rng(0).normal(size=(CLASSES, options.width)))
    train, held_out, test = (made(centres, n, seed) for n, seed in ((options.rows, 1), (HELD_OUT, 2), (20_000, 3)))
    members = [of.EnergyLogits(), of.KNN(k=5), of.SSD(), of.SSD(field="stage2")]
    fused = of.Fused(members).to(options.device).fit(train, held_out=held_out)
    whole = seconds(lambda: fused.score(test))
    parts = sum(seconds(lambda one=member: one.score(test)) for member in fused.members_)  # type: ignore[misc]
    print(f"Fused of {', '.join(fused.names)}, {len(test):,} rows: {whole / parts:.2f} × its members one by one")
    near = {f"near {i}": made(centres, HELD_OUT, 10 + i, 0.1 * i) for i in range(6)}
    far = {f"far {i}": made(centres, HELD_OUT, 20 + i, 0.5 * i) for i in range(4)}
    begin = time.perf_counter()
    choice = of.choose(train, held_out, {"near": near, "far": far}, device=options.device)
    took = time.perf_counter() - begin
    print(f"choose on {options.rows:,} × {options.width}, {len(choice.singles)} candidates: {took:.0f} s")


def made(centres: np.ndarray, n: int, seed: int, shift: float = 0.0) -> of.FeatureSet:
    """Features around class centres, with everything that a network would give beside them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    features = np.maximum(centres[labels] + rng.normal(size=(n, centres.shape[1])) + shift, 0).astype(np.float32)
    weight = (centres - centres.mean(0)).astype(np.float32)
    quarter = centres.shape[1] // 4
    return of.FeatureSet(
        features,
        labels=labels,
        logits=features @ weight.T,
        head_weight=weight,
        head_bias=np.zeros(CLASSES, np.float32),
        spread=features / 2,
        stage1=features[:, : quarter // 2],
        stage2=features[:, :quarter],
        stage3=features[:, : 2 * quarter],
    )


def seconds(work: Callable[[], object]) -> float:
    """The best of several runs."""
    found = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found)


if __name__ == "__main__":
    main()
