"""Tables: ADBench's classical sets, Outfield's detectors that need no labels beside pyod's, in one run.

    git clone https://github.com/Minqi824/ADBench
    python benchmarks/tables.py run ADBench/adbench/datasets/Classical --out tables.json
    python benchmarks/tables.py page tables.json docs/results/tables.md

Of each set the anomalies are OOD. The normal rows are divided by the seed, one half to fit, the other to test. What is learned
of the columns is learned on the first half. Sets of which the first half has fewer than 80 rows are left out: ``Auto`` keeps 40
of them to calibrate itself. A run goes on where an earlier one ended, set by set.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import outfield as of
from outfield.files import write_bytes

MOST_NORMAL, MOST_ANOMALIES = 10_000, 2_000
FEWEST = 80
CLUSTERS = 10
Scores = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[of.FeatureSet, np.ndarray, int], Scores]


def ours(make: Callable[[int], of.Detector]) -> Fit:
    """A detector of Outfield on the rows of a :class:`outfield.TablePreprocessing`."""

    def fit(train: of.FeatureSet, _: np.ndarray, seed: int) -> Scores:
        detector = make(seed).fit(train)
        return lambda rows: detector.score(of.FeatureSet(rows, about=train.about)).numpy()

    return fit


def clustered(make: Callable[[int], of.Detector]) -> Fit:
    """The same with the clusters of the training rows as their classes."""

    def fit(train: of.FeatureSet, rows: np.ndarray, seed: int) -> Scores:
        from sklearn.cluster import KMeans

        labels = KMeans(CLUSTERS, n_init=3, random_state=seed).fit_predict(rows)
        labels = np.unique(labels, return_inverse=True)[1]
        return ours(make)(of.FeatureSet(train.features, labels=labels, about=train.about), rows, seed)

    return fit


def theirs(name: str, **settings: Any) -> Fit:
    """A detector of pyod on the same rows, without the constant entry."""

    def fit(_: of.FeatureSet, rows: np.ndarray, seed: int) -> Scores:
        import importlib

        cls = getattr(importlib.import_module(f"pyod.models.{name.lower()}"), name)
        detector = cls(**({"random_state": seed} if name == "IForest" else {}), **settings).fit(rows[:, :-1])
        return lambda rows: np.asarray(detector.decision_function(rows[:, :-1]))

    return fit


DETECTORS: dict[str, Fit] = {
    "Auto": ours(lambda seed: of.Auto(seed=seed)),
    "SSD, one Gaussian": ours(lambda seed: of.SSD()),
    f"SSD, {CLUSTERS} clusters": clustered(lambda seed: of.SSD()),
    "KNN k=5": ours(lambda seed: of.KNN(k=5)),
    "KNN k=50": ours(lambda seed: of.KNN(k=50)),
    "PCA": ours(lambda seed: of.PCA()),
    "KDE": ours(lambda seed: of.KDE()),
    "PerClassGaussian, one class": ours(lambda seed: of.PerClassGaussian()),
    "CombOOD": ours(lambda seed: of.CombOOD()),
    "pyod IForest": theirs("IForest"),
    "pyod LOF": theirs("LOF"),
    "pyod ECOD": theirs("ECOD"),
}


def divided(path: Path, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Rows to fit, normal rows to test, and anomalies, drawn by the seed; None where the first are too few."""
    with np.load(path, allow_pickle=False) as archive:
        rows, anomaly = archive["X"].astype(np.float64), archive["y"].astype(bool)
    rng = np.random.default_rng(seed)
    normal = rows[rng.permutation(np.flatnonzero(~anomaly))[:MOST_NORMAL]]
    unusual = rows[rng.permutation(np.flatnonzero(anomaly))[:MOST_ANOMALIES]]
    half = len(normal) // 2
    return (normal[:half], normal[half:], unusual) if half >= FEWEST else None


def frame(rows: np.ndarray) -> dict[str, np.ndarray]:
    return {f"column {number}": column for number, column in enumerate(rows.T)}


def measured(path: Path, seed: int) -> dict[str, dict[str, float]] | None:
    """AUROC, FPR95 and seconds of the fit for each detector."""
    parts = divided(path, seed)
    if parts is None:
        return None
    table = of.TablePreprocessing.fit(frame(parts[0]))
    train, test, unusual = (table(frame(part)) for part in parts)
    found = {}
    for name, fit in DETECTORS.items():
        began = time.perf_counter()
        scores = fit(train, train.features.numpy(), seed)
        seconds = time.perf_counter() - began
        # At once, as users of pyod do: its ECOD measures rows by those that are scored beside them.
        both = torch.from_numpy(scores(torch.cat([test.features, unusual.features]).numpy()))
        known, other = both[: len(test)], both[len(test) :]
        found[name] = {
            "auroc": float(of.auroc(known, other)),
            "fpr95": float(of.fpr95(known, other)),
            "seconds": seconds,
        }
    return found


def run(folder: Path, out: Path, seeds: int, minutes: float) -> None:
    """Measure every set of a folder that is not in ``out`` yet, until the time is over."""
    known: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    until = time.monotonic() + 60 * minutes
    _warm_up()
    for path in sorted(folder.glob("*.npz"), key=lambda path: int(path.stem.partition("_")[0])):
        name = path.stem.partition("_")[2]
        if name in known or time.monotonic() > until:
            continue
        found = [measured(path, seed) for seed in range(seeds)]
        if found[0] is None:
            known[name] = None
        else:
            parts = divided(path, 0)
            sizes = [] if parts is None else [len(part) for part in parts]
            known[name] = {"rows": sizes, "columns": 0 if parts is None else parts[0].shape[1], "seeds": found}
        write_bytes(out, json.dumps(known).encode())
        print(name, "left out" if known[name] is None else "done", flush=True)


def _warm_up() -> None:
    """Fit every detector once, so that no time is one of loading a library."""
    rows = np.random.default_rng(0).standard_normal((200, 3))
    train = of.TablePreprocessing.fit(frame(rows))(frame(rows))
    for fit in DETECTORS.values():
        fit(train, train.features.numpy(), 0)


Cells = dict[str, dict[str, dict[str, float]]]
"""Set → detector → metric, means over seeds."""


def means(result: Mapping[str, Any]) -> Cells:
    """Means over seeds for each set that was measured."""
    return {
        name: {
            detector: {
                metric: float(np.mean([seed[detector][metric] for seed in one["seeds"]]))
                for metric in ("auroc", "fpr95", "seconds")
            }
            for detector in one["seeds"][0]
        }
        for name, one in result.items()
        if one is not None
    }


def ranks(cells: Cells, metric: str) -> dict[str, float]:
    """Mean rank of each detector over the sets, 1 for the best; equal figures share their ranks."""
    from scipy.stats import rankdata

    names = list(next(iter(cells.values())))
    sign = -1 if metric == "auroc" else 1
    table = [rankdata([sign * own[name][metric] for name in names]) for own in cells.values()]
    return dict(zip(names, np.mean(table, axis=0).tolist(), strict=True))


def lines(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    ruler = "|" + "---|" * len(head)
    return "\n".join(["| " + " | ".join(head) + " |", ruler, *("| " + " | ".join(row) + " |" for row in rows)])


def summary(result: Mapping[str, Any]) -> str:
    """Detectors by mean rank in AUROC."""
    cells = means(result)
    by_auroc, by_fpr = ranks(cells, "auroc"), ranks(cells, "fpr95")
    mean = {
        name: {metric: float(np.mean([own[name][metric] for own in cells.values()])) for metric in ("auroc", "fpr95")}
        for name in by_auroc
    }
    slowest = {name: max(own[name]["seconds"] for own in cells.values()) for name in by_auroc}
    head = ("", "mean rank, AUROC", "mean rank, FPR95", "AUROC ↑", "FPR95 ↓", "longest fit, s")
    return lines(
        head,
        (
            [
                name,
                f"{by_auroc[name]:.2f}",
                f"{by_fpr[name]:.2f}",
                f"{100 * mean[name]['auroc']:.1f}",
                f"{100 * mean[name]['fpr95']:.1f}",
                f"{slowest[name]:.2f}",
            ]
            for name in sorted(by_auroc, key=by_auroc.__getitem__)
        ),
    )


def every_set(result: Mapping[str, Any]) -> str:
    """FPR95 / AUROC of each detector on each set."""
    cells = means(result)
    names = list(next(iter(cells.values())))
    rows = (
        [
            f"{one} ({result[one]['rows'][0]:,} × {result[one]['columns']})",
            *(f"{100 * own[name]['fpr95']:.0f} / {100 * own[name]['auroc']:.0f}" for name in names),
        ]
        for one, own in cells.items()
    )
    return lines(["rows to fit × columns", *names], rows)


def page(result: Mapping[str, Any], text: str) -> str:
    """A page's text with its tables made from the results: each stands between ``<!-- NAME -->`` and ``<!-- end -->``."""
    made = {"summary": summary(result), "sets": every_set(result), "left out": left_out(result)}
    for name, table in made.items():
        place = re.compile(rf"<!-- {name} -->\n.*?<!-- end -->", re.DOTALL)
        own = f"<!-- {name} -->\n{table}\n<!-- end -->".replace("\\", r"\\")
        text, count = place.subn(own, text)
        if count != 1:
            raise SystemExit(f"the page has {count} places for {name!r}; it must have one")
    return text


def left_out(result: Mapping[str, Any]) -> str:
    names = [name for name, one in result.items() if one is None]
    listed = ", ".join(names) or "none"
    return f"Measured: {len(result) - len(names)} sets. Left out, with fewer than {FEWEST} rows to fit: {listed}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--seeds", type=int, default=3)
    running.add_argument("--minutes", type=float, default=float("inf"))
    writing = commands.add_parser("page")
    writing.add_argument("result", type=Path)
    writing.add_argument("page", type=Path)
    given = parser.parse_args()
    if given.command == "run":
        warnings.simplefilter("ignore")
        run(given.folder, given.out, given.seeds, given.minutes)
    else:
        result = json.loads(given.result.read_text())
        write_bytes(given.page, page(result, given.page.read_text()).encode())


if __name__ == "__main__":
    main()
