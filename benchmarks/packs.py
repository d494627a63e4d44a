"""Every detector of the paper on a feature pack: FPR95 / AUROC for each OOD set and their mean.

    python benchmarks/packs.py PACK.npz                                  # the deterministic rows
    python benchmarks/packs.py PACK.npz --learned EBM EnergyCorrected --seeds 3

A pack is an .npz with arrays SET_features, SET_logits, SET_odin_logits and SET_labels; SET is train, test (ID), and any
number of OOD sets. The seeds of a learned row are fitted side by side: seconds on a GPU, minutes to hours on a CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import outfield as of
from outfield.benchmark import ROWS
from outfield.report import Table
from outfield.report.toys import mean_std

LEARNED: dict[str, type[of.EBM] | type[of.EnergyCorrected]] = {"EBM": of.EBM, "EnergyCorrected": of.EnergyCorrected}
ORDER = ("cifar100", "cifar10", "tinyimagenet", "lsun", "places", "textures", "svhn")


@dataclass(frozen=True)
class Run:
    detector: str
    seed: int | None
    results: list[of.Result]
    seconds: float
    """For all seeds of the detector together."""


def load(pack: Path) -> tuple[of.FeatureSet, of.FeatureSet, dict[str, of.FeatureSet]]:
    """Training data, ID test data, OOD sets by name."""
    with np.load(pack) as file:
        parts = {n.removesuffix("_features") for n in file.files if n.endswith("_features")} - {"train", "test"}
    ood = {n: of.FeatureSet.load(pack, n) for n in sorted(parts, key=lambda n: ORDER.index(n) if n in ORDER else 99)}
    return of.FeatureSet.load(pack, "train"), of.FeatureSet.load(pack, "test"), ood


def fitted(name: str, train: of.FeatureSet, args: argparse.Namespace) -> dict[int | None, of.Detector]:
    """Detectors by seed (None where nothing is random); several seeds are fitted at once."""
    if name not in LEARNED:
        return {None: of.DETECTORS[name](**({"k": args.k} if name == "KNN" else {})).fit(train)}
    plain = LEARNED[name]()
    training = replace(plain.training, engine=args.engine, precision=args.precision)
    detectors = LEARNED[name](training=training).fit_seeds(train, range(args.seeds))
    return {detector.seed: detector for detector in detectors}


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
    parser.add_argument("--learned", nargs="*", default=[], choices=list(LEARNED), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    train, test, ood = load(args.pack)
    runs: list[Run] = []
    for name in [*(name for name in ROWS if name not in LEARNED), *args.learned]:
        start = time.perf_counter()
        detectors = fitted(name, train, args)
        seconds = time.perf_counter() - start
        print(f"{name}: {len(detectors)} fitted in {seconds:.1f} s", file=sys.stderr)
        runs += [
            Run(name, seed, of.evaluate({name: detector}, test, ood), seconds) for seed, detector in detectors.items()
        ]
    print(markdown(runs))
    if args.json:
        args.json.write_text(json.dumps([asdict(run) for run in runs], indent=1))


if __name__ == "__main__":
    main()
