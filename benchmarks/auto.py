"""How well stand-ins choose: the fused detector that they pick against every detector, on one backbone and real OOD sets.

    python benchmarks/auto.py cifar10 --data FOLDER --backbone cifar10.safetensors --views one six --out auto.json

Of the ID test images 1,000, chosen by a fixed seed, are held out: they calibrate, and stand-ins are made of them. Detectors are
judged on the other test images and on the protocol's OOD sets, which are read after the choice is made.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import outfield as of
from outfield.benchmark.protocol import LEVELS, PROTOCOLS, Protocol
from outfield.benchmark.provenance import about_this_run
from outfield.detectors import choosing
from outfield.detectors.candidates import default_candidates
from outfield.detectors.naming import names_of
from outfield.detectors.trials import sides_of
from outfield.files.atomic import write_bytes
from outfield.images.finding import find
from outfield.images.source import ImageArray, ImageSource
from outfield.scores.vectors import rank

HELD_OUT = 1000
SUMS_AT_ONCE = 256
ALONE: tuple[of.Detector, ...] = (
    of.MSP(), of.MaxLogit(), of.EnergyLogits(), of.GEN(), of.Entropy(), of.TempScale(), of.KLMatching(), of.OpenMax(),
    of.KNN(k=5), of.KNN(k=50), of.KNN(k=200), of.KDE(), of.CosineMean(), of.SSD(), of.SSD(ridge=1.0), of.GaussianMixture(),
    of.RMDS(), of.PerClassGaussian(), of.PCA(), of.SHE(), of.NNGuide(), of.Relation(), of.Residual(), of.ViM(), of.fDBD(),
    of.fDBD(centre="origin"), of.NCI(), of.GradNorm(), of.ReAct(), of.VRA(), of.ASH(), of.SCALE(), of.LTS(), of.DICE(),
    of.SSD(on="stage1"), of.SSD(on="stage2"), of.SSD(on="stage3"),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("protocol", choices=sorted(PROTOCOLS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--views", nargs="+", default=["one"])
    parser.add_argument("--rows", type=int, help="use only this many images of each set")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    backbone = of.Backbone.open(options.backbone, options.device)
    found: dict[str, Any] = {}
    whole = {"about": about_this_run(options.device), "backbone": backbone.name, "views": found}
    for views in options.views:
        found[views] = one_run(options, backbone, PROTOCOLS[options.protocol], views)
        write_bytes(options.out, (json.dumps(whole, indent=1) + "\n").encode())


def one_run(options: argparse.Namespace, backbone: of.Backbone, protocol: Protocol, views: str) -> dict[str, Any]:
    """Extract, choose by stand-ins, then look at the real sets."""
    begin = time.perf_counter()

    def features(images: ImageSource, labels: bool = False) -> of.FeatureSet:
        return backbone.extract(images, stages=True, views=views, labels=labels)

    def images(name: str, split: str = "test") -> ImageSource:
        source = find(name, split, options.data)
        return source if options.rows is None else part(source, np.arange(min(options.rows, len(source))))

    train, test = features(images(protocol.id, "train"), labels=True), images(protocol.id)
    order = np.random.default_rng(0).permutation(len(test))
    count = min(HELD_OUT, len(test) // 2)
    held_out_images = part(test, np.sort(order[:count]))
    held_out, rest = features(held_out_images), features(part(test, np.sort(order[count:])))
    stand_ins = of.stand_ins(held_out_images).map(features)
    extracted = time.perf_counter()
    choice = of.choose(train, held_out, stand_ins, device=options.device)
    chosen = time.perf_counter()

    real = {name: features(images(name)) for name in protocol.ood}
    default = of.Fused().to(options.device).fit(train, held_out)
    alone = [*fitted_alone(train, options.device)]
    rows = {name: row(one, rest, real, stand_ins) for name, one in zip(names_of(alone), alone, strict=True)}
    rows = {"auto": row(choice.detector, rest, real, stand_ins), "Fused": row(default, rest, real, stand_ins), **rows}
    show(protocol, views, rows, choice)
    return {
        "chosen": choice.best.members,
        "rows": rows,
        "rank": ranks(protocol, rows, stand_ins.levels),
        "regret": regret(train, held_out, rest, real, choice, options.device),
        "trials": [{"members": t.members, "near": t.near, "far": t.far} for t in choice.trials[:200]],
        "seconds": {"extract": extracted - begin, "choose": chosen - extracted, "judge": time.perf_counter() - chosen},
    }


def fitted_alone(train: of.FeatureSet, device: str) -> Iterator[of.Detector]:
    """The single detectors that can be fitted; tells which cannot, and why."""
    for one in ALONE:
        try:
            yield type(one)(**vars(one)).to(device).fit(train)
        except of.OutfieldError as error:
            print(f"{one!r:.60}: {error}")


def part(images: ImageSource, index: np.ndarray) -> ImageArray:
    """Some of the images."""
    pixels = np.stack([np.asarray(images[int(i)]) for i in index])
    labels = None if images.labels is None else np.asarray(images.labels)[index]
    return ImageArray(pixels, labels=labels, name=images.name)


def row(
    detector: of.Detector,
    rest: of.FeatureSet,
    real: Mapping[str, of.FeatureSet],
    stand_ins: Mapping[str, of.FeatureSet],
) -> dict[str, dict[str, float]]:
    """FPR95 and AUROC on each real set, and FPR95 on each stand-in."""
    ids = detector.score(rest)
    scores = {name: detector.score(rows) for name, rows in real.items()}
    return {
        "fpr95": {name: of.fpr95(ids, found) for name, found in scores.items()},
        "auroc": {name: of.auroc(ids, found) for name, found in scores.items()},
        "stand_ins": {name: of.fpr95(ids, detector.score(rows)) for name, rows in stand_ins.items()},
    }


def ranks(protocol: Protocol, rows: Mapping[str, Any], levels: Mapping[str, str]) -> dict[str, float]:
    """Spearman's correlation, over single detectors, of FPR95 on stand-ins with FPR95 on the real sets."""
    alone = [one for name, one in rows.items() if name not in ("auto", "Fused")]
    made = {
        level: mean_over(alone, "stand_ins", [n for n, at in levels.items() if at == level])
        for level in ("near", "far")
    }
    near_and_mid = mean_over(alone, "fpr95", [*protocol.near, *protocol.mid])
    far = mean_over(alone, "fpr95", protocol.far)
    return {"near and mid": spearman(made["near"], near_and_mid), "far": spearman(made["far"], far)}


def regret(
    train: of.FeatureSet,
    held_out: of.FeatureSet,
    rest: of.FeatureSet,
    real: Mapping[str, of.FeatureSet],
    choice: of.Choice,
    device: str,
) -> dict[str, Any]:
    """Mean FPR95 on the real sets of the sum that was chosen, and of the best of all sums that could have been."""
    fitted, _ = choosing._fitted(default_candidates(train), train, device)
    names = names_of(fitted)
    rows = {("", ""): held_out, ("id", ""): rest, **{("real", name): data for name, data in real.items()}}
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    terms = {key: value.to(place) for key, value in sides_of(fitted, rows, 0)[0].items() if key[0]}
    sums = [*choosing._sums(len(fitted), 4)]
    means: list[float] = []
    for start in range(0, len(sums), SUMS_AT_ONCE):
        some = sums[start : start + SUMS_AT_ONCE]
        weights = torch.zeros(len(fitted), len(some), dtype=torch.float64, device=place)
        for column, chosen in enumerate(some):
            weights[list(chosen), column] = 1.0
        ids = terms["id", ""] @ weights
        limits = ids.kthvalue(rank(0.95, len(ids)), dim=0).values
        accepted = [(terms["real", name] @ weights <= limits).double().mean(0) for name in real]
        means += torch.stack(accepted).mean(0).tolist()
    found = {tuple(names[i] for i in chosen): mean for chosen, mean in zip(sums, means, strict=True)}
    best = min(found, key=lambda members: found[members])
    return {"chosen": found[choice.best.members], "best": found[best], "best members": best, "sums": len(found)}


def mean_over(rows: Sequence[Mapping[str, Mapping[str, float]]], what: str, names: Sequence[str]) -> np.ndarray:
    return np.array([np.mean([one[what][name] for name in names]) for one in rows])


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    first, second = (np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


def show(protocol: Protocol, views: str, rows: Mapping[str, Any], choice: of.Choice) -> None:
    print(f"\n{protocol.id}, views {views}: chosen {' + '.join(choice.best.members)}")
    for name, one in sorted(rows.items(), key=lambda item: np.mean(list(item[1]["fpr95"].values()))):
        levels = [100 * np.mean([one["fpr95"][s] for s in protocol.levels[level]]) for level in LEVELS]
        fpr95, auroc = (100 * np.mean(list(one[what].values())) for what in ("fpr95", "auroc"))
        print(f"{name:24}" + "".join(f"{value:6.1f}" for value in levels) + f"   {fpr95:5.1f} / {auroc:.1f}")


if __name__ == "__main__":
    main()
