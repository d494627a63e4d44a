"""What the filter that shrank the OOD images does to each detector: the same images, shrunk by two filters, side by side.

    python benchmarks/filters.py cifar10 --data FOLDER --other FOLDER --backbone one.safetensors two.safetensors \\
        --out filters-cifar10.json
    python benchmarks/filters.py --show filters-cifar10.json filters-cifar100.json --picture docs/images/filters.png

    python benchmarks/filters.py --scores cifar10-0-one.npz cifar10-1-one.npz --out filters-cifar10.json

``--data`` has the ID set and the OOD sets as one filter shrank them, ``--other`` OOD sets of the same names as another did;
``--names`` says which filters these are. Compared are the protocol's OOD sets that are in both folders and are not the same to
the bit. Detectors are fitted on all training images and judged on the ID test images but for the 1,000 on which ``Fused`` is
calibrated. A backbone that is in the file already is not done again. ``--show`` prints the table, the mean over backbones, and
with ``--out`` puts several files of one protocol into one.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import outfield as of
from filters_table import draw, markdown, merged, table
from outfield.benchmark import PROTOCOLS, Protocol
from outfield.benchmark.provenance import about_this_run
from outfield.detectors import LearnedEnergy, names_of
from outfield.errors import OutfieldError, StorageError, UnknownNameError
from outfield.files import write_bytes
from outfield.images import ImageSource, find, part_of
from outfield.report import save_figure as save
from scores import ALONE, HELD_OUT, held_out_index

METRICS = {"fpr95": of.fpr95, "auroc": of.auroc}
Pair = tuple[ImageSource, ImageSource]
"""An OOD set as the first filter shrank it, and as the second did."""


def pairs(protocol: Protocol, first: Path, second: Path, rows: int | None) -> dict[str, Pair]:
    """The sets to compare, by name; tells which are not, and why."""
    found: dict[str, Pair] = {}
    for name in protocol.ood:
        both = [look_for(name, folder, rows) for folder in (first, second)]
        one, other = both
        if one is None or other is None:
            print(
                f"{name}: not in {' and '.join(str(f) for f, s in zip((first, second), both, strict=True) if s is None)}"
            )
        elif len(one) != len(other):
            raise SystemExit(f"{name} has {len(one)} images in {first} and {len(other)} in {second}: not the same ones")
        elif one.fingerprint() == other.fingerprint():
            print(f"{name}: the same in both folders, left out")
        else:
            found[name] = one, other
    if not found:
        raise SystemExit(f"no OOD set of {protocol.key} is in both {first} and {second}")
    return found


def look_for(name: str, folder: Path, rows: int | None, split: str = "test") -> ImageSource | None:
    """A set, or its first rows; None where it is not there."""
    try:
        source = find(name, split, folder)
    except (StorageError, UnknownNameError):
        return None
    return source if rows is None else part_of(source, np.arange(min(rows, len(source))))


def judge(
    options: argparse.Namespace, backbone: of.Backbone, sets: Mapping[str, Pair], names: Sequence[str]
) -> dict[str, Any]:
    """FPR95 and AUROC of every detector with each filter on each set, by detector, filter and set."""
    protocol = PROTOCOLS[options.protocol]
    train_images, test = (look_for(protocol.id, options.data, options.rows, split) for split in ("train", "test"))
    if train_images is None or test is None:
        raise SystemExit(f"{protocol.id} is not in {options.data}")
    train = backbone.extract(train_images, stages=True)
    order = np.random.default_rng(0).permutation(len(test))
    count = min(HELD_OUT, len(test) // 2)
    held_out, rest = (
        backbone.extract(part_of(test, np.sort(some)), stages=True, odin=of.Odin(), labels=False)
        for some in (order[:count], order[count:])
    )
    ood = {
        name: [backbone.extract(images, stages=True, odin=of.Odin(), labels=False) for images in pair]
        for name, pair in sets.items()
    }
    found = {}
    for name, detector in detectors(options, train, held_out):
        ids = detector.score(rest)
        scores = {key: [detector.score(rows) for rows in pair] for key, pair in ood.items()}
        found[name] = {
            filter_name: {
                key: {"fpr95": of.fpr95(ids, two[place]), "auroc": of.auroc(ids, two[place])}
                for key, two in scores.items()
            }
            for place, filter_name in enumerate(names)
        }
    return found


def detectors(
    options: argparse.Namespace, train: of.FeatureSet, held_out: of.FeatureSet
) -> Iterator[tuple[str, of.Detector]]:
    """Fitted detectors, one at a time; what cannot be fitted on these rows is told and left out."""
    yield "Fused", of.Fused().to(options.device).fit(train, held_out=held_out)
    alone: list[of.Detector] = [of.ODIN()]
    if options.learned != "only":
        alone += [one for one in ALONE if one.field in train.shapes]
    named = {name.removesuffix(" ridge=0.0"): one for name, one in zip(names_of(alone), alone, strict=True)}
    if options.learned:
        named |= {f"EnergyCorrected T={t}": of.EnergyCorrected.paper(prior_temperature=t) for t in (500, 1000)}
        named["EBM"] = of.EBM.paper()
        named |= {f"{name}, averaged": averaged(named[name]) for name in ("EnergyCorrected T=1000", "EBM")}
    for name, one in named.items():
        try:
            yield name, copy.deepcopy(one).to(options.device).fit(train)
        except OutfieldError as error:
            print(f"{name} is left out: {error}")


def averaged(learned: of.Detector) -> of.Detector:
    """The same with the mean of the weights at the ends of the last half of the epochs."""
    one = copy.deepcopy(learned)
    assert isinstance(one, LearnedEnergy)
    one.training = replace(one.training, average=one.training.epochs // 2)
    return one


def from_scores(path: Path, names: Sequence[str]) -> tuple[str, dict[str, int], str, dict[str, Any]]:
    """What a file of scores.py says: the protocol, images of each set, the backbone, and figures as :func:`judge` gives them."""
    with np.load(path) as file:
        about = json.loads(str(file["about"]))
        scores = {key: file[key] for key in file.files if "|" in key}
    total = len(scores["0|test"])
    rest = np.setdiff1d(np.arange(total), held_out_index(total, 0))
    sets = {key.split("other ")[1]: len(value) for key, value in scores.items() if key.startswith("0|other ")}
    found = {}
    for number, name in enumerate(about["names"]):
        needed = [f"{number}|test", *(f"{number}|{kind} {key}" for kind in ("real", "other") for key in sets)]
        # Not the quick corrections among the candidates of choose.
        if not all(key in scores for key in needed) or "hidden=128" in name:
            continue
        name = re.sub(r" prior_temperature=(\d+) .*", r" T=\1", name)
        ids = scores[f"{number}|test"][rest]
        found[name.removesuffix(" ridge=0.0")] = {
            filter_name: {
                key: {m: float(metric(ids, scores[f"{number}|{kind} {key}"])) for m, metric in METRICS.items()}
                for key in sets
            }
            for filter_name, kind in zip(names, ("real", "other"), strict=True)
        }
    return about["protocol"], sets, about["net"], found


def collect(options: argparse.Namespace) -> None:
    """Files of scores.py for one protocol, written as if they had been measured here."""
    names = tuple(options.names)
    parts = [from_scores(path, names) for path in options.scores]
    if len({(protocol, *sorted(sets)) for protocol, sets, _, _ in parts}) > 1:
        raise SystemExit("these files are of several protocols or sets; give those of one")
    whole = {"protocol": parts[0][0], "filters": names, "sets": parts[0][1]}
    whole["backbones"] = {net: found for _, _, net, found in parts}
    write_bytes(options.out, (json.dumps({**whole, "table": table(whole)}, indent=1) + "\n").encode())


def run(options: argparse.Namespace) -> None:
    """Every backbone, each written when it is done."""
    names = tuple(options.names)
    sets = pairs(PROTOCOLS[options.protocol], options.data, options.other, options.rows)
    counts = {name: len(pair[0]) for name, pair in sets.items()}
    whole: dict[str, Any] = {"protocol": options.protocol, "filters": names, "sets": counts, "backbones": {}}
    if options.out.exists():
        kept = json.loads(options.out.read_text())
        same = (kept["protocol"], tuple(kept["filters"]), kept["sets"]) == (options.protocol, names, counts)
        if not same:
            raise SystemExit(f"{options.out} has other filters or sets; remove it or give another --out")
        whole["backbones"] = kept["backbones"]
    for path in options.backbone:
        name = Path(path).stem
        if name in whole["backbones"]:
            print(f"{name} is in {options.out} already")
            continue
        began = time.perf_counter()
        whole["backbones"][name] = judge(options, of.Backbone.open(path, options.device), sets, names)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        told = {"about": about_this_run(options.device), **whole, "table": table(whole)}
        write_bytes(options.out, (json.dumps(told, indent=1) + "\n").encode())


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", nargs="?", choices=sorted(PROTOCOLS))
    parser.add_argument("--data", type=Path, help="folder with the ID set and the OOD sets of the first filter")
    parser.add_argument("--other", type=Path, help="folder with the OOD sets of the second filter")
    parser.add_argument("--names", nargs=2, default=["bilinear", "bicubic"], metavar=("FIRST", "SECOND"))
    parser.add_argument("--backbone", nargs="+", default=[], help="files that outfield train wrote")
    parser.add_argument(
        "--learned",
        nargs="?",
        const="too",
        choices=["too", "only"],
        help="with EnergyCorrected and EBM, at the paper's settings; only: those, Fused and ODIN",
    )
    parser.add_argument("--rows", type=int, help="use only this many images of each set")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="where the figures go (.json)")
    parser.add_argument("--scores", type=Path, nargs="+", help="take the scores that scores.py --other wrote")
    parser.add_argument("--show", type=Path, nargs="+", help="only print the tables of these files")
    parser.add_argument("--picture", type=Path, help="where a picture goes (.png)")
    options = parser.parse_args(given)
    files = options.show
    if options.scores:
        if options.out is None:
            parser.error("--scores needs --out")
        collect(options)
        files = [options.out]
    if not files:
        needed = (options.protocol, options.data, options.other, options.out)
        if None in needed or not options.backbone:
            parser.error("a protocol, --data, --other, --backbone and --out are needed; or --show")
        run(options)
        files = [options.out]
    found = merged([json.loads(path.read_text()) for path in files])
    if options.show and options.out:
        if len(found) > 1:
            parser.error("--show with --out takes files of one protocol")
        whole = {**found[0], "table": table(found[0])}
        write_bytes(options.out, (json.dumps(whole, indent=1) + "\n").encode())
    for one in found:
        print(f"\n{markdown(one)}")
    if options.picture:
        save(draw(found), options.picture, dpi=120)


if __name__ == "__main__":
    main()
