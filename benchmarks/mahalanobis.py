"""The Mahalanobis baseline of Lee et al. 2018 in full: input perturbation and an ensemble of layers, on one or more backbones.

    python benchmarks/mahalanobis.py cifar10 --data FOLDER --backbone one.safetensors two.safetensors --out mahalanobis.json

Lee et al. choose the size of the perturbation and the weights of layers on OOD images. Here the size is that which tells
held-out ID images best from stand-ins made of them, near and far levels counted equally, and every layer has the same weight.
The real sets are looked at afterwards.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import outfield as of
from outfield.benchmark import LEVELS, PROTOCOLS, Protocol
from outfield.benchmark.provenance import about_this_run
from outfield.files import write_bytes
from outfield.images import find, part_of
from scores import HELD_OUT

EPSILONS = (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.005, 0.01)
"""As Lee et al. try them; with 0 images are as they are."""
DETECTORS: dict[str, of.Detector] = {"SSD": of.SSD(), "Mahalanobis": of.Mahalanobis()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("protocol", choices=sorted(PROTOCOLS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", nargs="+", required=True)
    parser.add_argument("--rows", type=int, help="use only this many images of each set")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    found = {path: one_backbone(options, PROTOCOLS[options.protocol], path) for path in options.backbone}
    whole = {
        "about": about_this_run(options.device),
        "backbones": {Path(path).stem: one for path, one in found.items()},
    }
    write_bytes(options.out, (json.dumps(whole, indent=1) + "\n").encode())


def one_backbone(options: argparse.Namespace, protocol: Protocol, path: str) -> dict[str, Any]:
    """Choose the size of the step by stand-ins, then judge every size."""
    backbone = of.Backbone.open(path, options.device)

    def images(name: str, split: str = "test") -> Any:
        source = find(name, split, options.data)
        return source if options.rows is None else part_of(source, np.arange(min(options.rows, len(source))))

    train = backbone.extract(images(protocol.id, "train"), stages=True)
    fitted = {name: type(one)(**vars(one)).to(options.device).fit(train) for name, one in DETECTORS.items()}
    test = images(protocol.id)
    order = np.random.default_rng(0).permutation(len(test))
    count = min(HELD_OUT, len(test) // 2)
    held_out = part_of(test, np.sort(order[:count]))
    made = of.stand_ins(held_out)
    sets = {"held_out": held_out, "test": part_of(test, np.sort(order[count:])), **{n: images(n) for n in protocol.ood}}
    rows: dict[str, Any] = {name: {} for name in fitted}
    for epsilon in EPSILONS:
        perturb = of.Perturb(fitted["SSD"], epsilon)
        features = {
            name: backbone.extract(one, stages=True, labels=False, perturb=perturb)
            for name, one in {**sets, **made}.items()
        }
        for name, detector in fitted.items():
            rows[name][epsilon] = judged(detector, features, made.levels, protocol)
    for name, sizes in rows.items():
        best = min(sizes, key=lambda epsilon: sizes[epsilon]["stand_ins"])
        print(f"{backbone.name}: {name}, ε = {best:g} by stand-ins")
        for epsilon, one in sizes.items():
            levels = [100 * np.mean([one["fpr95"][ood] for ood in protocol.levels[level]]) for level in LEVELS]
            print(
                f"  {epsilon:<8g} stand-ins {100 * one['stand_ins']:5.1f}   real "
                + " ".join(f"{value:5.1f}" for value in levels)
                + f"   {100 * np.mean([*one['fpr95'].values()]):5.1f} / {100 * np.mean([*one['auroc'].values()]):.1f}"
            )
        rows[name] = {"chosen": best, "sizes": sizes}
    return rows


def judged(
    detector: of.Detector, features: dict[str, of.FeatureSet], levels: dict[str, str], protocol: Protocol
) -> dict[str, Any]:
    """FPR95 on stand-ins by held-out images; FPR95 and AUROC on the real sets by the other test images."""
    scores = {name: detector.score(rows) for name, rows in features.items()}
    by_level = [
        np.mean([of.fpr95(scores["held_out"], scores[name]) for name, at in levels.items() if at == level])
        for level in sorted(set(levels.values()))
    ]
    return {
        "stand_ins": float(np.mean(by_level)),
        "fpr95": {name: of.fpr95(scores["test"], scores[name]) for name in protocol.ood},
        "auroc": {name: of.auroc(scores["test"], scores[name]) for name in protocol.ood},
    }


if __name__ == "__main__":
    main()
