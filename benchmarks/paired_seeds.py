"""Whether the engine detects as the eager step does: both fitted with the same seeds on a feature pack, compared seed by seed.

    python benchmarks/paired_seeds.py cifar100_resnet34_features.npz --detector EBM --seeds 8
    python benchmarks/paired_seeds.py PACK.npz --ways eager:float32 fused:tf32
    python benchmarks/paired_seeds.py PACK.npz --set training.epochs=1 --set network.hidden=32 --rows 500    (a dry run)

A seed decides weights, batches and noise in either way of training, so that what differs between a pair is rounding alone.
Printed are the mean FPR95 over the pack's OOD sets for each way (± over seeds), and the paired difference from the first way
with its standard error and the p-value of a two-sided t-test: p is the chance of a difference this large were there none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from scipy.stats import ttest_rel

import outfield as of
from outfield.config import construct_from_text
from packs import LEARNED, load

Sets = tuple[of.FeatureSet, of.FeatureSet, dict[str, of.FeatureSet]]
"""Training data, ID test data, OOD sets by name."""
WAYS = ["eager:float32", "fused:bfloat16", "fused:tf32"]


def mean_fpr95(detector: of.Detector, test: of.FeatureSet, ood: dict[str, of.FeatureSet]) -> float:
    """Over the OOD sets, in percent."""
    results = of.evaluate({"it": detector}, test, ood)
    return 100 * statistics.mean(result.fpr95 for result in results)


def measure(way: str, settings: dict[str, str], args: argparse.Namespace, sets: Sets) -> list[float]:
    """FPR95 of each seed, trained in this way ("ENGINE:PRECISION")."""
    engine, _, precision = way.partition(":")
    chosen = settings | {"training.engine": engine, "training.precision": precision or "auto"}
    template = construct_from_text(LEARNED[args.detector], chosen).to(args.device)
    train, test, ood = sets
    start = time.perf_counter()
    detectors = template.fit_seeds(train, range(args.seeds))
    print(f"{way}: {args.seeds} seeds in {time.perf_counter() - start:.0f} s", flush=True)
    return [mean_fpr95(detector, test, ood) for detector in detectors]


def report(found: dict[str, list[float]]) -> None:
    """One line for each way, and one for its difference from the first."""
    (first, base), *others = found.items()
    print(f"{first:<16} FPR95 {statistics.mean(base):.1f} ± {statistics.stdev(base):.1f}")
    for way, values in others:
        gaps = [b - a for a, b in zip(base, values, strict=True)]
        error = statistics.stdev(gaps) / len(gaps) ** 0.5
        p = float(ttest_rel(values, base).pvalue) if error else 1.0
        print(
            f"{way:<16} FPR95 {statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}   "
            f"difference {statistics.mean(gaps):+.2f} ± {error:.2f} (standard error), p = {p:.2f}"
        )


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--detector", default="EBM", choices=list(LEARNED))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--ways", nargs="+", default=WAYS, metavar="ENGINE:PRECISION")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the detector")
    parser.add_argument("--rows", type=int, help="training rows to use, for a dry run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="where the figures of every seed go")
    args = parser.parse_args(given)
    if args.seeds < 2:
        parser.error("at least two seeds are needed for a standard error")
    train, test, ood = load(args.pack)
    sets = (train if args.rows is None else train[: args.rows]), test, ood
    settings = dict(item.split("=", 1) for item in args.set)
    device = of.EBM().to(args.device).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{args.detector} on {args.pack.name}, {name}, torch {torch.__version__}")
    found = {way: measure(way, settings, args, sets) for way in args.ways}
    report(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
