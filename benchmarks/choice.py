"""Ways to choose a sum of detectors by stand-ins, on one network's features: that of ``choose``, and the vote of 0.1.0.

    python benchmarks/choice.py extract cifar10 --data FOLDER --backbone cifar10-0.safetensors --out features/cifar10-0
    python benchmarks/choice.py compare cifar10 features/cifar10-0 features/cifar10-1 --out choice.json

A folder holds ``train``, ``held_out`` and ``test`` of the ID set, ``stand-in KIND`` for each kind and the OOD sets of the
protocol, each a file of features; an .npz file may hold them as parts (``train_features`` and so on). Without held-out rows,
a quarter of the test rows is held out, 1,000 at most; without stand-ins they are made of held-out features. In the vote, every
sum of up to four candidates was tried, and the best hundred said how much each counts. OOD sets are opened after the choices.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import outfield as of
from outfield.benchmark import LEVELS, PROTOCOLS
from outfield.benchmark.sets import STAND_IN, split_features, split_images
from outfield.detectors import Calibration, names_of
from outfield.detectors.combined.choice import default_candidates
from outfield.detectors.combined.fused import halves
from outfield.detectors.combined.weights import Kind, Terms, by_level
from outfield.errors import OutfieldError
from outfield.features import FeatureSource
from outfield.files import write_bytes
from outfield.images import KINDS, find, part_of
from outfield.partners import StandIns
from outfield.report import Table

VOTES, ONE_IN, LIGHTEST, MOST = 100, 50, 0.1, 4
"""Of the vote: sums that vote, but at most one in so many; the lightest member; how many members a sum has."""
AT_ONCE = 256
OTHER_NAMES = {"places365": "places"}
LEFT_OUT = ("Auto", "Fused", "HEAT", "EBM", "EnergyCorrected", "ODIN", "Mahalanobis")
"""Not among all detectors: they are made of others, train for minutes, or need perturbed images or all stages."""
Row = dict[str, Any]


def extract(options: argparse.Namespace) -> None:
    """Features of every set, from images."""
    protocol, backbone = PROTOCOLS[options.protocol], of.Backbone.open(options.backbone, options.device)
    names = {
        "train": (protocol.id, "train"),
        "test": (protocol.id, "test"),
        **{one: (one, "test") for one in protocol.ood},
    }
    images = {}
    for name, place in names.items():
        try:
            images[name] = find(*place, options.data)
        except OutfieldError as error:
            print(f"{name} is left out: {error}")
    if options.rows is not None:
        images = {name: part_of(one, np.arange(min(options.rows, len(one)))) for name, one in images.items()}
    images, _ = split_images(images, min(1000, len(images["test"]) // 4), [of.Auto()])
    options.out.mkdir(parents=True, exist_ok=True)
    for name, one in images.items():
        labels = name in ("train", "test", "held_out")
        path = options.out / f"{name}.safetensors"
        backbone.extract(one, stages=True, views=options.views, labels=labels).save(path)


def sets_of(path: Path, protocol: of.Protocol) -> dict[str, of.FeatureSet]:
    """Every set by its name; held-out rows are split off the test rows where there are none."""
    if path.is_dir():
        found = {
            file.stem: of.FeatureSet.load(file)
            for file in sorted(path.iterdir())
            if file.suffix in (".safetensors", ".npz")
        }
    else:
        with np.load(path) as file:
            parts = [name.removesuffix("_features") for name in file.files if name.endswith("_features")]
        found = {name: of.FeatureSet.load(path, part=name) for name in parts}
    found |= {name: found.pop(other) for name, other in OTHER_NAMES.items() if other in found and name in protocol.ood}
    split = split_features(found, min(1000, len(found["test"]) // 4))
    return {name: rows.in_memory() for name, rows in split.items()}


def voted(
    train: FeatureSource, held_out: FeatureSource, made: StandIns[Any], candidates: Sequence[of.Detector], device: str
) -> of.Fused:
    """The sum that the best sums vote for, as in version 0.1.0: rows that choose calibrate the sum, too."""
    fitted = fitted_of(candidates, train, device)
    own = [one.score(held_out).double() for one in fitted]
    others: dict[Kind, list[Tensor]] = {
        (made.levels[name], name): [one.score(rows) for one in fitted] for name, rows in made.items()
    }
    first, second = halves(len(held_out), 0)
    sides = []
    for calibrating, judged in ((first, second), (second, first)):
        known = [Calibration.of(scores[calibrating]) for scores in own]
        ids = [one.surprise(scores[judged]) for one, scores in zip(known, own, strict=True)]
        terms = {
            kind: torch.stack([one.surprise(scores) for one, scores in zip(known, found, strict=True)], 1)
            for kind, found in others.items()
        }
        sides.append(Terms(torch.stack(ids, 1), terms))
    sums = [*itertools.chain(*(itertools.combinations(range(len(fitted)), size) for size in range(1, MOST + 1)))]
    losses: list[float] = []
    for start in range(0, len(sums), AT_ONCE):
        some = sums[start : start + AT_ONCE]
        columns = torch.zeros(len(fitted), len(some), dtype=torch.float64)
        for column, chosen in enumerate(some):
            columns[list(chosen), column] = 1.0
        accepted = [side.accepted(columns) for side in sides]
        shares = {kind: torch.stack([found[kind].mean(1) for found in accepted]).mean(0).tolist() for kind in others}
        levels = [by_level({kind: found[i] for kind, found in shares.items()}) for i in range(len(some))]
        losses += [(near + far) / 2 for near, far in levels]
    order = sorted(range(len(sums)), key=lambda i: (losses[i], len(sums[i])))
    voters = [sums[i] for i in order[: max(1, min(VOTES, len(sums) // ONE_IN))]]
    votes = [sum(i in chosen for chosen in voters) for i in range(len(fitted))]
    members = [i for i, count in enumerate(votes) if count >= LIGHTEST * max(votes)]
    weights = [votes[i] / max(votes) for i in members]
    return of.Fused.of_fitted([fitted[i] for i in members], held_out, weights=weights)


def fitted_of(candidates: Sequence[of.Detector], train: FeatureSource, device: str) -> list[of.Detector]:
    found = []
    for one in candidates:
        try:
            found.append(one.fresh().to(device).fit(train))
        except OutfieldError as error:
            print(f"{one!r:.60} is left out: {error}")
    return found


def every_detector(train: FeatureSource) -> list[of.Detector]:
    """The default candidates, and every other detector that scores in seconds, with its own settings."""
    found = default_candidates(train)
    known = {repr(one) for one in found}
    others = [of.DETECTORS[name]() for name in of.DETECTORS if name not in LEFT_OUT]
    return [*found, *(one for one in others if repr(one) not in known)]


def studied(path: Path, protocol: of.Protocol, options: argparse.Namespace) -> dict[str, Row]:
    """What each way to choose takes, how long, and what becomes of it."""
    sets = sets_of(path, protocol)
    train, held_out, device = sets["train"], sets["held_out"], options.device
    kinds = {name.removeprefix(STAND_IN): rows for name, rows in sets.items() if name.startswith(STAND_IN)}
    made = StandIns(kinds, {name: KINDS[name].level for name in kinds}) if kinds else of.feature_stand_ins(held_out)
    candidates = default_candidates(train)
    wide = every_detector(train)
    ways: dict[str, Any] = {
        "vote (0.1.0)": lambda: voted(train, held_out, made, candidates, device),
        "convex fit": lambda: of.choose(train, held_out, made, candidates, device=device),
        f"convex fit, {len(wide)} candidates": lambda: of.choose(train, held_out, made, wide, device=device),
    }
    found: dict[str, Row] = {}
    for name, way in ways.items():
        began = time.perf_counter()
        choice = way()
        seconds = time.perf_counter() - began
        fused = choice if isinstance(choice, of.Fused) else choice.detector
        weights = fused.weights or [1.0] * len(fused.members)
        found[name] = {
            "members": dict(zip(names_of(fused.members), weights, strict=True)),
            "seconds": round(seconds, 1),
            "fused": fused,
        }
        if isinstance(choice, of.Choice):
            found[name] |= {"l2": choice.l2, "left_out": choice.chosen.left_out, "skipped": dict(choice.skipped)}
    for row in found.values():  # OOD sets are opened from here on
        row |= judged(row.pop("fused"), sets, protocol)
    return found


def judged(fused: of.Fused, sets: Mapping[str, of.FeatureSet], protocol: of.Protocol) -> Row:
    """FPR95 and AUROC by set, and the share of ID test rows with a p-value of at most 0.1."""
    ids = fused.score(sets["test"])
    pairs = {name: of.Separation(ids, fused.score(sets[name])) for name in protocol.ood if name in sets}
    return {
        "fpr95": {name: pair.fpr95() for name, pair in pairs.items()},
        "auroc": {name: pair.auroc() for name, pair in pairs.items()},
        "p at most 0.1": float((fused.p_values(sets["test"]) <= 0.1).double().mean()),
    }


def show(title: str, protocol: of.Protocol, found: Mapping[str, Row]) -> None:
    def pair(row: Row, names: Sequence[str]) -> str:
        there = [name for name in names if name in row["fpr95"]]
        return " / ".join(
            f"{100 * np.mean([row[of_what][name] for name in there]):.1f}" for of_what in ("fpr95", "auroc")
        )

    header = [
        "FPR95 / AUROC",
        *(f"{level} OOD" for level in LEVELS),
        "mean",
        "members",
        "seconds",
        "ID rows with p ≤ 0.1",
    ]
    rows = [
        [name, *(pair(row, protocol.levels[level]) for level in LEVELS), pair(row, protocol.ood), str(len(row["members"])),
         f"{row['seconds']:.0f}", f"{100 * row['p at most 0.1']:.1f} %"]
        for name, row in found.items()
    ]  # fmt: skip
    print(f"\n{title}\n{Table(title, header, rows).markdown()}")
    for name, row in found.items():
        heaviest = sorted(row["members"].items(), key=lambda item: -item[1])
        print(f"{name}: {' + '.join(f'{weight:.2f} {member}' for member, weight in heaviest)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    taken = commands.add_parser("extract", help="features of a protocol's images")
    taken.add_argument("protocol", choices=sorted(PROTOCOLS))
    taken.add_argument("--data", type=Path, required=True)
    taken.add_argument("--backbone", required=True)
    taken.add_argument("--views", default="one")
    taken.add_argument("--rows", type=int, help="use only this many images of each set")
    taken.add_argument("--out", type=Path, required=True)
    taken.add_argument("--device", default="auto")
    compared = commands.add_parser("compare", help="the ways to choose, for each network")
    compared.add_argument("protocol", choices=sorted(PROTOCOLS))
    compared.add_argument("features", type=Path, nargs="+")
    compared.add_argument("--out", type=Path, help="where all figures go (.json)")
    compared.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.command == "extract":
        extract(options)
        return
    protocol, found = PROTOCOLS[options.protocol], {}
    for path in options.features:
        found[path.name] = studied(path, protocol, options)
        show(path.name, protocol, found[path.name])
        if options.out is not None:
            write_bytes(options.out, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
