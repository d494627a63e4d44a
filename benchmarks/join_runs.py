"""Rows of one benchmark run in the place of another's, where both are of the same networks and images.

    python benchmarks/join_runs.py old.safetensors new.safetensors --take Auto --check KNN --out run.safetensors

``--check`` names detectors of both runs whose scores must agree, image by image (rank correlation of at least 0.999 on every
set), so that rows are of the same images in the same order. The provenance says what was taken from where.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from outfield.benchmark import BenchmarkRun, Key, load_run, save_run

LEAST = 0.999


def ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(float)


def agreement(old: BenchmarkRun, new: BenchmarkRun, name: str) -> float:
    """The smallest rank correlation between two runs' scores of a detector, over backbones and sets."""
    found = []
    for key, scores in new.scores.items():
        if key.detector != name:
            continue
        other = old.scores[Key(key.backbone, name, key.seed)]
        for part, values in scores.items():
            if len(values) != len(other[part]):
                raise SystemExit(f"{key.backbone} has {len(values)} and {len(other[part])} scores of {part}")
            found.append(float(np.corrcoef(ranks(values), ranks(other[part]))[0, 1]))
    if not found:
        raise SystemExit(f"both runs must have {name}")
    return min(found)


def join(old: BenchmarkRun, new: BenchmarkRun, take: list[str]) -> None:
    """Put the records, scores and choices of ``take`` from the second run into the first."""
    for name in take:
        old.scores = {key: value for key, value in old.scores.items() if key.detector != name}
        old.scores |= {key: value for key, value in new.scores.items() if key.detector == name}
        mine = [record for record in new.records if record.detector == name]
        place = next((i for i, record in enumerate(old.records) if record.detector == name), len(old.records))
        rest = [record for record in old.records if record.detector != name]
        old.records = rest[:place] + mine + rest[place:]
        for part in ("chosen", "detectors", "settings"):
            if name in new.provenance.get(part, {}):
                old.provenance.setdefault(part, {})[name] = new.provenance[part][name]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--take", nargs="+", required=True, metavar="DETECTOR")
    parser.add_argument("--check", nargs="+", required=True, metavar="DETECTOR")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    old, new = load_run(options.old), load_run(options.new)
    for name in options.check:
        least = agreement(old, new, name)
        print(f"{name}: the smallest rank correlation over backbones and sets is {least:.5f}")
        if least < LEAST:
            raise SystemExit("these runs are not of the same networks and images")
    join(old, new, options.take)
    old.provenance["joined"] = {
        "taken": options.take,
        "from": {
            name: new.provenance.get(name) for name in ("started", "versions", "command") if name in new.provenance
        },
    }
    save_run(old, options.out)


if __name__ == "__main__":
    main()
