"""Scores of every detector on real OOD sets and on stand-ins, with one backbone and views, to study how a detector is chosen.

    python benchmarks/scores.py cifar10 --data FOLDER --other BICUBIC --backbone cifar10-0.safetensors --views six \\
        --out scores.npz
    python benchmarks/choice.py scores.npz another.npz

For each seed 1,000 of the ID test images are drawn, and stand-ins are made of them; all test images are scored once. The file
holds float32 arrays ``NUMBER|SET``, a detector's scores of a set, and ``about``: names, candidates of ``choose`` first.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import outfield as of
from outfield.benchmark import PROTOCOLS
from outfield.benchmark.provenance import about_this_run
from outfield.detectors import names_of
from outfield.detectors.combined.choice import default_candidates
from outfield.errors import OutfieldError
from outfield.files import write_bytes
from outfield.images import ImageSource, find, part_of

HELD_OUT = 1000
ALONE: tuple[of.Detector, ...] = (
    of.MSP(), of.MaxLogit(), of.EnergyLogits(), of.GEN(), of.Entropy(), of.TempScale(), of.KLMatching(), of.OpenMax(),
    of.KNN(k=5), of.KNN(k=50), of.KNN(k=200), of.KDE(), of.CosineMean(), of.SSD(), of.SSD(ridge=1.0), of.GaussianMixture(),
    of.RMDS(), of.PerClassGaussian(), of.PCA(), of.SHE(), of.NNGuide(), of.Relation(), of.Residual(), of.ViM(), of.fDBD(),
    of.fDBD(centre="origin"), of.NCI(), of.GradNorm(), of.ReAct(), of.VRA(), of.ASH(), of.SCALE(), of.LTS(), of.DICE(),
    of.SSD(field="stage1"), of.SSD(field="stage2"), of.SSD(field="stage3"),
)  # fmt: skip
COMPOSED: tuple[of.Detector, ...] = (of.Mahalanobis(), of.CombOOD(), of.HEAT())
LEARNED: tuple[of.Detector, ...] = (
    of.EBM.paper(),
    of.EnergyCorrected.paper(prior_temperature=500),
    of.EnergyCorrected.paper(prior_temperature=1000),
)


def held_out_index(total: int, seed: int) -> np.ndarray:
    """Which of the ID test images calibrate and are what stand-ins are made of."""
    return np.sort(np.random.default_rng(seed).permutation(total)[: min(HELD_OUT, total // 2)])


def sets_of(options: argparse.Namespace, backbone: of.Backbone) -> Iterator[tuple[str, of.FeatureSet]]:
    """Every set that is scored, by its name; the real ones last."""
    protocol = PROTOCOLS[options.protocol]

    def features(images: ImageSource, labels: bool = False) -> of.FeatureSet:
        images = images if options.rows is None else part_of(images, np.arange(min(options.rows, len(images))))
        return backbone.extract(images, stages=True, views=options.views, labels=labels)

    test = find(protocol.id, "test", options.data)
    yield "train", features(find(protocol.id, "train", options.data), labels=True)
    yield "test", features(test, labels=True)
    for seed in range(options.seeds):
        made = of.stand_ins(part_of(test, held_out_index(len(test), seed)), seed=seed)
        for name, images in made.items():
            yield f"made{seed} {made.levels[name]} {name}", features(images)
    for kind, folder in (("real", options.data), ("other", options.other)):
        for name in protocol.ood if folder is not None else ():
            if kind == "real" or (folder / f"{name}.npz").exists():
                yield f"{kind} {name}", features(find(name, "test", folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("protocol", choices=sorted(PROTOCOLS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--other", type=Path, help="OOD sets of the same names that another filter shrank")
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--views", default="one")
    parser.add_argument("--seeds", type=int, default=3, help="how often images are held out and stand-ins made")
    parser.add_argument("--learned", action="store_true", help="with EnergyCorrected and EBM, at the paper's settings")
    parser.add_argument("--rows", type=int, help="use only this many images of each set")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    sets = dict(sets_of(options, of.Backbone.open(options.backbone, options.device)))
    train = sets.pop("train")
    candidates = default_candidates(train)
    known = {repr(one) for one in candidates}
    others = [*ALONE, *COMPOSED, *(LEARNED if options.learned else ())]
    every = [*candidates, *(one for one in others if repr(one) not in known)]
    found: dict[str, np.ndarray] = {}
    seconds: dict[str, object] = {}
    for number, (name, one) in enumerate(zip(names_of(every), every, strict=True)):
        begin = time.perf_counter()
        try:
            fitted = type(one)(**vars(one)).to(options.device).fit(train)
            found |= {f"{number}|{key}": fitted.score(rows).numpy() for key, rows in sets.items()}
            seconds[name] = round(time.perf_counter() - begin, 2)
        except OutfieldError as error:
            print(f"{name} is left out: {error}")
    test = sets["test"]
    assert test.labels is not None
    assert test.logits is not None
    found |= {"labels": test.labels.numpy(), "guess": test.logits.argmax(1).numpy()}
    about = {
        "protocol": options.protocol,
        "net": Path(options.backbone).stem,
        "views": options.views,
        "names": names_of(every),
        "candidates": len(candidates),
        "seconds": seconds,
        "run": about_this_run(options.device),
    }
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**found, "about": np.array(json.dumps(about))}
    np.savez_compressed(buffer, **arrays)
    write_bytes(options.out, buffer.getvalue())


if __name__ == "__main__":
    main()
