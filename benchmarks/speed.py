"""Speed on a CPU, each line ours beside a peer in the same run, taken in turns.

    make bench        (or: python benchmarks/speed.py [--only WORD] [--json FILE])

"ratio" is how many times as fast ours is. "of limit" is the share of the machine's own matrix-product rate (the best that
PyTorch offers in that precision, measured in the same run) which the products in our line reach; KNN's measure is faiss.
The peers: pytorch-ood (per-class loop, scikit-learn's neighbours), faiss's flat index, scikit-learn's and torchmetrics' AUROC,
and training over the mixture energy of ``torch.distributions.MixtureSameFamily`` in an eager loop.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytorch_ood.detector as peers
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torchmetrics.functional.classification import binary_auroc

import outfield as of
from measure import DEPTH, HIDDEN, D, Line, Results, TorchMixture, features, in_turns, machine, peak_memory, step_flops
from outfield.energy import CorrectedEnergy, MixturePrior, train
from outfield.energy.chains import relu_sphere
from outfield.energy.engine import has_bfloat16
from outfield.energy.engine.torch_operations import pack

N = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a word that chosen parts begin with, such as train")
    parser.add_argument("--json", type=Path, help="where the lines go")
    arguments = parser.parse_args()
    results = Results(machine())
    results.start()
    parts = {"training": training, "mahalanobis": mahalanobis, "knn": knn, "correction": correction, "metrics": metrics}
    for name, part in parts.items():
        if name.startswith(arguments.only):
            part(results)
    results.save(arguments.json)


def product_rate(dtype: torch.dtype = torch.float32, size: int = 2048) -> float:
    """Operations per second of a large matrix product: the best of ``torch.mm`` and the packed product, the machine's limit."""
    a = torch.randn(size, size).to(dtype)
    out, packed = torch.empty_like(a), pack(a)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        torch.mm(a, a, out=out)
        times.append(time.perf_counter() - start)
        if packed is not None:
            packed(a, None, "none", 0.0)
            times.append(time.perf_counter() - start - times[-1])
    return 2 * size**3 / min(times)


def seconds_a_step(
    engine: str, precision: str, prior: of.MixturePrior | TorchMixture, z: torch.Tensor
) -> Callable[[], float]:
    """A function that trains one epoch of three batches and gives the seconds of its later steps."""

    def run() -> float:
        model = CorrectedEnergy(of.MLP().build(D, 0), 1.0, prior, 500.0)
        clock: list[float] = []
        setup = of.Training(epochs=1, engine=engine, precision=precision)
        train(
            model, z[:768], setup, of.Langevin(), relu_sphere, 0, progress=lambda *_: clock.append(time.perf_counter())
        )
        return (clock[-1] - clock[0]) / (len(clock) - 1)

    return run


def training(results: Results) -> None:
    z, labels = features(10_000, 10)
    prior = MixturePrior().fit(z, labels)
    peer = TorchMixture(prior, z)
    work = step_flops(256, 20, 10)
    for precision in ("float32", "bfloat16"):
        if precision == "bfloat16" and not has_bfloat16(torch.device("cpu")):
            continue
        ours, other = seconds_a_step("fused", precision, prior, z), seconds_a_step("eager", "float32", peer, z)
        rows = [(ours(), other(), product_rate(getattr(torch, precision))) for _ in range(3)]
        a, b = (statistics.median(row[i] for row in rows) for i in (0, 1))
        ratio = statistics.median(row[1] / row[0] for row in rows)
        share = statistics.median(work / row[0] / row[2] for row in rows)
        what = f"training step, batch 256, {precision} / MixtureSameFamily"
        limit = f"limit {statistics.median(row[2] for row in rows) / 1e9:.0f} GFLOP/s"
        results.add(Line(what, a, b, ratio, None, share, limit))


def mahalanobis(results: Results) -> None:
    for classes, target in ((10, 4.0), (100, 80.0)):
        mahalanobis_of(results, classes, target)


def mahalanobis_of(results: Results, classes: int, target: float) -> None:
    z, labels = features(N, classes)
    data = of.FeatureSet(z, labels=labels)
    ours, peer = of.SSD().to("cpu").fit(data), peers.Mahalanobis(None).fit_features(z, labels)
    note = f"memory +{peak_memory(lambda: ours.score(data)):.0f} MB"
    times = in_turns(lambda: ours.score(data), lambda: peer.predict_features(z), 3)
    share = N * 2 * (D * D + D * classes) / product_rate() / times[0]
    results.add(Line(f"Mahalanobis, {N:,} rows, K = {classes} / pytorch-ood", *times, target, share, note))
    times = in_turns(lambda: of.SSD().to("cpu").fit(data), lambda: peers.Mahalanobis(None).fit_features(z, labels), 3)
    wide = z[:8192].double()
    product = in_turns(lambda: wide.T @ wide, lambda: None, 3)[0] * N / 8192
    note = "limit: the float64 product; the peer sums in float32"
    results.add(Line(f"fit, {N:,} rows, K = {classes} / pytorch-ood", *times, None, product / times[0], note))


def knn(results: Results) -> None:
    z, labels = features(N, 10)
    ours = of.KNN(50).to("cpu").fit(of.FeatureSet(z, labels=labels))
    index = faiss.IndexFlatL2(D)
    index.add(z.numpy())
    peer = peers.KNN(None, k=50).fit_features(z, labels)
    few, rows = of.FeatureSet(z[:2000]), z[:2000]
    memory = peak_memory(lambda: ours.score(of.FeatureSet(z[:10_000])))
    times = in_turns(lambda: ours.score(few), lambda: index.search(rows.numpy(), 50), 3)
    results.add(
        Line("KNN (k = 50), 2,000 queries, bank of 50,000 / faiss", *times, 0.95, None, f"memory +{memory:.0f} MB")
    )
    times = in_turns(lambda: ours.score(few), lambda: peer.predict_features(rows), 3)
    results.add(Line("the same / pytorch-ood", *times))


def correction(results: Results) -> None:
    z, labels = features(N, 10)
    few = of.FeatureSet(z[:2000])
    index = faiss.IndexFlatL2(D)
    index.add(z.numpy())
    quick = of.EnergyCorrected(training=of.Training(epochs=1), sampler=of.Langevin(steps=0)).to("cpu")
    ours = quick.fit(of.FeatureSet(z[:5120], labels=labels[:5120]))
    memory = peak_memory(lambda: ours.score(of.FeatureSet(z)))
    times = in_turns(lambda: ours.score(few), lambda: index.search(z[:2000].numpy(), 50), 5)
    network = D * HIDDEN + DEPTH * HIDDEN**2 + HIDDEN
    share = 2000 * 2 * (network + D * D + 10 * D) / product_rate() / times[0]
    note = f"memory +{memory:.0f} MB at {N:,} rows"
    results.add(Line("correction, 2,000 rows / faiss over 50,000", *times, 4.0, share, note))


def metrics(results: Results) -> None:
    half = 5_000_000
    scores = np.random.default_rng(0).standard_normal(2 * half)
    scores[half:] += 1.0
    positive = np.arange(2 * half) >= half

    def ours() -> tuple[float, float]:
        pair = of.Separation(scores[:half], scores[half:])
        return pair.auroc(), pair.fpr95()

    def scikit() -> tuple[float, float]:
        accepted, kept, _ = roc_curve(~positive, -scores)
        return roc_auc_score(positive, scores), accepted[np.argmax(kept >= 0.95)]

    times = in_turns(ours, scikit, 3)
    apart = max(abs(a - b) for a, b in zip(ours(), scikit(), strict=True))
    results.add(Line("AUROC + FPR95, 10 million scores / scikit-learn", *times, 12.0, None, f"differ by {apart:.0e}"))
    bounded = torch.from_numpy(1 / (1 + np.exp(-scores)))  # torchmetrics squashes anything else itself
    times = in_turns(ours, lambda: binary_auroc(bounded, torch.from_numpy(positive.astype(np.int64))), 2)
    results.add(Line("the same / torchmetrics' AUROC alone", *times))


if __name__ == "__main__":
    main()
