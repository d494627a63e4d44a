"""How well stand-ins choose, from the scores that scores.py wrote: the chosen detector beside every other, and rules compared.

    python benchmarks/choice.py scores/*.npz --out choice.json
    python benchmarks/choice.py scores/*-one.npz --rules

Real sets are looked at after the choice. With ``--rules`` ways to choose are compared on stand-ins alone: one kind is left out,
the choice is made by the others, and judged on that kind, made of other images (another seed), and on ID images that took no
part. No OOD image is looked at for that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import outfield as of
from outfield.benchmark.protocol import LEVELS, PROTOCOLS
from outfield.detectors.choosing import LIGHTEST, VOTES, _sums, _voted
from outfield.detectors.trials import KEPT, Terms, Trial, sides_of, tried, weighed
from outfield.files.atomic import write_bytes
from outfield.report.table import Table
from scores import held_out_index

COMPOSED = ("Mahalanobis", "CombOOD", "HEAT")
AT_ONCE = 1024
Row = dict[str, dict[str, float]]
"""fpr95 and auroc by set, in [0, 1]."""


class Rows:
    """Rows of a set as a stored detector knows them: by name, and perhaps only some."""

    def __init__(self, key: str, count: int, index: Tensor | None = None) -> None:
        self.key, self.count, self.index = key, count if index is None else len(index), index

    def __len__(self) -> int:
        return self.count


class Stored:
    """Gives scores that were computed before."""

    def __init__(self, scores: Mapping[str, np.ndarray], number: int) -> None:
        self.scores, self.number = scores, number

    def score(self, rows: Rows) -> Tensor:
        found = torch.from_numpy(self.scores[f"{self.number}|{rows.key}"])
        return found if rows.index is None else found[rows.index]


class Scores:
    """One file of scores.py."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.scores = {name: file[name] for name in file.files if name != "about"}
            self.about: dict[str, Any] = json.loads(str(file["about"]))
        self.names: list[str] = self.about["names"]
        self.sets = list(dict.fromkeys(name.partition("|")[2] for name in self.scores if "|" in name))
        self.protocol = PROTOCOLS[self.about.get("protocol") or self.about["net"].partition("-")[0]]
        self.total = len(self.scores["labels"])
        self.there = [
            i for i in range(len(self.names)) if all(f"{i}|real {name}" in self.scores for name in self.protocol.ood)
        ]
        self.candidates = [i for i in self.there if i < self.about["candidates"]]

    @property
    def title(self) -> str:
        return f"{self.about['net']}, views {self.about['views']}"

    @property
    def seeds(self) -> list[int]:
        return sorted({int(name[4]) for name in self.sets if name.startswith("made")})

    def kinds(self, seed: int) -> list[tuple[str, str]]:
        """Level and name of each kind of stand-in."""
        found = [name.split(" ", 2) for name in self.sets if name.startswith(f"made{seed} ")]
        return [(level, kind) for _, level, kind in found]

    def split(self, seed: int) -> tuple[Tensor, Tensor]:
        """Numbers of the ID test images that are judged, and of those that are held out."""
        held_out = held_out_index(self.total, seed)
        return torch.from_numpy(np.setdiff1d(np.arange(self.total), held_out)), torch.from_numpy(held_out)

    def rows(self, seed: int) -> dict[tuple[str, str], Any]:
        """Held-out rows and stand-ins, as ``choose`` has them; the judged ID rows and the real sets, too."""
        judged, held_out = self.split(seed)
        found = {("", ""): Rows("test", 0, held_out), ("id", ""): Rows("test", 0, judged)}
        for level, kind in self.kinds(seed):
            found[level, kind] = self.all(f"made{seed} {level} {kind}")
        return found | {("real", name): self.all(f"real {name}") for name in self.protocol.ood}

    def all(self, key: str) -> Rows:
        return Rows(key, len(self.scores[f"{self.there[0]}|{key}"]))

    def alone(self, number: int, seed: int = 0, kind: str = "real") -> Row:
        """One detector on the real sets."""
        judged, _ = self.split(seed)
        ids = self.scores[f"{number}|test"][judged.numpy()]
        scores = {name: self.scores[f"{number}|{kind} {name}"] for name in self.protocol.ood}
        return row(ids, scores)

    @cached_property
    def singles(self) -> dict[str, Row]:
        """Every detector that is made of no other."""
        return {self.names[i]: self.alone(i) for i in self.there if self.names[i] not in COMPOSED}

    @cached_property
    def composed(self) -> dict[str, Row]:
        return {self.names[i]: self.alone(i) for i in self.there if self.names[i] in COMPOSED}

    def on_stand_ins(self, number: int, level: str) -> float:
        """Mean FPR95 on the stand-ins of a level."""
        judged, _ = self.split(0)
        ids = self.scores[f"{number}|test"][judged.numpy()]
        made = [f"made0 {at} {kind}" for at, kind in self.kinds(0) if at == level]
        return float(np.mean([of.fpr95(ids, self.scores[f"{number}|{name}"]) for name in made]))


def row(ids: Any, scores: Mapping[str, Any]) -> Row:
    return {
        "fpr95": {name: of.fpr95(ids, found) for name, found in scores.items()},
        "auroc": {name: of.auroc(ids, found) for name, found in scores.items()},
    }


class Chosen:
    """What ``choose`` picks with one seed, and what became of it."""

    def __init__(self, scores: Scores, seed: int) -> None:
        self.scores = scores
        fitted: Any = [Stored(scores.scores, i) for i in scores.candidates]
        self.sides = sides_of(fitted, scores.rows(seed), 0)
        self.names = [scores.names[i] for i in scores.candidates]
        self.sums = [*_sums(len(self.names), 4)]
        by_stand_ins = [
            {key: rows for key, rows in side.items() if key[0] not in ("id", "real")} for side in self.sides
        ]
        self.trials: list[Trial] = tried(self.sums, self.names, by_stand_ins)
        self.order = sorted(range(len(self.sums)), key=lambda i: (self.trials[i].loss, len(self.sums[i])))
        self.weights = _voted([self.sums[i] for i in self.order], len(self.names))

    @property
    def members(self) -> dict[str, float]:
        found = {name: weight for name, weight in zip(self.names, self.weights, strict=True) if weight}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def row(self) -> Row:
        """The weighted sum, members calibrated on the first half of the held-out rows as Fused does it."""
        counts = torch.tensor(self.weights, dtype=torch.float64)
        found = {
            key: (rows @ counts).float().numpy() for key, rows in self.sides[0].items() if key[0] in ("id", "real")
        }
        return row(found["id", ""], {name: scores for (level, name), scores in found.items() if level == "real"})

    def best_possible(self) -> tuple[float, tuple[str, ...]]:
        """The lowest mean FPR95 on the real sets that any sum has, and its members."""
        sets = [key for key in self.sides[0] if key[0] == "real"]
        means = [shares(self.sides[0], sets, self.sums, [0.95])[:, :, 0].mean(1)]
        at = int(torch.cat(means).argmin())
        return float(means[0][at]), tuple(self.names[i] for i in self.sums[at])


def shares(terms: Terms, sets: Sequence[Any], sums: Sequence[tuple[int, ...]], kept: Sequence[float]) -> Tensor:
    """The share of each set's rows that sums accept where so many of the judged ID rows are (sums, sets, kept)."""
    found, ids = [], terms["id", ""].float()
    for start in range(0, len(sums), AT_ONCE):
        some = sums[start : start + AT_ONCE]
        weights = torch.zeros(ids.shape[1], len(some))
        for column, chosen in enumerate(some):
            weights[list(chosen), column] = 1.0
        found.append(accepted(ids, [terms[key].float() for key in sets], weights, kept))
    return torch.cat(found)


def accepted(ids: Tensor, sets: Sequence[Tensor], weights: Tensor, kept: Sequence[float]) -> Tensor:
    """The same for weighted sums, the columns of the weights (M, S)."""
    ordered = (ids @ weights).T.contiguous().sort(dim=1).values
    limits = [ordered[:, int(np.ceil(share * len(ids))) - 1] for share in kept]
    return torch.stack(
        [torch.stack([(rows @ weights <= limit).float().mean(0) for limit in limits], 1) for rows in sets], 1
    )


def mean(found: Row, metric: str = "fpr95", names: Sequence[str] = ()) -> float:
    return float(np.mean([found[metric][name] for name in names or found[metric]]))


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    first, second = (np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


def ranks(scores: Scores) -> dict[str, float]:
    """Spearman's correlation, over single detectors, of FPR95 on stand-ins with FPR95 on the real sets."""
    protocol, singles = scores.protocol, scores.singles
    numbers = [i for i in scores.there if scores.names[i] in singles]
    real = {"near": (*protocol.near, *protocol.mid), "far": protocol.far}
    return {
        level: spearman(
            [scores.on_stand_ins(i, level) for i in numbers],
            [mean(singles[scores.names[i]], "fpr95", sets) for i in numbers],
        )
        for level, sets in real.items()
    }


def studied(scores: Scores) -> dict[str, Any]:
    """Everything that is told of one file."""
    chosen = {seed: Chosen(scores, seed) for seed in scores.seeds}
    first = chosen[0]
    best, members = first.best_possible()
    return {
        "net": scores.about["net"],
        "views": scores.about["views"],
        "accuracy": float((scores.scores["labels"] == scores.scores["guess"]).mean()),
        "auto": {seed: {**one.row, "members": one.members} for seed, one in chosen.items()},
        "loss": {seed: loss_of(one) for seed, one in chosen.items()},
        "best possible": {"fpr95": best, "members": members},
        "sums": len(first.sums),
        "spearman": ranks(scores),
        "singles": scores.singles,
        "composed": scores.composed,
    }


def loss_of(chosen: Chosen) -> float:
    """What the weighted sum is chosen by; views are compared by it."""
    members = [i for i, weight in enumerate(chosen.weights) if weight]
    sides = [{key: rows for key, rows in side.items() if key[0] not in ("id", "real")} for side in chosen.sides]
    return weighed(members, [chosen.weights[i] for i in members], chosen.names, sides).loss


def show(found: Sequence[Mapping[str, Any]]) -> None:
    """Two tables: the chosen detector beside the best others, and how well stand-ins chose."""
    header = ["", *(f"{level} OOD" for level in LEVELS), "average"]
    for one in found:
        protocol = PROTOCOLS[one["net"].partition("-")[0]]
        singles = sorted(one["singles"], key=lambda name: mean(one["singles"][name]))[:4]
        rows = {"Auto": one["auto"][0], **{name: one["singles"][name] for name in singles}, **one["composed"]}
        cells = [
            [name, *(pair(found, protocol.levels[level]) for level in LEVELS), pair(found)]
            for name, found in rows.items()
        ]
        title = f"{one['net']} ({100 * one['accuracy']:.1f} % right), views {one['views']}: FPR95 / AUROC"
        print(f"\n{Table(title, header, cells).markdown()}\n{title}")
        print(", ".join(f"{weight:.2f} {name}" for name, weight in one["auto"][0]["members"].items()))
    columns = ["", "Auto", "± seeds", "best single", "best sum", "regret", "Spearman near, mid", "far", "loss"]
    cells = [told(one) for one in found]
    print(f"\n{Table('How well stand-ins chose', columns, cells).markdown()}")


def pair(found: Row, names: Sequence[str] = ()) -> str:
    return f"{100 * mean(found, 'fpr95', names):.1f} / {100 * mean(found, 'auroc', names):.1f}"


def told(one: Mapping[str, Any]) -> list[str]:
    means = [100 * mean(auto) for auto in one["auto"].values()]
    spread = f"{np.std(means, ddof=1):.2f}" if len(means) > 1 else ""
    best = min(one["singles"], key=lambda name: mean(one["singles"][name]))
    possible = 100 * one["best possible"]["fpr95"]
    return [
        f"{one['net']}, {one['views']}",
        pair(one["auto"][0]),
        spread,
        f"{best} {pair(one['singles'][best])}",
        f"{possible:.1f}",
        f"{means[0] - possible:.1f}",
        *(f"{one['spearman'][level]:.2f}" for level in ("near", "far")),
        f"{100 * one['loss'][0]:.1f}",
    ]


RULES: dict[str, tuple[bool, Sequence[float], int, float]] = {
    "the best sum, one half, FPR95": (False, (0.95,), 1, 0.0),
    "the best sum, both halves, FPR95": (True, (0.95,), 1, 0.0),
    "the best sum, both halves, 90 to 97 %": (True, KEPT, 1, 0.0),
    "10 sums vote, one half, FPR95": (False, (0.95,), 10, 0.0),
    "10 sums vote": (True, KEPT, 10, 0.0),
    "20 sums vote": (True, KEPT, 20, 0.0),
    "50 sums vote": (True, KEPT, 50, 0.0),
    "100 sums vote": (True, KEPT, VOTES, 0.0),
    "100 sums vote, light members left out": (True, KEPT, VOTES, LIGHTEST),
    "100 sums vote, more members left out": (True, KEPT, VOTES, 0.3),
    "200 sums vote, light members left out": (True, KEPT, 200, LIGHTEST),
}
"""Both halves of the held-out rows or one, shares of ID rows kept, how many sums vote, and the lightest member."""


def compare_rules(files: Sequence[Scores]) -> None:
    """Leave one kind of stand-in out, choose by the others, and judge on it: mean over kinds, seeds and files."""
    found: dict[str, list[float]] = {name: [] for name in RULES}
    sizes: dict[str, list[int]] = {name: [] for name in RULES}
    for scores in files:
        for seed in scores.seeds:
            for name, (level_means, members) in left_out(scores, seed).items():
                found[name].append(level_means)
                sizes[name] += members
    cells = [
        [name, f"{100 * np.mean(values):.2f}", f"{np.mean(sizes[name]):.1f}"]
        for name, values in sorted(found.items(), key=lambda item: np.mean(item[1]))
    ]
    print(Table("Rules", ["rule", "FPR95 on the kind left out", "members"], cells).markdown())


def left_out(scores: Scores, seed: int) -> dict[str, tuple[float, list[int]]]:
    """By rule the mean FPR95 on kinds that were left out, near and far counted equally, and how many members there were."""
    another = scores.seeds[(scores.seeds.index(seed) + 1) % len(scores.seeds)]
    kinds = scores.kinds(seed)
    fitted: Any = [Stored(scores.scores, i) for i in scores.candidates]
    rows: Any = scores.rows(seed)
    rows |= {("fresh", kind): scores.all(f"made{another} {level} {kind}") for level, kind in kinds}
    sides = sides_of(fitted, rows, 0)
    sums = [*_sums(len(fitted), 4)]
    halves = [shares({**side, ("id", ""): side["", ""]}, kinds, sums, KEPT) for side in sides]
    found = {}
    for name, (both, kept, votes, lightest) in RULES.items():
        at = [KEPT.index(share) for share in kept]
        losses = (torch.stack(halves).mean(0) if both else halves[0])[:, :, at].mean(2)
        judged: dict[str, list[float]] = {"near": [], "far": []}
        members = []
        for number, (level, kind) in enumerate(kinds):
            others = [i for i in range(len(kinds)) if i != number]
            loss = sum(losses[:, [i for i in others if kinds[i][0] == at]].mean(1) for at in ("near", "far"))
            assert isinstance(loss, Tensor)
            weights = torch.zeros(len(fitted))
            for i in loss.argsort()[:votes].tolist():
                weights[list(sums[i])] += 1
            weights[weights < lightest * weights.max()] = 0
            members.append(int((weights > 0).sum()))
            rows_of_kind = [sides[0]["fresh", kind].float()]
            share = accepted(sides[0]["id", ""].float(), rows_of_kind, weights[:, None], (0.95,))
            judged[level].append(float(share))
        found[name] = (float(np.mean(judged["near"]) + np.mean(judged["far"])) / 2, members)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--rules", action="store_true", help="only compare ways to choose, on stand-ins alone")
    parser.add_argument("--out", type=Path, help="where all figures go (.json)")
    options = parser.parse_args()
    files = [Scores(path) for path in options.files]
    if options.rules:
        compare_rules(files)
        return
    found = [studied(one) for one in files]
    show(found)
    if options.out is not None:
        write_bytes(options.out, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
