"""Speed on a GPU: training side by side with an eager loop over ``MixtureSameFamily``, and scoring.

    python benchmarks/gpu.py [--quick] [--json FILE]

Training is 20 epochs of 50,000 × 512 features with the paper's network: ours in full, the peer for some batches, scaled up.
Times are steady state; the warm-up (compilation, recording) of a fresh process stands beside them. "of limit" is the share of
the GPU's bfloat16 matrix-product rate, measured here, that the step's products reach.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import outfield as of
from measure import D, Line, Results, TorchMixture, features, step_flops
from outfield.energy import CorrectedEnergy, Langevin, MixturePrior, train_seeds
from outfield.energy.chains import relu_sphere
from outfield.energy.engine.triton_operations import TritonOperations

N, EPOCHS = 50_000, 20
CORRECTION, ALONE = of.EnergyCorrected(), of.EBM()


class _EnoughError(Exception):
    """Ends a training whose speed is known."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two epochs instead of twenty")
    parser.add_argument("--json", type=Path, help="where the lines go")
    arguments = parser.parse_args()
    epochs = 2 if arguments.quick else EPOCHS
    limit = product_rate()
    name = torch.cuda.get_device_name()
    results = Results(f"{name}, torch {torch.__version__}, bfloat16 products {limit / 1e12:.0f} TFLOP/s")
    results.start()
    one = training(results, "training, batch 256, K = 10", 256, 10, epochs, limit, target=35, peer_batches=30)
    training(results, "training, batch 1024, K = 100", 1024, 100, epochs, limit, target=60, peer_batches=8)
    training(results, "EBM alone, 200 steps, batch 256", 256, None, epochs, limit, target=None, peer_batches=3)
    several(results, one, epochs, limit)
    precision(results, one, epochs)
    scoring(results)
    layers(results)
    results.save(arguments.json)


def product_rate(size: int = 8192) -> float:
    """Operations per second of a large bfloat16 matrix product."""
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    return 2 * size**3 / timed(lambda: a @ a)


def timed(work: Callable[[], object], repeats: int = 10) -> float:
    """Seconds a call, after a warm-up."""
    work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def fit(
    batch: int, classes: int | None, epochs: int, engine: str = "fused", stop: int | None = None,
    seeds: Sequence[int] = (0,), precision: str = "auto",
) -> tuple[float, float]:  # fmt: skip
    """Seconds a step in steady state, and seconds before it; the peer's mixture where the engine is eager."""
    z, labels = features(N, classes or 10, device="cuda")
    like = ALONE if classes is None else CORRECTION
    prior = None if classes is None else MixturePrior().fit(z, labels)
    energy_of = prior if prior is None or engine == "fused" else TorchMixture(prior, z)
    temperature = CORRECTION.prior_temperature
    models = [CorrectedEnergy(of.MLP().build(D, s), like.temperature, energy_of, temperature).cuda() for s in seeds]
    settings = {"batch_size": batch, "epochs": epochs, "engine": engine, "precision": precision}
    training = of.Training(learning_rate=like.training.learning_rate, l2=like.training.l2, **settings)  # type: ignore[arg-type]
    assert isinstance(like.sampler, Langevin)
    clock: dict[int, float] = {}
    total = epochs * (N // batch)
    last = min(stop or total, total)

    def look(done: int, *_: object) -> None:
        if done in (2, last):
            torch.cuda.synchronize()
            clock[done] = time.perf_counter()
        if done == last < total:
            raise _EnoughError

    torch.cuda.synchronize()
    begin = time.perf_counter()
    with contextlib.suppress(_EnoughError):
        train_seeds(models, z, training, like.sampler, relu_sphere, list(seeds), progress=look)
    return (clock[last] - clock[2]) / (last - 2), clock[2] - begin


def training(
    results: Results, what: str, batch: int, classes: int | None, epochs: int, limit: float,
    target: float | None, peer_batches: int,
) -> float:  # fmt: skip
    """A line for training; returns the seconds for 20 epochs."""
    ours, warm_up = fit(batch, classes, epochs)
    other, _ = fit(batch, classes, epochs, "eager", stop=2 + peer_batches)
    steps = EPOCHS * (N // batch)
    share = step_flops(batch, 200 if classes is None else 20, classes) / ours / limit
    note = f"warm-up {warm_up:.1f} s"
    results.add(Line(what, ours * steps, other * steps, other / ours, target, share, note))
    return ours * steps


def several(results: Results, one: float, epochs: int, limit: float, count: int = 4) -> None:
    """Several seeds at once beside the same seeds one after the other."""
    step, warm_up = fit(256, 10, epochs, seeds=range(count))
    ours = step * EPOCHS * (N // 256)
    share = count * step_flops(256, 20, 10) / step / limit
    note = f"{ours / one:.2f} × the time of one; warm-up {warm_up:.1f} s"
    what = f"{count} seeds at once / one after the other, batch 256, K = 10"
    results.add(Line(what, ours, count * one, count * one / ours, round(count / 1.8, 2), share, note))


def precision(results: Results, rounded: float, epochs: int) -> None:
    """What bfloat16 gains over the other precisions of the same engine."""
    for name in ("tf32", "float32"):
        seconds = fit(256, 10, epochs, precision=name, stop=200)[0] * EPOCHS * (N // 256)
        results.add(Line(f"bfloat16 against {name} in the engine, batch 256", rounded, seconds, seconds / rounded))


def layers(results: Results) -> None:
    """A hidden layer forward, bias and activation included, beside cuBLAS's product alone, replayed in graphs."""
    for seeds, rows in ((1, 256), (1, 1024), (4, 256)):
        models = [CorrectedEnergy(of.MLP().build(D, s)).cuda() for s in range(seeds)]
        kernels = TritonOperations(models, of.Training(precision="bfloat16"), relu_sphere, rows)
        x = torch.randn(seeds, rows, 1024, device="cuda").bfloat16()
        out, weight = torch.empty_like(x), kernels.copies[1].transpose(1, 2)
        ours, other = replayed(lambda: kernels.forward(1, x, out)), replayed(lambda: torch.bmm(x, weight, out=out))  # noqa: B023
        share = seeds * 2 * rows * 1024**2 / ours / product_rate()
        results.add(
            Line(f"a layer, {seeds} × {rows} rows / cuBLAS's product alone", ours, other, other / ours, None, share)
        )
    nothing = torch.zeros(256, device="cuda")
    least = replayed(lambda: nothing.add_(1))
    print(f"the least that a kernel takes in a graph: {1e6 * least:.1f} µs")


def replayed(work: Callable[[], object], count: int = 50) -> float:
    """Seconds a call, when many calls are recorded in a CUDA graph and replayed."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        work()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                work()
    return timed(graph.replay, 20) / count


def scoring(results: Results) -> None:
    """Scores of 10,000 rows, from the CPU and back, beside what one would write first."""
    z, labels = features(N, 100)
    data, few = of.FeatureSet(z, labels=labels), of.FeatureSet(z[:10_000])
    ssd = of.SSD().to("cuda").fit(data)
    parts = TorchMixture(ssd.mixture_, z.cuda()).parts
    inverse = parts.precision_matrix[0]

    def distances() -> torch.Tensor:
        rows = few.features.cuda()
        return torch.stack([((rows - mean) @ inverse * (rows - mean)).sum(1) for mean in parts.loc]).amin(0).cpu()

    ours, other = timed(lambda: ssd.score(few), 5), timed(distances, 5)
    results.add(Line("SSD scores, 10,000 rows, K = 100 / loop over classes", ours, other, other / ours))
    knn = of.KNN(50).to("cuda").fit(data)

    def plain() -> torch.Tensor:
        pieces = few.features.cuda().split(2500)
        return torch.cat(
            [torch.cdist(piece, knn.bank_).topk(50, largest=False).values[:, -1] for piece in pieces]
        ).cpu()

    ours, other = timed(lambda: knn.score(few), 5), timed(plain, 5)
    results.add(Line("KNN (k = 50), 10,000 queries, bank of 50,000 / cdist, topk", ours, other, other / ours))


if __name__ == "__main__":
    main()
