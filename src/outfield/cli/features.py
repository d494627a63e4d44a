"""Commands on features: detectors, fit, score, evaluate."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from outfield.benchmark.evaluation import evaluate as run_evaluation
from outfield.cli.app import Device, app, for_seed
from outfield.cli.console import err, out, plain, print_table
from outfield.config import construct_from_text, settings_of
from outfield.detectors import DETECTORS, Detector, load
from outfield.detectors.learned import LearnedEnergy
from outfield.errors import InputError
from outfield.features.columns import csv_rows, read_features, write_columns
from outfield.features.set import FeatureSource
from outfield.features.stream import open_or_read
from outfield.files.arrays import split_source
from outfield.files.atomic import check_writable, write_bytes
from outfield.report import evaluation as report
from outfield.report.table import Table
from outfield.scores.threshold import Threshold, check_keep

FEATURES = (
    "a FeatureSet: .safetensors, .npz, .npy (features alone), .csv or .parquet; FILE.npz#SET for one set of several"
)


@app.command(epilog="Examples:\n\noutfield detectors\n\noutfield detectors EnergyCorrected")
def detectors(
    name: Annotated[
        str | None, typer.Argument(help="One detector, to see every setting that fit --set can change.")
    ] = None,
) -> None:
    """List the detectors, what they need and what can be set."""
    if name is not None:
        out.print(plain(inspect.getdoc(DETECTORS[name])))
        out.print()
        rows = [[path, repr(value)] for path, value in settings_of(DETECTORS[name]()).items()]
        print_table(
            Table(f"settings of {name} (outfield fit {name} … --set NAME=VALUE)", ["name", "default"], rows, left=2)
        )
        return
    rows = []
    for name, cls in DETECTORS.items():
        needs = ", ".join(cls.score_needs) + "".join(f"; {field} to fit" for field in cls.fit_needs)
        settings = ", ".join(f"{p.name}={_short(p.default)}" for p in inspect.signature(cls).parameters.values())
        rows.append([name, needs, (inspect.getdoc(cls) or "").splitlines()[0], settings or "–"])
    print_table(Table("detectors (higher score = more OOD)", ["name", "needs", "what it is", "settings"], rows, left=4))


def _short(value: Any) -> str:
    return type(value).__name__ + "(…)" if dataclasses.is_dataclass(value) else repr(value)


@app.command(
    epilog="Examples:\n\noutfield fit SSD train.npz --out ssd.safetensors\n\noutfield fit KNN train.csv -o knn.safetensors "
    "--set k=200\n\noutfield fit EnergyCorrected train.safetensors -o ours.safetensors --seed 1 --set training.epochs=10 "
    "--checkpoint fit.safetensors --held-out val.npz --threshold-out threshold.safetensors\n\noutfield fit EnergyCorrected "
    "train.npz -o 'ours-{seed}.safetensors' --seeds 4"
)
def fit(
    detector: Annotated[str, typer.Argument(help="Name of a detector; see: outfield detectors.")],
    train: Annotated[str, typer.Argument(help=f"Training data, {FEATURES}.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="Where the fitted detector goes (.safetensors).")],
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", help="A setting, NAME=VALUE, such as training.epochs=5; outfield detectors NAME lists them."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a detector that is trained.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Train this many at once, from --seed (0) on; write {seed} into the names of files."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Keep the running fit here, and go on from it if it exists (EBM, EnergyCorrected)."),
    ] = None,
    held_out: Annotated[str | None, typer.Option(help="Held-out ID data on which to choose a threshold.")] = None,
    keep: Annotated[float, typer.Option(help="Share of ID samples that the threshold keeps.")] = 0.95,
    threshold_out: Annotated[Path | None, typer.Option(help="Where the threshold goes (.safetensors).")] = None,
    device: Device = "auto",
) -> None:
    """Fit a detector on ID training data and save it."""
    if (held_out is None) != (threshold_out is None):
        raise InputError("--held-out and --threshold-out go together: one names the data, the other the file to write")
    _check_places([path for path in (output, threshold_out) if path is not None], named_by_seed=seeds is not None)
    if checkpoint is not None:
        check_writable(checkpoint)
    check_keep(keep)
    cls = DETECTORS[detector]
    if (checkpoint is not None or seeds is not None) and not issubclass(cls, LearnedEnergy):
        option = "--checkpoint" if checkpoint is not None else "--seeds"
        raise InputError(f"{option} is for detectors that are trained; {detector} is fitted at once")
    settings = dict(item.partition("=")[::2] for item in setting or [])
    if seed is not None:
        settings["seed"] = str(seed)
    model: Detector = construct_from_text(cls, settings)
    model.to(device)
    data = open_or_read(train) if cls.fits_in_pieces else read_features(train)
    held_out_data = None if held_out is None else open_or_read(held_out)
    if isinstance(model, LearnedEnergy):
        if checkpoint is not None and checkpoint.exists():
            err.print(f"going on from {plain(checkpoint)}")
        data = data.in_memory() if _small(data) else data
        numbers = [model.seed] if seeds is None else range(model.seed, model.seed + seeds)
        fitted: list[Detector] = [*model.fit_seeds(data, numbers, checkpoint=checkpoint)]
    else:
        fitted = [model.fit(data)]
    for one in fitted:
        number = getattr(one, "seed", 0)
        place = for_seed(output, number)
        threshold_place = None if threshold_out is None else for_seed(threshold_out, number)
        one.save(place)
        err.print(plain(f"fitted {detector} on {len(data):,} samples → {place}"))
        if held_out_data is not None and threshold_place is not None:
            threshold = Threshold.fit(one.score(held_out_data), keep=keep, source=one.fingerprint())
            threshold.save(threshold_place)
            err.print(plain(f"{threshold} → {threshold_place}"))


def _check_places(paths: list[Path], named_by_seed: bool) -> None:
    """Find out before long work whether what is fitted can be written after it."""
    for path in paths:
        if path.suffix != ".safetensors":
            raise InputError(f"{path}: detectors and thresholds are saved as .safetensors")
        if named_by_seed and "{seed}" not in path.name:
            raise InputError(f"{path}: with --seeds every seed gets its own file; put {{seed}} into its name")
        check_writable(path)


def _small(data: FeatureSource) -> bool:
    """Whether all fields and the normalised features surely fit half of the free memory; else they stay on disk."""
    wanted = 4 * math.prod(data.shapes["features"]) + 8 * sum(math.prod(shape) for shape in data.shapes.values())
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system says
        free = 2**32
    return wanted < free / 2


@app.command(
    epilog="Examples:\n\noutfield score ssd.safetensors new.npz\n\noutfield score ssd.safetensors new.csv "
    "--threshold threshold.safetensors --out scores.parquet"
)
def score(
    detector: Annotated[Path, typer.Argument(help="A fitted detector.")],
    data: Annotated[str, typer.Argument(help=f"What to score, {FEATURES}.")],
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help=".csv, .parquet or .npz; standard output if absent.")
    ] = None,
    threshold: Annotated[Path | None, typer.Option(help="Add columns is_ood and p_value.")] = None,
    device: Device = "auto",
) -> None:
    """Score samples: one row each, in the order of the input."""
    model = load(detector).to(device)
    rule = None if threshold is None else Threshold.load(threshold)
    if rule is not None and rule.source not in (None, model.fingerprint()):
        raise InputError(f"{threshold} was chosen for {rule.source}, but {detector} is {model.fingerprint()}")
    scores = model.score(open_or_read(data))
    columns = {"score": scores.numpy()}
    if rule is not None:
        columns |= {"is_ood": rule.is_ood(scores).numpy(), "p_value": rule.p_value(scores).numpy()}
    if output is not None:
        write_columns(output, columns)
        refused = f", {int(columns['is_ood'].sum()):,} of them OOD" if "is_ood" in columns else ""
        err.print(f"scored {len(scores):,} samples{refused} → {output}")
        return
    for row in csv_rows(columns):
        sys.stdout.write(",".join(row) + "\n")


@app.command(
    epilog="Example:\n\noutfield evaluate ssd.safetensors ours.safetensors --id test.npz --ood svhn.npz --ood "
    "places=pack.npz#places --csv results.csv"
)
def evaluate(
    detector: Annotated[list[Path], typer.Argument(help="One or more fitted detectors.")],
    id_data: Annotated[str, typer.Option("--id", help=f"ID test data, {FEATURES}.")],
    ood: Annotated[list[str], typer.Option("--ood", help="OOD data, FILE or NAME=FILE; any number of times.")],
    json_out: Annotated[
        str | None, typer.Option("--json", help="Write fractions as JSON to this file, or - for stdout.")
    ] = None,
    csv_out: Annotated[
        str | None, typer.Option("--csv", help="Write fractions as CSV to this file, or - for stdout.")
    ] = None,
    device: Device = "auto",
) -> None:
    """FPR95, AUROC and AUPR of fitted detectors: one ID set against any number of OOD sets."""
    if json_out == csv_out == "-":
        raise InputError("--json - and --csv - would both go to standard output; name a file for one of them")
    named = dict(_named(source) for source in ood)
    if len(named) < len(ood):
        raise InputError(
            f"two --ood sets have the same name ({', '.join(name for name, _ in map(_named, ood))}); use NAME=FILE"
        )
    sets = {name: open_or_read(source) for name, source in named.items()}
    models = [(path, load(path).to(device)) for path in detector]
    kinds = [type(model).__name__ for _, model in models]
    loaded: dict[str, Detector] = {}
    for path, model in models:
        name = type(model).__name__ if kinds.count(type(model).__name__) == 1 else path.stem
        if name in loaded:
            raise InputError(f"{path} and another detector would both be called {name}; rename one of the files")
        loaded[name] = model
    results = run_evaluation(loaded, open_or_read(id_data), sets)
    for target, render in ((json_out, report.results_json), (csv_out, report.results_csv)):
        if target == "-":
            sys.stdout.write(render(results))
        elif target is not None:
            write_bytes(target, render(results).encode())
    if "-" in (json_out, csv_out):
        return
    print_table(report.full_table(results))
    if len(sets) > 1:
        out.print()
        print_table(report.results_table(results))


def _named(source: str) -> tuple[str, str]:
    path, part = split_source(source)
    name, equals, file = source.partition("=")
    if equals and not path.is_file():
        return name, file
    return part or path.stem, source
