"""How the cost of fitting and scoring grows with rows N, width D and classes K: a log-log plot with fitted slopes.

    python benchmarks/scaling.py --out docs/images/scaling.png

Each curve changes one of N = 20,000, D = 256, K = 10 and keeps the others. The slope is that of a straight line through the
logarithms of the upper half of a curve: 1 is linear, 2 quadratic. Times are the best of three.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import outfield as of
from measure import features, machine

N, D, K = 20_000, 256, 10
SWEEPS = {
    "rows N": ("n", [2_500, 5_000, 10_000, 20_000, 40_000, 80_000]),
    "width D": ("d", [64, 128, 256, 512, 1024]),
    "classes K": ("k", [10, 30, 100, 300, 1000]),
}
QUERIES = 2_000

Work = Callable[[], object]


def works(n: int, d: int, k: int) -> dict[str, Work]:
    """What is timed, by name, on n rows of width d in k classes (KNN scores 2,000 rows against n)."""
    z, labels = features(n, k, d)
    data = of.FeatureSet(z, labels=labels)
    ssd = of.SSD().to("cpu").fit(data)
    ours = of.EnergyCorrected(training=of.Training(epochs=1), sampler=of.Langevin(steps=0)).to("cpu").fit(data[:2048])
    knn = of.KNN(10).to("cpu").fit(of.FeatureSet(z))
    some = of.FeatureSet(z[:QUERIES])
    return {
        "SSD fit": lambda: of.SSD().to("cpu").fit(data),
        "SSD score": lambda: ssd.score(data),
        "EnergyCorrected score": lambda: ours.score(data),
        f"KNN score, {QUERIES:,} rows against N": lambda: knn.score(some),
    }


def best(work: Work, repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def slope(x: list[int], y: list[float]) -> float:
    half = len(x) // 2
    rise = float(np.polyfit(np.log(x[half:]), np.log(y[half:]), 1)[0])
    return rise if abs(rise) >= 0.005 else 0.0  # no −0.00 in the legend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("scaling.png"))
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    print(machine())
    figure, axes = plt.subplots(1, 3, figsize=(13, 5.0), sharey=True, layout="constrained")
    for axis, (title, (which, values)) in zip(axes, SWEEPS.items(), strict=True):
        curves: dict[str, list[float]] = {}
        for value in values:
            for name, work in works(**{"n": N, "d": D, "k": K, which: value}).items():
                curves.setdefault(name, []).append(best(work))
        for name, seconds in curves.items():
            rise = slope(values, seconds)
            axis.loglog(values, seconds, "o-", markersize=4, label=f"{name}: slope {rise:.2f}")
            print(f"{title:<12}{name:<36}slope {rise:.2f}   {seconds[0]:.3g} s to {seconds[-1]:.3g} s", flush=True)
        axis.set_xlabel(title)
        axis.set_xticks(values, [f"{v:,}" for v in values], minor=False)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
    axes[0].set_ylabel("seconds")
    figure.suptitle(f"Cost of fitting and scoring (N = {N:,}, D = {D}, K = {K} unless varied)")
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main()
