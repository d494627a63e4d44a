"""Every detector on a pretrained network's features of photographs: figures, and the page that shows them.

    python benchmarks/photos.py run features --out docs/results/imagenette/results.json       # a GPU: minutes
    python benchmarks/photos.py run features --views one --heads ten --no-learned --out try.json
    python benchmarks/photos.py join results.json learned.json --out docs/results/imagenette/results.json
    python benchmarks/photos.py page docs/results/imagenette.md

Features are those of benchmarks/photos_extract.py. Each detector of the library is fitted with its own settings on the training
photographs of Imagenette (KNN with k = 50, as the benchmarks of CIFAR-10 have it), and so is the default, Auto, which chooses by
stand-ins made of held-out photographs. Real OOD sets are scored after that, and decide nothing. Heads are the ten rows of the
network's last layer that belong to Imagenette's classes, and all thousand.
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
from outfield.backbone import accuracy
from outfield.benchmark.provenance import about_this_run
from outfield.benchmark.sets import STAND_IN
from outfield.detectors import LearnedEnergy
from outfield.errors import OutfieldError
from outfield.files import read_record, write_bytes
from outfield.images import KINDS
from outfield.partners import StandIns
from photos_extract import TEN, VIEWS

PROTOCOL = of.Protocol(
    "imagenette",
    near=("caltech101",),
    mid=("flowers", "tinyimagenet", "cifar100"),
    far=("places365", "lsun", "textures", "svhn"),
)
"""Near: photographs of one object, as Imagenette's are, at full size. Mid: one object, but all of a kind that the network has
seen little of (flowers), or in 32 × 32 pixels. Far: no object in the middle (scenes, patterns) or no photograph of one (digits),
in 32 × 32 pixels. Fixed by what the sets show, before any score was computed."""
HEADS = ("ten", "thousand")
APART = ("Auto", "Fused")
"""Detectors that are made of others: Auto has a row of its own, and Fused is what it is made by."""
SLOW = ("EBM", "EnergyCorrected", "HEAT")
"""Detectors that train a network: with one view only."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="compute all figures")
    run.add_argument("features", type=Path)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--views", nargs="+", default=list(VIEWS), choices=VIEWS)
    run.add_argument("--heads", nargs="+", default=list(HEADS), choices=HEADS)
    run.add_argument("--detectors", nargs="+", help="only these, and Auto")
    run.add_argument("--no-learned", action="store_true", help="without those that train a network")
    run.add_argument("--seeds", type=int, default=3, help="of those that train a network")
    run.add_argument("--device", default="auto")
    join = commands.add_parser("join", help="put rows of a second run of the same parts beside those of the first")
    join.add_argument("runs", type=Path, nargs=2)
    join.add_argument("--out", type=Path, required=True)
    page = commands.add_parser("page", help="fill the tables of a page from the figures in the folder beside it")
    page.add_argument("pages", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "page":
        from photos_page import Found, fill

        for one in options.pages:
            fill(one, Found(json.loads((one.with_suffix("") / "results.json").read_text())))
        return
    if options.command == "join":
        first, second = (json.loads(path.read_text()) for path in options.runs)
        write_bytes(options.out, (json.dumps(joined(first, second), indent=1) + "\n").encode())
        return
    found: dict[str, Any] = {"protocol": PROTOCOL.plain(), "run": about_this_run(options.device), "parts": {}}
    for head in options.heads:
        for views in options.views:
            found["parts"][f"{head} {views}"] = studied(options, head, views)
            write_bytes(options.out, (json.dumps(found, indent=1) + "\n").encode())


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The first run with the second's rows added, which must be of the same images: Auto's rows tell."""
    for name, part in second["parts"].items():
        into = first["parts"].get(name)
        if into is None or any(into[what] != part[what] for what in ("images", "members")):
            raise SystemExit(f"the second run's part {name!r} is of other images, or chose other members")
        if into["rows"]["Auto"] != part["rows"]["Auto"]:
            raise SystemExit(f"the two runs' rows of Auto differ in part {name!r}")
        into["rows"] |= part["rows"]
        into["left_out"] |= part["left_out"]
    return first | {"run_added": second["run"]}


def load_sets(folder: Path, head: str, views: str) -> dict[str, of.FeatureSet]:
    """Every set with the logits of a head; labels count its classes."""
    _, layer = read_record(folder / "head.safetensors", "head")
    weight, bias = layer["weight"].float(), layer["bias"].float()
    ten = torch.tensor(TEN)
    if head == "ten":
        weight, bias = weight[ten], bias[ten]
    found = {}
    for path in sorted((folder / views).glob("*.safetensors")):
        kept = of.FeatureSet.load(path)
        fields = {name: value.float() if value.is_floating_point() else value for name, value in kept.tensors().items()}
        if kept.labels is not None and head == "ten":
            fields["labels"] = torch.searchsorted(ten, kept.labels)
        fields["logits"] = fields["features"] @ weight.T + bias
        odin = folder / "odin" / f"{path.stem}.npz"
        if views == "one" and odin.exists():
            fields["odin_logits"] = torch.from_numpy(np.load(odin)[head]).float()
        found[path.stem] = of.FeatureSet(
            **fields, head_weight=weight, head_bias=bias, about=kept.about, names=kept.names
        )
    return found


def studied(options: argparse.Namespace, head: str, views: str) -> dict[str, Any]:
    """All figures of a head and views."""
    sets = load_sets(options.features, head, views)
    train, held_out = sets.pop("train"), sets.pop("held_out")
    made = {name.removeprefix(STAND_IN): sets.pop(name) for name in [*sets] if name.startswith(STAND_IN)}
    levels = {name: KINDS[name].level for name in made}
    real = {name: sets[name] for name in PROTOCOL.ood}
    judged = {"": sets["test"], **real, **{f"{STAND_IN}{name}": rows for name, rows in made.items()}}
    began = time.perf_counter()
    choice = of.choose(train, held_out, StandIns(made, levels), real=real, device=options.device)
    seconds = time.perf_counter() - began
    print(f"{head} {views}: chosen in {seconds:.0f} s: {choice.weights}", flush=True)
    rows = {"Auto": [figures_of(scores_of(choice.detector, judged))]}
    left_out = {}
    for name, fitted in fits(options, train, learned=views == "one" and not options.no_learned):
        if isinstance(fitted, OutfieldError):
            left_out[name] = str(fitted)
            continue
        try:
            figures = figures_of(scores_of(fitted, judged))
            rows.setdefault(name, []).append(figures)
        except OutfieldError as error:
            left_out[name] = str(error)
    for name, why in left_out.items():
        print(f"{head} {views}: {name} is left out: {why}", flush=True)
    return {
        "accuracy": accuracy(sets["test"]),
        "images": {name: len(one) for name, one in {"train": train, "held_out": held_out, **judged}.items()},
        "levels": levels,
        "members": choice.weights,
        "loss": choice.chosen.loss,
        "regret": regret(choice),
        "seconds to choose": round(seconds, 1),
        "stages": {name: text for name, text in train.about.items() if name.startswith("stage")},
        "rows": rows,
        "left_out": left_out,
    }


def fits(
    options: argparse.Namespace, train: of.FeatureSet, learned: bool, neighbours: int = PROTOCOL.neighbours
) -> Iterator[tuple[str, of.Detector | OutfieldError]]:
    """Every detector, fitted, or why it cannot be; one for each seed where it is random."""
    for name in options.detectors or [name for name in of.DETECTORS if name not in APART]:
        cls = of.DETECTORS[name]
        if name in SLOW and not learned:
            continue
        plain = (of.KNN(k=neighbours) if name == "KNN" else cls()).to(options.device)
        try:
            began = time.perf_counter()
            done: Sequence[of.Detector] = (
                plain.fit_seeds(train, range(options.seeds)) if isinstance(plain, LearnedEnergy) else [plain.fit(train)]
            )
            print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
            yield from ((name, one) for one in done)
        except OutfieldError as error:
            yield name, error


def scores_of(fitted: of.Detector, judged: Mapping[str, of.FeatureSet]) -> dict[str, np.ndarray]:
    """Scores of every set; stand-ins, of which no perturbed images were made, are left out where a detector needs these."""
    kept = {
        name: rows
        for name, rows in judged.items()
        if not name.startswith(STAND_IN) or "odin_logits" not in fitted.needs_to_score
    }
    return {name: fitted.score(rows).numpy() for name, rows in kept.items()}


def figures_of(scores: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """FPR95 and AUROC of each set against the ID test set."""
    pairs = {name: of.Separation(scores[""], one) for name, one in scores.items() if name}
    return {name: [round(one.fpr95(), 5), round(one.auroc(), 5)] for name, one in pairs.items()}


def regret(choice: of.Choice) -> dict[str, Any]:
    """Mean FPR95 on real sets, told from held-out rows: of what was chosen, and of the sum or candidate that does best there."""

    def mean(trial: Any) -> float:
        return float(np.mean([*trial.real.values()]))

    best = min((*choice.trials, *choice.singles), key=mean)
    return {"chosen": mean(choice.chosen), "best": mean(best), "members": best.members}


if __name__ == "__main__":
    main()
