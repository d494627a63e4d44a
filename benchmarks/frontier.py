"""What luck, choice and the network each bring: single detectors, the default, other rules of combination, and an oracle.

    python benchmarks/choice.py extract cifar10 --data FOLDER --backbone cifar10-0.safetensors --out features/cifar10-0
    python benchmarks/frontier.py run cifar10 features/cifar10-0 features/cifar10-1 --out docs/results/frontier/cifar10.json
    python benchmarks/frontier.py page docs/results/frontier.md

Every rule sees what the default sees: half of the held-out rows, stand-ins, and the same candidates, calibrated on these rows.
The oracles see one half of the real OOD sets and of the ID test rows, and are judged on the other: no honest rule can count on
what they have, but no sum of these detectors on this network has much more.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import outfield as of
from choice import every_detector, fitted_of, sets_of
from outfield.benchmark import LEVELS, PROTOCOLS
from outfield.benchmark.sets import STAND_IN
from outfield.detectors import Calibration, names_of
from outfield.detectors.combined.choice import default_candidates, folded
from outfield.detectors.combined.fused import Calibrations, halves
from outfield.detectors.combined.weights import Kind, Terms, weight_path
from outfield.files import write_bytes
from outfield.images import KINDS
from outfield.partners import StandIns
from outfield.report import Table
from photos_page import best_of, fill

L2, MOST = 0.01, 8
DEFAULT, BEST, ORACLE, EACH = "**Auto**", "the best single row", "oracle: one sum", "oracle: one sum for each level"
Rule = Callable[[Tensor], Tensor]
Figures = dict[str, list[float]]
"""FPR95 and AUROC by OOD set."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="figures of each network's features")
    run.add_argument("protocol", choices=sorted(PROTOCOLS))
    run.add_argument("features", type=Path, nargs="+")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--device", default="auto")
    page = commands.add_parser("page", help="fill the tables of the page from the figures in the folder beside it")
    page.add_argument("page", type=Path)
    options = parser.parse_args()
    if options.command == "page":
        fill(options.page, Frontier(options.page.with_suffix("")))  # type: ignore[arg-type]
        return
    protocol = PROTOCOLS[options.protocol]
    found: dict[str, Any] = {}
    for path in options.features:
        found[path.name] = studied(path, protocol, options.device)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(options.out, (json.dumps(found) + "\n").encode())
    for row in Frontier.rows_of(protocol, found, singles=60):
        print(" | ".join(row))


def studied(path: Path, protocol: of.Protocol, device: str) -> dict[str, dict[str, Figures]]:
    """Figures of single rows and of rules on one network's features."""
    sets = sets_of(path, protocol)
    train, held_out, test = sets["train"], sets["held_out"], sets["test"]
    kinds = {name.removeprefix(STAND_IN): rows for name, rows in sets.items() if name.startswith(STAND_IN)}
    made = StandIns(kinds, {name: KINDS[name].level for name in kinds}) if kinds else of.feature_stand_ins(held_out)
    real = {name: sets[name] for name in protocol.ood if name in sets}
    choice = of.choose(train, held_out, made, device=device)
    fitted = fitted_of(default_candidates(train), train, device)
    chooses = halves(len(held_out), 0)[0]
    own = torch.stack([one.score(held_out).double() for one in fitted], 1)[chooses]
    rows: dict[Kind, FeatureRows] = {(made.levels[name], name): one for name, one in made.items()}
    terms = folded(own, {kind: _scores(fitted, one) for kind, one in rows.items()})
    calibrations = Calibrations([Calibration.of(column) for column in own.unbind(1)])
    judged = {name: calibrations.surprise(_scores(fitted, one)) for name, one in {"": test, **real}.items()}
    names = names_of(fitted)
    members = torch.tensor([name in choice.weights for name in names])
    rules = rules_of(terms, members).items()
    found = {name: _figures({key: rule(one) for key, one in judged.items()}) for name, rule in rules}
    found[DEFAULT] = _figures({key: choice.detector.score(one) for key, one in {"": test, **real}.items()})
    found |= oracles(judged, protocol)
    singles = {name: _figures({key: one[:, i] for key, one in judged.items()}) for i, name in enumerate(names)}
    for one in every_detector(train)[len(default_candidates(train)) :]:
        for other in fitted_of([one], train, device):
            scored = {key: other.score(rows) for key, rows in {"": test, **real}.items()}
            singles[names_of([other])[0]] = _figures(scored)
    print(f"{path.name}: {len(singles)} single rows, {choice.weights}", flush=True)
    return {"rules": found, "singles": singles}


FeatureRows = of.FeatureSet


def _scores(fitted: Sequence[of.Detector], rows: FeatureRows) -> Tensor:
    return torch.stack([one.score(rows).double() for one in fitted], 1)


def _figures(scores: Mapping[str, Tensor]) -> Figures:
    pairs = {name: of.Separation(scores[""], one) for name, one in scores.items() if name}
    return {name: [round(pair.fpr95(), 5), round(pair.auroc(), 5)] for name, pair in pairs.items()}


def rules_of(terms: Terms, members: Tensor) -> dict[str, Rule]:
    """Ways to make one score of terms (n, M), by what each does; ``members`` (M,), bool, are the default's."""
    by = {
        level: Terms(terms.ids, {kind: one for kind, one in terms.others.items() if kind[0] == level})
        for level in ("near", "far")
    }
    two = [_sum_of(part) for part in by.values() if part.others]
    joined = [(weights, Calibration.of(terms.ids @ weights)) for weights in two]

    def both(rows: Tensor) -> Tensor:
        return torch.stack([calibration.surprise(rows @ weights) for weights, calibration in joined], 1)

    few = members.nonzero().flatten()
    return {
        "equal sum of Auto's members": lambda rows: rows[:, few].sum(1),
        "maximum of Auto's members": lambda rows: rows[:, few].amax(1),
        "log-sum-exp of Auto's members": lambda rows: rows[:, few].logsumexp(1),
        "squares of Auto's members": lambda rows: rows[:, few].clamp_min(0).square().sum(1),
        "a sum for near, one for far; their sum": lambda rows: both(rows).sum(1),
        "a sum for near, one for far; the larger": lambda rows: both(rows).amax(1),
        "logistic, weights of either sign": logistic(terms),
        "boosted trees, monotone": trees(terms),
    }


def _sum_of(terms: Terms) -> Tensor:
    path = weight_path(terms, L2, MOST)
    return path[max(path)]


def _labelled(terms: Terms) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, whether they are stand-ins, and weights: of ID rows half, of near and far a quarter each, of kinds the same."""
    levels = [level for level, _ in terms.others]
    rows, is_ood, counts = [terms.ids], [np.zeros(len(terms.ids))], [np.full(len(terms.ids), 0.5 / len(terms.ids))]
    for (level, _), one in terms.others.items():
        rows.append(one)
        is_ood.append(np.ones(len(one)))
        counts.append(np.full(len(one), 0.5 / len({*levels}) / levels.count(level) / len(one)))
    weights = np.concatenate(counts)
    return torch.cat(rows).numpy(), np.concatenate(is_ood), weights * len(weights)


def logistic(terms: Terms) -> Rule:
    from sklearn.linear_model import LogisticRegression

    rows, is_ood, weights = _labelled(terms)
    model = LogisticRegression(C=1 / (L2 * len(rows)), max_iter=1000).fit(rows, is_ood, sample_weight=weights)
    return lambda given: torch.from_numpy(model.decision_function(given.numpy()))


def trees(terms: Terms) -> Rule:
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows, is_ood, weights = _labelled(terms)
    model = HistGradientBoostingClassifier(
        learning_rate=0.05, max_leaf_nodes=8, l2_regularization=1.0, monotonic_cst=[1] * rows.shape[1], random_state=0
    ).fit(rows, is_ood, sample_weight=weights)
    return lambda given: torch.from_numpy(model.decision_function(given.numpy()))


def oracles(judged: Mapping[str, Tensor], protocol: of.Protocol) -> dict[str, Figures]:
    """Sums whose weights were fitted on half of the real rows, judged on the other half, and the other way round."""
    order = {name: torch.randperm(len(one), generator=torch.Generator().manual_seed(0)) for name, one in judged.items()}
    sides = [{name: one[order[name][side::2]] for name, one in judged.items()} for side in (0, 1)]
    found: dict[str, list[Figures]] = {ORACLE: [], EACH: []}
    for seen, unseen in (sides, sides[::-1]):
        whole = fitted_to(seen, [name for name in seen if name])
        found[ORACLE].append(_figures({name: one @ whole for name, one in unseen.items()}))
        each: Figures = {}
        for level in LEVELS:
            names = [name for name in protocol.levels[level] if name in seen]
            weights = fitted_to(seen, names)
            each |= _figures({name: unseen[name] @ weights for name in ("", *names)})
        found[EACH].append(each)
    return {
        rule: {name: np.mean([one[name] for one in both], axis=0).round(5).tolist() for name in both[0]}
        for rule, both in found.items()
    }


def fitted_to(rows: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Weights of every candidate that tell these sets from ID rows, each set counting the same."""
    return _sum_of(Terms(rows[""], {("near", name): rows[name] for name in names}))


class Frontier:
    """The page's tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables = {"rules": self.rules}

    def rules(self, which: str) -> Table:
        """Single rows, rules and oracles of a protocol, the mean over networks."""
        found = json.loads((self.folder / f"{which}.json").read_text())
        rows = self.rows_of(PROTOCOLS[which], found)
        honest = [row for row in rows if "oracle" not in row[0] and row[0] != BEST]
        chosen = {(rows.index(honest[at]), column, place) for at, column, place in best_of(honest)}
        return Table("", ["rule", *(f"{level} OOD" for level in LEVELS), "mean"], rows, best=frozenset(chosen))

    @staticmethod
    def rows_of(protocol: of.Protocol, found: Mapping[str, Any], singles: int = 12) -> list[list[str]]:
        """Cells: the default, other rules, oracles, then single rows, the lowest mean FPR95 first."""
        parts = [*found.values()]

        def mean(of_what: str, name: str, sets: Sequence[str], metric: int) -> float:
            values = [part[of_what][name][one][metric] for part in parts for one in sets if one in part[of_what][name]]
            return 100 * float(np.mean(values))

        def cells(of_what: str, name: str) -> list[str]:
            columns = [*(protocol.levels[level] for level in LEVELS), protocol.ood]
            return [" / ".join(f"{mean(of_what, name, sets, metric):.1f}" for metric in (0, 1)) for sets in columns]

        rules = [name for name in parts[0]["rules"] if name not in (DEFAULT, ORACLE, EACH)]
        alone = [name for name in parts[0]["singles"] if all(name in part["singles"] for part in parts)]
        alone.sort(key=lambda name: mean("singles", name, protocol.ood, 0))
        best = [
            [f"{choose(float(cells('singles', name)[column].split(' / ')[place]) for name in alone):.1f}"
             for place, choose in enumerate((min, max))]
            for column in range(len(LEVELS) + 1)
        ]  # fmt: skip
        return [
            *([name, *cells("rules", name)] for name in (DEFAULT, *rules)),
            [BEST + ", of each column another", *(" / ".join(pair) for pair in best)],
            *([name, *cells("rules", name)] for name in (ORACLE, EACH)),
            *([name, *cells("singles", name)] for name in alone[:singles]),
        ]


if __name__ == "__main__":
    main()
