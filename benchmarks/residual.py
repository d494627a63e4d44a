"""What the correction's network learns as it trains, how large it must be, and what an ID-only sign makes of it.

    python benchmarks/residual.py PACK.npz                                # a feature pack; stand-ins made of features
    python benchmarks/residual.py FOLDER --out residual.json              # sets of features, stand-ins made of images
    python benchmarks/residual.py PACK.npz --groups ridge --rows 5000     # a part of it

FOLDER holds train, held_out, stand-in-near-NAME, stand-in-far-NAME and real-NAME, each a FeatureSet ending in .safetensors. The
real sets are scored for the report only: the epochs and the prior's temperature of every line are chosen by a sign that needs ID
data alone. There are two:

- wrong: AUROC of held-out rows that the classifier gets wrong against those that it gets right, to be large;
- stand-ins: FPR95 on stand-ins, near and far levels counted equally, to be small.

Each setting is fitted once, and its weights are looked at after each number of epochs, as they are and averaged over the last
half of the epochs so far. The prior's temperature changes the sum only and needs no fit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import outfield as of
from outfield.energy import (
    PROJECTIONS,
    CorrectedEnergy,
    History,
    Training,
    build_network,
    projection_for,
    train,
)
from outfield.features import normalise
from outfield.modes import resolve_device
from outfield.report import Table
from outfield.scores import auroc, fpr95

TEMPERATURES = (250, 500, 1000, 2000, 4000, 8000)
REAL_LEVELS = {
    "near": ("cifar10", "cifar100", "tinyimagenet"),
    "mid": ("lsun", "places"),
    "far": ("textures", "svhn", "mnist"),
}
ONE_MOVE = of.Langevin(steps=1, step_size=(1.1e-5, 1.1e-5), noise_std=(2.75e-3, 2.75e-3))
"""One move as long as the paper's twenty together: their steps added, their noise added in squares."""

Score = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Fit:
    """One setting of the correction."""

    name: str
    network: of.MLP = of.MLP(128, 2)
    training: Training = Training(epochs=20, learning_rate=3e-4, start="mixed")
    sampler: of.Langevin = ONE_MOVE
    ridge: float = 0.0


def _learning(rate: float, start: str = "mixed") -> Training:
    return Training(learning_rate=rate, start=start)


GROUPS: dict[str, list[Fit]] = {
    "paper": [Fit("paper", of.MLP(), Training(), of.Langevin())],
    "offset": [Fit("the paper's rate", training=Training())],
    "start": [
        Fit(f"start {start}", training=_learning(3e-4, start)) for start in ("mixed", "prior", "uniform", "data")
    ],
    "chains": [
        Fit("twenty moves", sampler=of.Langevin()),
        Fit("one move"),
        Fit("no move", sampler=of.Langevin(steps=0)),
    ],
    "rate": [Fit(f"rate {rate:g}", training=_learning(rate)) for rate in (3e-5, 1e-4, 3e-4, 1e-3)],
    "size": [
        Fit(f"{hidden} × {depth}", of.MLP(hidden, depth), _learning(0.04 / hidden))
        for hidden in (64, 128, 256, 512, 1024)
        for depth in (2, 3, 4)
    ],
    "ridge": [Fit(f"ridge {ridge:g}", ridge=ridge) for ridge in (0.0, 0.1, 0.3, 1.0, 3.0)],
}


@dataclass
class Sets:
    """Normalised rows on the device, by what they are for."""

    train: Tensor
    labels: Tensor
    held_out: Tensor
    wrong: Tensor | None
    stand_ins: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    real: dict[str, Tensor] = field(default_factory=dict)


def sets_of(source: Path, rows: int | None, device: torch.device) -> Sets:
    """Read a pack or a folder; of a pack, one half of the test rows is held out and stand-ins are made of the other."""
    if source.is_dir():
        files = {path.stem: of.FeatureSet.load(path) for path in sorted(source.glob("*.safetensors"))}
        fitted, held_out = files["train"], files["held_out"]
        stand_ins: dict[str, dict[str, of.FeatureSet]] = {}
        for level in ("near", "far"):
            prefix = f"stand-in-{level}-"
            stand_ins[level] = {name.removeprefix(prefix): s for name, s in files.items() if name.startswith(prefix)}
        real = {name.removeprefix("real-"): s for name, s in files.items() if name.startswith("real-")}
    else:
        with np.load(source) as file:
            names = sorted(n.removesuffix("_features") for n in file.files if n.endswith("_features"))
        loaded = {name: of.FeatureSet.load(source, name) for name in names}
        fitted, test = loaded.pop("train"), loaded.pop("test")
        half = len(test) // 2
        held_out, real = test[:half], loaded
        stand_ins = of.feature_stand_ins(test[half:]).by_level()
    if rows is not None and rows < len(fitted):
        fitted = fitted[torch.randperm(len(fitted), generator=torch.Generator().manual_seed(0))[:rows]]

    def z(one: of.FeatureSet) -> Tensor:
        return normalise(one.features.to(device))

    wrong = None
    if held_out.logits is not None and held_out.labels is not None:
        wrong = (held_out.logits.argmax(1) != held_out.labels).to(device)
    assert fitted.labels is not None, "train needs labels"
    return Sets(
        z(fitted),
        fitted.labels,
        z(held_out),
        wrong,
        {level: {name: z(one) for name, one in sets.items()} for level, sets in stand_ins.items() if sets},
        {name: z(one) for name, one in real.items()},
    )


def measured(sets: Sets, score: Score) -> dict[str, float]:
    """FPR95 in percent on stand-ins and real sets by level, AUROC on all real sets, and of the rows that are wrong."""
    known = score(sets.held_out).cpu()
    found: dict[str, float] = {}
    if sets.wrong is not None and 0 < int(sets.wrong.sum()) < len(known):
        wrong = sets.wrong.cpu()
        found["wrong"] = 100 * auroc(known[~wrong], known[wrong])
    for level, stand_ins in sets.stand_ins.items():
        found[f"stand-in {level}"] = statistics.mean(100 * fpr95(known, score(z).cpu()) for z in stand_ins.values())
    levels = [value for name, value in found.items() if name.startswith("stand-in")]
    if levels:
        found["stand-ins"] = statistics.mean(levels)
    scores = {name: score(z).cpu() for name, z in sets.real.items()}
    rates = {name: 100 * fpr95(known, one) for name, one in scores.items()}
    for level, names in REAL_LEVELS.items():
        here = [rates[name] for name in names if name in rates]
        if here:
            found[level] = statistics.mean(here)
    if rates:
        found |= {"mean": statistics.mean(rates.values())}
        found["auroc"] = statistics.mean(100 * auroc(known, one) for one in scores.values())
    return found


def tiny(z: Tensor) -> Tensor:
    """The share of entries above 0 and below a thousandth in each row (N,): ReLU and pooling give many, a Gaussian few."""
    return ((z > 0) & (z < 1e-3)).float().mean(1)


def looked_at(sets: Sets, prior: of.MixturePrior, model: CorrectedEnergy, samples: Tensor) -> dict[str, Any]:
    """What the residual is: its mean on each set, and how it goes along with other quantities of held-out rows."""
    z, means = sets.held_out, prior.parameters_.means.to(sets.held_out)
    residual = model.residual(z)
    others = {
        "prior energy": prior.energy(z),
        "cosine": (z @ normalise(means).T).amax(1),
        "tiny": tiny(z),
    }
    rows = {"train": sets.train, "held out": z, "samples of the prior": samples}
    rows |= {f"stand-in {name}": one for here in sets.stand_ins.values() for name, one in here.items()}
    rows |= {f"real {name}": one for name, one in sets.real.items()}
    return {
        "mean residual": {name: float(model.residual(one).mean()) for name, one in rows.items()},
        "spread of held out": float(residual.std()),
        "auroc of samples": 100 * auroc(residual.cpu(), model.residual(samples).cpu()),
        "correlation": {n: float(torch.corrcoef(torch.stack([residual, one]))[0, 1]) for n, one in others.items()},
    }


def geometry(sets: Sets, prior: of.MixturePrior, samples: Tensor) -> dict[str, dict[str, float]]:
    """Where each set lies, seen by four numbers that do not depend on any network."""
    means = normalise(prior.parameters_.means.to(sets.train))
    rows = {"train": sets.train, "held out": sets.held_out, "samples of the prior": samples}
    rows["mixed rows"] = normalise(sets.train + sets.train.roll(len(sets.train) // 2 + 1, 0))
    rows |= {f"real {name}": one for name, one in sets.real.items()}
    return {
        name: {
            "prior energy": float(prior.energy(z).mean()),
            "cosine": float((z @ means.T).amax(1).mean()),
            "zeros": float((z <= 0).float().mean()),
            "tiny": float(tiny(z).mean()),
        }
        for name, z in rows.items()
    }


def checkpoints(
    fit: Fit, sets: Sets, prior: of.MixturePrior, seed: int, epochs: list[int]
) -> Iterator[tuple[int, bool, CorrectedEnergy, float]]:
    """(epoch, whether averaged, the model with those weights, seconds so far) along one fit."""
    model = CorrectedEnergy(build_network(fit.network, sets.train.shape[1], seed), 1.0, prior, 500.0)
    model.to(sets.train.device)
    ends: list[tuple[dict[str, Tensor], float]] = []
    begun = time.perf_counter()

    def keep(done: int, total: int, history: History) -> None:
        if len(history) > len(ends):
            weights = {name: value.clone() for name, value in model.network.state_dict().items()}
            ends.append((weights, time.perf_counter() - begun))

    training = replace(fit.training, epochs=max(epochs))
    project = PROJECTIONS[projection_for("auto", sets.train)]
    train(model, sets.train, training, fit.sampler, project, seed, progress=keep)
    for epoch in epochs:
        for averaged in (False, True):
            last = [weights for weights, _ in ends[:epoch]][-max(1, epoch // 2) if averaged else -1 :]
            mean = {name: torch.stack([one[name] for one in last]).mean(0) for name in last[0]}
            model.network.load_state_dict(mean)
            yield epoch, averaged, model, ends[epoch - 1][1]


def records(fit: Fit, group: str, sets: Sets, seed: int, epochs: list[int]) -> Iterator[dict[str, Any]]:
    """One record for each number of epochs, averaged or not, and temperature; the residual alone has temperature None."""
    prior = of.MixturePrior(ridge=fit.ridge).fit(sets.train, sets.labels)
    generator = torch.Generator(sets.train.device).manual_seed(1)
    samples = PROJECTIONS[projection_for("auto", sets.train)](prior.sample(2000, generator).to(sets.train.device))
    weights = sum(p.numel() for p in fit.network.build(sets.train.shape[1], seed).parameters())
    about = {"group": group, "fit": fit.name, "seed": seed, "weights": weights, "rows": len(sets.train)}
    alone = {"epoch": 0, "averaged": False, "seconds": 0.0, "temperature": None}
    yield about | alone | measured(sets, prior.energy) | {"geometry": geometry(sets, prior, samples)}
    for epoch, averaged, model, seconds in checkpoints(fit, sets, prior, seed, epochs):
        here = about | {"epoch": epoch, "averaged": averaged, "seconds": seconds}
        why = looked_at(sets, prior, model, samples)
        yield here | {"temperature": None} | measured(sets, model.residual) | why
        for temperature in TEMPERATURES:

            def score(z: Tensor, model: CorrectedEnergy = model, temperature: int = temperature) -> Tensor:
                return model.residual(z) + prior.energy(z) / temperature

            yield here | {"temperature": temperature} | measured(sets, score)


def chosen(found: list[dict[str, Any]], sign: str) -> dict[str, Any]:
    """The record that the sign likes best; of equal ones the first."""
    return max(found, key=lambda one: one["wrong"]) if sign == "wrong" else min(found, key=lambda one: one["stand-ins"])


def _cells(one: dict[str, Any]) -> list[str]:
    names = ("wrong", "stand-in near", "stand-in far", "mean", "near", "mid", "far", "auroc")
    return [f"{one[name]:.1f}" if name in one else "" for name in names]


HEADS = ["wrong ↑", "stand-in near ↓", "far ↓", "real mean ↓", "near", "mid", "far", "AUROC ↑"]


def tables(found: list[dict[str, Any]], sign: str) -> str:
    """Each setting as the sign chooses it, and the way of one fit."""
    lines: list[list[str]] = []
    ways: list[list[str]] = []
    for key in dict.fromkeys((one["group"], one["fit"], one["seed"]) for one in found):
        mine = [one for one in found if (one["group"], one["fit"], one["seed"]) == key]
        prior, sums = mine[0], [one for one in mine if one["temperature"] is not None]
        best = chosen(sums, sign)
        if not any(line[0] == "prior alone" and line[-1:] == _cells(prior)[-1:] for line in lines):
            lines.append(["prior alone", "", "", "", *_cells(prior)])
        how = f"{best['epoch']}{', averaged' if best['averaged'] else ''}"
        about = [f"{best['fit']}, {best['weights'] / 1e6:.2f} M", f"{best['seconds']:.0f}", how]
        lines.append([*about, str(best["temperature"]), *_cells(best)])
        for one in mine:
            if one["temperature"] is None and one["epoch"] and not one["averaged"]:
                together = [f"{value:+.2f}" for value in one["correlation"].values()]
                ways.append([one["fit"], str(one["epoch"]), f"{one['auroc of samples']:.1f}", *together, *_cells(one)])
    first = Table("", ["fit, weights", "seconds", "epochs", "T_G", *HEADS], lines).markdown()
    along = ["fit", "epoch", "AUROC of samples", "r energy", "r cosine", "r tiny", *HEADS]
    return f"Sums, as the sign '{sign}' chooses them\n\n{first}\n\nThe residual alone\n\n{Table('', along, ways).markdown()}"


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """How far above held-out rows the residual puts samples of the prior and real sets, as the first fit goes on."""
    from matplotlib import pyplot as plt

    first = found[0]["fit"]
    way = [one for one in found if one["fit"] == first and one["temperature"] is None and one["epoch"]]
    way = [one for one in way if not one["averaged"] and one["seed"] == 0]
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    names = [name for name in way[0]["mean residual"] if name.startswith(("real", "samples"))]
    for name in names:
        heights = [
            (one["mean residual"][name] - one["mean residual"]["held out"]) / one["spread of held out"] for one in way
        ]
        real = name.startswith("real")
        axes.plot(
            [one["epoch"] for one in way],
            heights,
            "o-" if real else "s--",
            color=None if real else "black",
            linewidth=1.5 if real else 2.5,
            markersize=4,
            label=name.removeprefix("real "),
        )
    axes.axhline(0, color="grey", linewidth=1)
    axes.set(xscale="log", xlabel="epochs", ylabel="residual above held-out ID, in its spreads")
    axes.set_xticks([one["epoch"] for one in way], [str(one["epoch"]) for one in way])
    axes.minorticks_off()
    axes.legend(fontsize=8, ncols=2)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--groups", nargs="*", default=["start", "size"], choices=list(GROUPS))
    parser.add_argument("--fits", nargs="*", help="names of fits of those groups; all if left out")
    parser.add_argument("--epochs", type=int, nargs="*", default=[1, 2, 5, 10, 20])
    parser.add_argument("--rows", type=int, help="fit on that many rows only")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sign", choices=["wrong", "stand-ins"], help="stand-ins for a folder, wrong for a pack")
    parser.add_argument("--out", type=Path, help="a JSON file for all records")
    parser.add_argument("--figure", type=Path, help="a picture of the way of the first fit")
    args = parser.parse_args()
    sets = sets_of(args.source, args.rows, resolve_device(args.device))
    found: list[dict[str, Any]] = []
    with torch.no_grad():
        for group in args.groups:
            for fit in GROUPS[group]:
                if not args.fits or fit.name in args.fits:
                    for seed in range(args.seeds):
                        found += records(fit, group, sets, seed, sorted(args.epochs))
                        if args.out:
                            args.out.write_text(json.dumps(found, indent=1))
    print(tables(found, args.sign or ("stand-ins" if args.source.is_dir() else "wrong")))
    if args.figure:
        draw(found, args.figure)
    places = [[name, *(f"{value:.3g}" for value in one.values())] for name, one in found[0]["geometry"].items()]
    print("\nWhere the sets lie\n")
    print(Table("", ["set", "prior energy", "cosine", "zeros", "tiny"], places).markdown())


if __name__ == "__main__":
    main()
