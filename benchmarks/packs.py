"""Every detector of the paper on a feature pack: FPR95 / AUROC for each OOD set and their mean.

    python benchmarks/packs.py PACK.npz                                  # the deterministic rows
    python benchmarks/packs.py PACK.npz --learned EBM EnergyCorrected --seeds 3

A pack is an .npz with arrays SET_features, SET_logits, SET_odin_logits and SET_labels; SET is train, test (ID), and any
number of OOD sets. Learned rows take minutes a seed on a GPU and much longer on a CPU; with ``--jobs`` several run at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import outfield as of
from outfield.report import Table, mean_std

ORDER = ("cifar100", "cifar10", "tinyimagenet", "lsun", "places", "textures", "svhn")


@dataclass(frozen=True)
class Run:
    detector: str
    seed: int | None
    results: list[of.Result]
    seconds: float


def rows(pack: Path, name: str, seed: int | None, k: int) -> tuple[list[of.Result], float]:
    """Results of one detector on every OOD set of the pack, and the seconds its fit took."""
    with np.load(pack) as file:
        parts = {n.removesuffix("_features") for n in file.files if n.endswith("_features")} - {"train", "test"}
    ood = {n: of.FeatureSet.load(pack, n) for n in sorted(parts, key=lambda n: ORDER.index(n) if n in ORDER else 99)}
    settings = {"seed": seed} if seed is not None else {"k": k} if name == "KNN" else {}
    start = time.perf_counter()
    detector = of.DETECTORS[name](**settings).fit(of.FeatureSet.load(pack, "train"))
    seconds = time.perf_counter() - start
    return of.evaluate({name: detector}, of.FeatureSet.load(pack, "test"), ood), seconds


def markdown(runs: Sequence[Run]) -> str:
    """FPR95 / AUROC of each detector on each OOD set and their mean, in percent, with ± over seeds."""

    def cell(pairs: list[tuple[float, float]]) -> str:
        return " / ".join(mean_std([100 * value for value in values], digits=1) for values in zip(*pairs, strict=True))

    lines = []
    for name in dict.fromkeys(run.detector for run in runs):
        mine = [[(r.fpr95, r.auroc) for r in run.results] for run in runs if run.detector == name]
        means = [(statistics.mean(f for f, _ in run), statistics.mean(a for _, a in run)) for run in mine]
        lines.append([name, *(cell(list(column)) for column in zip(*mine, strict=True)), cell(means)])
    return Table("", ["", *(result.ood for result in runs[0].results), "mean"], lines).markdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--learned", nargs="*", default=[], choices=["EBM", "EnergyCorrected"], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    plain = [name for name in of.DETECTORS if name not in ("EBM", "EnergyCorrected")]
    work = [(name, None) for name in plain] + [(name, seed) for name in args.learned for seed in range(args.seeds)]
    runs: list[Run] = []
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(rows, args.pack, name, seed, args.k) for name, seed in work]
        for (name, seed), future in zip(work, futures, strict=True):
            runs.append(Run(name, seed, *future.result()))
            print(
                f"{name}{'' if seed is None else f', seed {seed}'}: fitted in {runs[-1].seconds:.1f} s", file=sys.stderr
            )
    print(markdown(runs))
    if args.json:
        args.json.write_text(json.dumps([asdict(run) for run in runs], indent=1))


if __name__ == "__main__":
    main()
