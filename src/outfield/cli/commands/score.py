"""outfield score."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from outfield.cli import options as opt
from outfield.cli.app import UNREAD, Device, command, going_on_from, log
from outfield.cli.options import File, Number, Text
from outfield.errors import InputError
from outfield.extras import check_installed
from outfield.percent import counted


@command(
    "outfield score ssd.safetensors new.npz",
    "outfield score ssd.safetensors new.csv --threshold threshold.safetensors --out scores.parquet",
    "outfield score my.guard photos/ --out results/",
    "outfield score customers.guard new.csv --out verdicts.csv",
    "outfield score my.guard s3://bucket/photos --engine ray --address auto --out s3://bucket/results",
)
def score(
    detector: Annotated[Path, Argument(help="A fitted detector, or a guard (.guard).")],
    data: Annotated[
        str,
        Argument(
            help=f"Data to score, {opt.FEATURES}. With a guard: a folder of images, a list of them (.txt), Parquet of images or "
            "features; also at addresses such as s3://…; with a guard of rows a table or features."
        ),
    ],
    output: Annotated[
        Text,
        Option(
            "--out",
            "-o",
            help="File of the scores (.csv, .parquet or .npz). Default: standard output. With a guard: a folder or an address; "
            "with a guard of rows .csv, .parquet, .json or .jsonl.",
        ),
    ] = None,
    threshold: Annotated[File, Option(help="Threshold of the detector, to add columns is_ood and p_value.")] = None,
    fdr: opt.Fdr = None,
    engine: opt.Engine = opt.LOCAL,
    workers: opt.Workers = None,
    address: opt.Address = opt.LOCAL,
    threads: Annotated[int, Option(min=1, help="With a guard: cores of the network in each worker.")] = 1,
    part_rows: Annotated[Number, Option(min=1, help="With a guard: rows of each file of results.")] = None,
    on_error: opt.OnError = "skip",
    device: Device = "auto",
) -> None:
    """Score samples: one row each, in the order of the input, with the names of files where the features keep them.

    With a guard, verdicts are written as Parquet files into a folder; run again, the command does what is missing there. Of a
    guard of rows they are one file, or printed as CSV.
    """
    on_cluster = opt.on_ray(engine, workers)
    target = None if output is None else Path(output)
    if detector.suffix != ".guard":
        if part_rows is not None or on_cluster:
            what = "--part-rows and --engine ray are for guards (.guard)"
            raise InputError(f"{what}: a detector is scored by this process into one file")
        if fdr is not None and threshold is None:
            raise InputError("--fdr looks at p-values, which need the detector's --threshold")
        _with_detector(detector, data, target, threshold, fdr, device)
        return

    from outfield.files import kind_of
    from outfield.guard import Reader, Texts

    if kind_of(detector) in (Reader.kind, Texts.kind):
        if threshold is not None or part_rows is not None or on_cluster:
            what = f"{detector} is a {kind_of(detector)}: it has its own threshold, works in this process and gives one file"
            raise InputError(f"{what}; leave out --threshold, --part-rows, --engine and --workers")
        _with_row_guard(detector, data, target, fdr, on_error, device)
        return
    if fdr is not None:
        raise InputError("--fdr needs all verdicts at once, and these are written in parts: outfield guard check --fdr")
    if output is None or threshold is not None:
        raise InputError("a guard has its own threshold, and its verdicts go to a folder: name that with --out")
    check_installed("ray", "fsspec", "pyarrow")
    from outfield.scale import score_files

    cluster: dict[str, Any] = {"engine": engine, "workers": workers, "address": address}
    work: dict[str, Any] = {"threads": threads, "part_rows": part_rows, "device": device, "on_error": on_error}
    with going_on_from(output):
        done = score_files(detector, data, output, **cluster, **work)
    if done.failed:
        log.warning("%s of %s rows could not be read", f"{done.failed:,}", f"{done.rows:,}")
    counts = f"{counted(done.rows, 'row')}, {done.ood:,} OOD, in {counted(done.parts, 'part')}, {done.made:,} of them made now"
    log.info("%s → %s", counts, output)
    if done.failed == done.rows:
        raise typer.Exit(UNREAD)


def _with_row_guard(guard: Path, data: str, target: Path | None, fdr: float | None, on_error: str, device: str) -> None:
    """Verdicts on a table, or on a file of features, as ``outfield guard check`` gives them."""
    from outfield.features import csv_text
    from outfield.guard import VERDICT_ENDINGS as ENDINGS
    from outfield.guard import Guard, Verdicts, write_verdicts

    places: list[opt.Input] = [("the guard", guard), ("the data", data)]
    opt.check_places(places, [opt.Output("--out", target, ENDINGS)])
    verdicts = Verdicts([*Guard.load(guard, device).stream([data], on_error=on_error)], "rows")
    failed = verdicts.failed
    if fdr is not None:
        verdicts = verdicts.with_discoveries(fdr)
        log.info("%s", opt.fdr_in_words(fdr))
    if target is None:
        sys.stdout.write(csv_text(verdicts.table()))
    else:
        write_verdicts(target, verdicts)
        judged = counted(len(verdicts) - len(failed), "row")
        log.info("%s, %s OOD → %s", judged, f"{int(verdicts.is_ood.sum()):,}", target)
    for first in failed[:1]:
        log.warning("%s of %s rows could not be read; %s: %s", len(failed), len(verdicts), first.file, first.error)
    if len(failed) == len(verdicts):
        raise typer.Exit(UNREAD)


def _with_detector(
    detector: Path, data: str, output: Path | None, threshold: Path | None, fdr: float | None, device: str
) -> None:
    inputs: list[opt.Input] = [("the detector", detector), ("the threshold", threshold), ("the data", data)]
    opt.check_places(inputs, [opt.Output("--out", output, (".csv", ".parquet", ".npz"))])

    from outfield.detectors import load
    from outfield.features import csv_text, named_columns, open_or_read, write_columns
    from outfield.scores import Threshold, discovery_limit

    model = load(detector).to(device)
    rule = None if threshold is None else Threshold.load(threshold)
    if rule is not None and rule.source not in (None, model.fingerprint()):
        raise InputError(f"{threshold} was chosen for {rule.source}, but {detector} is {model.fingerprint()}")
    rows = open_or_read(data)
    scores = model.score(rows)
    columns = {**named_columns(rows.names), "score": scores.numpy()}
    if rule is not None:
        p_values = rule.p_value(scores).numpy()
        is_ood = rule.is_ood(scores).numpy() if fdr is None else p_values <= discovery_limit(p_values, fdr)
        columns |= {"is_ood": is_ood, "p_value": p_values}
        if fdr is not None:
            log.info("%s", opt.fdr_in_words(fdr))
    if output is None:
        sys.stdout.write(csv_text(columns))
        return
    write_columns(output, columns)
    refused = f", {int(columns['is_ood'].sum()):,} of them OOD" if "is_ood" in columns else ""
    log.info("scored %s%s → %s", counted(len(scores), "sample"), refused, output)
