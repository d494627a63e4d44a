"""What guards decide, on feature packs: accepted answers beside MSP's own threshold, shares kept by class; promises simulated.

    python benchmarks/decide.py PACK.npz … --splits 200 --out docs/results/decisions     # a minute each
    python benchmarks/decide.py --simulate 2000                                             # the promises alone, made-up scores

A pack is as packs.py reads it. Of its test rows half are held out, a third of which choose and order while the rest tests, as in
a guard; the others are judged. Detectors are fitted once. Nothing is chosen by an OOD row.
"""

from __future__ import annotations

import argparse
import collections
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import outfield as of
from outfield.benchmark.result import RiskCurves, risk_curves
from outfield.errors import TooFewSamplesError
from outfield.guard.decision import RANKERS, best_ranking
from outfield.report import Table, write_risks
from outfield.scores import Acceptance, ClassThresholds, RiskCoverage, discovery_limit, share_interval
from packs import load

ACCURACIES, KEEP, RATE, DELTA = (0.9, 0.95), 0.95, 0.1, 0.05
Rng = np.random.Generator
MSP = 0
"""Its place among the rankers."""


@dataclass(frozen=True)
class Pack:
    """Scores on the ID test set ("") and on OOD sets: the guard's detector, each ranker, and the classes."""

    detector: dict[str, np.ndarray]
    rankers: list[dict[str, np.ndarray]]
    classes: dict[str, np.ndarray]
    wrong: np.ndarray
    counts: np.ndarray
    levels: np.ndarray


def read(path: Path, name: str) -> Pack:
    """A pack, with everything fitted on its training rows."""
    train, test, ood = load(path)
    sets, detector = {"": test, **ood}, of.DETECTORS[name]().fit(train)

    def scores(one: of.Detector) -> dict[str, np.ndarray]:
        return {key: one.score(rows).double().numpy() for key, rows in sets.items()}

    rankers = [scores(of.DETECTORS[kind](**settings).fit(train)) for kind, settings, _ in RANKERS]
    if train.logits is None or test.labels is None:
        raise SystemExit(f"{path} has no train_logits or no test_labels")
    classes = {key: rows.tensors()["logits"].argmax(1).numpy() for key, rows in {**sets, "train": train}.items()}
    own, count = detector.score(train).double().numpy(), train.logits.shape[1]
    counts = np.bincount(classes["train"], minlength=count)
    levels = np.bincount(classes["train"], own, minlength=count) / np.maximum(counts, 1)
    return Pack(scores(detector), rankers, classes, classes[""] != test.labels.numpy(), counts, levels)


def ranked(pack: Pack, known: of.Threshold, place: int, key: str) -> np.ndarray:
    """Scores of a ranker, with the p-value where it takes part; +inf for what is OOD."""
    scores, own = pack.rankers[place][key], pack.detector[key]
    scores = scores - np.log(known.p_value(own).numpy()) if RANKERS[place][2] else scores
    return np.where(known.is_ood(own), np.inf, scores)


def limit(scores: np.ndarray, wrong: np.ndarray, first: np.ndarray, tests: np.ndarray, accuracy: float) -> float | None:
    """The limit that is promised, None where there is none."""
    try:
        return Acceptance.fit(scores[tests], wrong[tests], scores[first], wrong[first], accuracy).limit
    except TooFewSamplesError:
        return None


def splits(count: int, draws: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rows that choose, that test, and that are judged."""
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(count)
        yield order[: count // 6], order[count // 6 : count // 2], order[count // 2 :]


def accepted(pack: Pack, draws: int) -> tuple[dict[str, Any], dict[str, RiskCurves]]:
    """Shares by rule and accuracy, means over splits, and the curves of the first split."""
    found: dict[str, list[float]] = collections.defaultdict(list)
    chosen: collections.Counter[str] = collections.Counter()
    others, curves = [key for key in pack.detector if key], dict[str, RiskCurves]()
    for first, tests, judged in splits(len(pack.wrong), draws):
        known = of.Threshold.fit(pack.detector[""][first], KEEP)
        inside = first[~known.is_ood(pack.detector[""][first]).numpy()]
        rankings = [ranked(pack, known, place, "")[inside] for place in range(len(RANKERS))]
        best = best_ranking(rankings, torch.from_numpy(pack.wrong[inside]))
        kind, settings, by_p = RANKERS[best]
        chosen[f"{kind}{'/' + settings['second'] if settings else ''}{' and p-value' * by_p}"] += 1
        rules: dict[str, Callable[[str], np.ndarray]] = {
            "ours": partial(ranked, pack, known, best),
            "MSP": pack.rankers[MSP].__getitem__,
        }
        both: dict[str, RiskCoverage] = {}
        for name, rule in rules.items():
            scores = rule("")
            pair = risk_curves(scores[judged], pack.wrong[judged], {key: rule(key) for key in others})
            both[name] = pair[1]  # type: ignore[assignment]
            for key in others:
                alone = risk_curves(scores[judged], pack.wrong[judged], {key: rule(key)})[1]
                found[f"alone {name}"].append(coverage(alone, 0.01))  # type: ignore[arg-type]
            curves.setdefault({"ours": "Guard"}.get(name, name), pair)
            for accuracy in ACCURACIES:
                top = limit(scores, pack.wrong, first, tests, accuracy)
                taken = np.zeros(len(judged), bool) if top is None else scores[judged] <= top
                found[f"{name} {accuracy} promised"].append(top is not None)
                found[f"{name} {accuracy} accepted"].append(taken.mean())
                found[f"{name} {accuracy} right"].append(
                    1 - pack.wrong[judged][taken].mean() if taken.any() else np.nan
                )
                caught = [float(np.mean(rule(key) <= (-np.inf if top is None else top))) for key in others]
                found[f"{name} {accuracy} OOD accepted"].append(float(np.mean(caught)))
        own = RiskCoverage(pack.rankers[MSP][""][judged], pack.wrong[judged])
        for accuracy in (0.99, *ACCURACIES):  # MSP's limit at which this share of ID answers is right, known afterwards
            top = (
                own.limits[np.flatnonzero(own.risk <= 1 - accuracy + 1e-12)[-1]]
                if own.coverage_at(1 - accuracy)
                else -np.inf
            )
            place = np.searchsorted(both["MSP"].limits, top, side="right") - 1
            if place >= 0 and own.risk[-1] > 1 - accuracy:  # else MSP accepts everything
                found[f"matched {accuracy} MSP"].append(float(both["MSP"].coverage[place]))
                found[f"matched {accuracy} ours"].append(coverage(both["ours"], float(both["MSP"].risk[place])))
                found[f"matched {accuracy} right"].append(1 - float(both["MSP"].risk[place]))
        for accuracy in (0.99, 0.95, 0.9, 0.8):
            for name in rules:
                found[f"mixture {accuracy} {name}"].append(coverage(both[name], 1 - accuracy))
    means = {name: float(np.nanmean(values)) for name, values in found.items()}
    ratios = {
        f"ratio {name.split()[1]}": [float(np.sum(found[name]) / np.sum(found[name.replace("ours", "MSP")])),
        *np.quantile(np.array(found[name]) / np.array(found[name.replace("ours", "MSP")]), [0.05, 0.95]).tolist()]
        for name in found if name.startswith("matched") and name.endswith("ours")
    }  # fmt: skip
    return {**means, **ratios, "chosen": dict(chosen.most_common())}, curves


def coverage(curve: RiskCoverage, risk: float) -> float:
    """The largest share accepted with no larger risk, without inputs that are OOD."""
    good = np.flatnonzero((curve.risk <= risk + 1e-12) & np.isfinite(curve.limits))
    return float(curve.coverage[good[-1]]) if len(good) else 0.0


def kept(pack: Pack, draws: int) -> dict[str, list[float]]:
    """Minimum, 5 % quantile and median over classes of the share kept, the share of all, and OOD inputs caught, by threshold."""
    classes, count = pack.classes[""], len(pack.counts)
    sums = {name: np.zeros(count) for name in ("global", "per class")}
    caught: dict[str, list[float]] = {name: [] for name in sums}
    seen, own, rng = np.zeros(count), pack.detector[""], np.random.default_rng(0)
    for first, tests, judged in splits(len(own), draws):
        held = np.r_[first, tests]
        whole = of.Threshold.fit(own[held], KEEP)
        each = ClassThresholds.fit(own[held], classes[held], pack.counts, KEEP, pack.levels)
        rules: dict[str, Callable[..., torch.Tensor]] = {
            "global": lambda s, c, t=whole: t.is_ood(s),
            "per class": each.is_ood,
        }
        seen += np.bincount(classes[judged], minlength=count)
        for name, rule in rules.items():
            sums[name] += np.bincount(classes[judged], ~rule(own[judged], classes[judged]).numpy(), minlength=count)
            others = [rule(pack.detector[key], pack.classes[key]).double().mean() for key in pack.detector if key]
            caught[name].append(float(np.mean(others)))
    rows = np.maximum(np.bincount(classes, minlength=count), 1)
    found = {
        name: [*np.quantile(own / seen, [0, 0.05, 0.5]), own.sum() / seen.sum(), np.mean(caught[name])]
        for name, own in sums.items()
    }
    noise = rng.binomial(rows, KEEP, (1000, count)) / rows
    found["if every class kept 95 %"] = [
        noise.min(1).mean(),
        np.quantile(noise, 0.05, axis=1).mean(),
        KEEP,
        KEEP,
        np.nan,
    ]
    return {name: [float(one) for one in values] for name, values in found.items()}


def draw(rng: Rng, count: int, classes: int, ties: bool = False) -> tuple[np.ndarray, ...]:
    """Made-up rows: OOD score, doubt, predicted class, whether that is wrong; rare classes are so more often, and score more."""
    shares = 1 / (1 + np.arange(classes))
    index = rng.choice(classes, size=count, p=shares / shares.sum())
    doubt = rng.beta(1, 3, size=count)
    chance = np.clip(2.5 * doubt**2 + 0.1 * index / classes, 0, 1) * (1 - 1 / classes)
    score = rng.standard_normal(count) * (1 + index / classes) + 2 * doubt + index / classes
    wrong = rng.uniform(size=count) < chance
    return (score.round() if ties else score), (doubt.round(1) if ties else doubt), index, wrong


def simulate(draws: int) -> list[list[str]]:
    """How often each promise is broken, with the 95 % binomial interval (of false discoveries: of the mean)."""
    rows: list[list[str]] = []
    for classes, count, by_class, ties in (
        (2, 150, False, False), (10, 150, False, False), (10, 600, True, False), (10, 600, True, True),
        (1000, 150, False, False), (1000, 2000, True, False),
    ):  # fmt: skip
        rng = np.random.default_rng([classes, count])
        whole, broken, promised = draw(rng, 100_000, classes, ties), 0, 0
        counts = np.bincount(draw(rng, 5000, classes)[2], minlength=classes)
        for _ in range(draws):
            first, tests = draw(rng, count // 3, classes, ties), draw(rng, 2 * count // 3, classes, ties)
            known: Any = of.Threshold.fit(first[0], KEEP)
            if by_class:
                known = ClassThresholds.fit(first[0], first[2], counts, KEEP, np.arange(classes))
            parts = []
            for score, doubt, index, _wrong in (first, tests, whole):
                given = (score, index) if by_class else (score,)
                parts.append(
                    (doubt, np.log(doubt + 1e-9) - np.log(known.p_value(*given).numpy()), known.is_ood(*given).numpy())
                )
            inside = ~parts[0][2]
            best = int(np.argmin([of.aurc(one[inside], first[3][inside]) for one in parts[0][:2]]))
            values = [np.where(ood, np.inf, both[best]) for *both, ood in parts]
            try:
                rule = Acceptance.fit(values[1], tests[3], values[0], first[3], 0.9)
            except TooFewSamplesError:
                continue
            promised += 1
            broken += bool(whole[3][values[2] <= rule.limit].mean() > 0.1)
        what = f"90 % right, {classes:,} classes, {count:,} rows{', per class' * by_class}{', ties' * ties}"
        rows.append([what, f"{promised:,}", told(broken, draws), "5.0"])
    for ties in (False, True):
        rng, low, seen = np.random.default_rng(1), np.zeros(12), np.zeros(12)
        counts = np.bincount(draw(rng, 5000, 12)[2], minlength=12)
        for _ in range(draws):
            held, new = draw(rng, 300, 12, ties), draw(rng, 200, 12, ties)
            each = ClassThresholds.fit(held[0], held[2], counts, KEEP, np.arange(12))
            pools = each.pool_of.numpy()[new[2]]
            seen += np.bincount(pools, minlength=12)
            low += np.bincount(pools, each.p_value(new[0], new[2]).numpy() <= 1 - KEEP, minlength=12)
        worst = int(np.argmax(low / np.maximum(seen, 1)))
        what = f"p ≤ 0.05 among ID rows, the worst of {np.count_nonzero(seen)} pools of 12 classes{', ties' * ties}"
        rows.append([what, f"{draws:,}", told(int(low[worst]), int(seen[worst])), "5.0"])
    for by_class, ties in ((False, False), (True, False), (True, True)):
        rng, shares = np.random.default_rng(2), []
        counts = np.bincount(draw(rng, 5000, 4)[2], minlength=4)
        for _ in range(draws):
            held, new = draw(rng, 500, 4, ties), draw(rng, 150, 4, ties)
            is_ood = rng.uniform(size=150) < 0.5
            scores = new[0] + 8 * is_ood
            if by_class:
                p = ClassThresholds.fit(held[0], held[2], counts, KEEP).p_value(scores, new[2]).numpy()
            else:
                p = of.Threshold.fit(held[0]).p_value(scores).numpy()
            found = p <= discovery_limit(p, RATE)
            shares.append(float((found & ~is_ood).sum() / max(1, found.sum())))
        mean, error = float(np.mean(shares)), 1.96 * float(np.std(shares)) / np.sqrt(draws)
        what = f"ID among discoveries at 0.1, half of the batch OOD{', per class' * by_class}{', ties' * ties}"
        rows.append(
            [what, f"{draws:,}", f"{100 * mean:.1f} ({100 * (mean - error):.1f} – {100 * (mean + error):.1f})", "10.0"]
        )
    return rows


def told(count: int, total: int) -> str:
    low, high = share_interval(count, total)
    return f"{100 * count / total:.1f} ({100 * low:.1f} – {100 * high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", nargs="*", type=Path)
    parser.add_argument("--detector", default="SSD")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--simulate", type=int, default=0, help="draws of each simulation")
    parser.add_argument(
        "--out", type=Path, help="folder for decisions.json, simulated.json and a picture of the first pack"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"detector": args.detector, "splits": args.splits, "packs": {}}
    for path in args.packs:
        pack = read(path, args.detector)
        found, curves = accepted(pack, args.splits)
        shares = kept(pack, args.splits)
        record["packs"][path.stem] = {"accepted": found, "kept": shares}
        print(f"\n## {path.stem}: chosen {found['chosen']}\n")
        asked = ("promised", "accepted", "right", "OOD accepted")
        promise = [
            [f"{100 * a:g} %", who, *(f"{100 * found[f'{name} {a} {what}']:.1f}" for what in asked)]
            for a in ACCURACIES for name, who in (("ours", "guard"), ("MSP", "MSP's own"))
        ]  # fmt: skip
        header = ["accuracy", "rule", "splits with a promise", "ID accepted", "of these right", "OOD accepted"]
        print(Table("", header, promise, 2).markdown())
        matched = [
            [f"{100 * a:g} %", *(f"{100 * found[f'matched {a} {what}']:.1f}" for what in ("right", "MSP", "ours")),
             f"{found[f'ratio {a}'][0]:.2f} ({found[f'ratio {a}'][1]:.2f} – {found[f'ratio {a}'][2]:.2f})"]
            for a in (0.99, 0.95, 0.9) if f"ratio {a}" in found
        ]  # fmt: skip
        header = ["MSP right on ID", "right in the mixture", "MSP accepts", "guard accepts", "ratio"]
        print(Table("", header, matched, 1).markdown())
        mixture = [
            [f"{100 * a:g} %", *(f"{100 * found[f'mixture {a} {who}']:.1f}" for who in ("MSP", "ours"))]
            for a in (0.99, 0.95, 0.9, 0.8)
        ]
        mixture.append(
            ["99 %, one OOD set at a time", *(f"{100 * found[f'alone {who}']:.1f}" for who in ("MSP", "ours"))]
        )
        print(Table("", ["right in the mixture", "MSP accepts", "guard accepts"], mixture, 1).markdown())
        names = ["threshold", "minimum", "5 % quantile", "median", "all", "OOD caught"]
        lines = [
            [name, *("–" if one != one else f"{100 * one:.1f}" for one in values)] for name, values in shares.items()
        ]
        print(Table("", names, lines, 1).markdown(), flush=True)
        if args.out is not None and path == args.packs[0]:
            write_risks(curves, args.out / "risk.png")
    if args.simulate:
        simulated = simulate(args.simulate)
        print(Table("", ["promise", "promised", "broken (%)", "at most (%)"], simulated, 1).markdown())
    if args.out is not None:
        parts = {"decisions": record} if args.packs else {}
        parts |= {"simulated": {"draws": args.simulate, "rows": simulated}} if args.simulate else {}
        for name, part in parts.items():
            (args.out / f"{name}.json").write_text(json.dumps(part, indent=1) + "\n")


if __name__ == "__main__":
    main()
