"""Speed of fitting and scoring on a CPU, each line beside its floor or its peer in the same run.

    make bench        (or: python benchmarks/speed.py)

50,000 × 512 features, K = 10. The floor of SSD is the matrix products it contains, in the same precision: the scatter
(float64) for fit; whitening and class products (float32) for score. KNN's peer is faiss's own flat index. Memory is the
highest resident size during the work minus that before it, sampled every millisecond.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import faiss
import numpy as np
import psutil
import torch
from sklearn.metrics import roc_auc_score, roc_curve

import outfield as of
from outfield.projection import normalise

N, D, K, QUERIES = 50_000, 512, 10, 10_000


class _WithoutFaiss(of.KNN):
    """KNN as on a machine where faiss is not installed."""

    def _use_faiss(self) -> bool:
        return False


def side_by_side(
    ours: Callable[[], object], other: Callable[[], object], repeats: int = 7
) -> tuple[float, float, float]:
    """Median times of both, taken in turns so that a noisy machine disturbs both alike, and the median of the ratios."""
    ours()
    other()
    pairs = []
    for _ in range(repeats):
        a = time.perf_counter()
        ours()
        b = time.perf_counter()
        other()
        pairs.append((b - a, time.perf_counter() - b))
    return (
        statistics.median(p[0] for p in pairs),
        statistics.median(p[1] for p in pairs),
        statistics.median(p[0] / p[1] for p in pairs),
    )


def peak_memory(work: Callable[[], object]) -> float:
    """Megabytes by which the resident size rose at most while ``work`` ran."""
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


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(N) % K
    centres = torch.rand(K, D, generator=generator)
    train = of.FeatureSet((centres[labels] + 0.3 * torch.randn(N, D, generator=generator)).relu(), labels=labels)
    test = train[torch.randperm(N, generator=generator)[:QUERIES]]
    print(f"{N:,} × {D} features, K = {K}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'':<44}{'ours':>10}{'beside':>10}{'ratio':>8}{'limit':>8}{'memory':>10}")

    def line(name: str, memory: float, limit: float, times: tuple[float, float, float]) -> None:
        bound = f"{limit:.2f}" if limit == limit else "–"
        rise = f"{memory:.0f} MB" if memory == memory else "–"
        print(f"{name:<44}{times[0]:>8.3f} s{times[1]:>8.3f} s{times[2]:>8.2f}{bound:>8}{rise:>10}", flush=True)

    ssd, mixture, knn = of.SSD().to("cpu"), of.GaussianMixture().to("cpu"), of.KNN(50).to("cpu")
    memory = {"fit": peak_memory(lambda: ssd.fit(train)), "ssd": peak_memory(lambda: ssd.score(train))}
    mixture.fit(train)
    memory["mixture"] = peak_memory(lambda: mixture.score(train))
    memory["knn"] = peak_memory(lambda: knn.fit(train).score(test))
    exact = _WithoutFaiss(50).to("cpu")
    memory["exact"] = peak_memory(lambda: exact.fit(train).score(test))

    wide, square, means = train.features.double(), torch.randn(D, D), torch.randn(K, D)
    times = side_by_side(lambda: ssd.fit(train), lambda: wide.T @ wide, repeats=5)
    line("SSD fit / its float64 product", memory["fit"], 3, times)
    times = side_by_side(lambda: ssd.score(train), lambda: (train.features @ square) @ means.T)
    line("SSD score / its float32 products", memory["ssd"], 3, times)
    times = side_by_side(lambda: mixture.score(train), lambda: (train.features @ square) @ means.T)
    line("mixture energy / the same products", memory["mixture"], 3, times)

    bank, queries = normalise(train.features), normalise(test.features)
    index = faiss.IndexFlatL2(D)
    index.add(bank.numpy())
    times = side_by_side(lambda: knn.score(test), lambda: index.search(queries.numpy(), 50), repeats=5)
    line(f"KNN (k = 50), {QUERIES:,} queries / faiss", memory["knn"], 1.05, times)
    times = side_by_side(lambda: exact.score(test), lambda: index.search(queries.numpy(), 50), repeats=3)
    line("the same without faiss / faiss", memory["exact"], np.nan, times)

    scores = np.random.default_rng(0).standard_normal(2_000_000)
    y = np.r_[np.zeros(1_000_000), np.ones(1_000_000)]
    times = side_by_side(
        lambda: (of.auroc(scores[:1_000_000], scores[1_000_000:]), of.fpr95(scores[:1_000_000], scores[1_000_000:])),
        lambda: (roc_auc_score(y, scores), roc_curve(y, scores)),
        repeats=3,
    )
    line("AUROC + FPR95, 2 million / scikit-learn", np.nan, 1, times)


if __name__ == "__main__":
    main()
