"""outfield score."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from outfield.cli.app import Device, command
from outfield.cli.messages import log
from outfield.cli.places import Input, Output, check_places
from outfield.cli.sources import FEATURES, feature_file
from outfield.errors import InputError
from outfield.extras import check_installed


@command(
    "outfield score ssd.safetensors new.npz",
    "outfield score ssd.safetensors new.csv --threshold threshold.safetensors --out scores.parquet",
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
    """Score samples: one row each, in the order of the input; with a column file where the features know their images'."""
    inputs = [Input("the detector", detector), *feature_file("the data", data)]
    if threshold is not None:
        inputs.append(Input("the threshold", threshold))
    if output is not None:
        check_places(inputs, [Output("--out", output, (".csv", ".parquet", ".npz"), "scores")])
        if output.suffix == ".parquet":
            check_installed("tables", "pyarrow")

    from outfield.detectors import load
    from outfield.features.columns import csv_text, named_columns, write_columns
    from outfield.features.stream import open_or_read
    from outfield.scores.threshold import Threshold

    model = load(detector).to(device)
    rule = None if threshold is None else Threshold.load(threshold)
    if rule is not None and rule.source not in (None, model.fingerprint()):
        raise InputError(f"{threshold} was chosen for {rule.source}, but {detector} is {model.fingerprint()}")
    rows = open_or_read(data)
    scores = model.score(rows)
    columns = {**named_columns(rows.names), "score": scores.numpy()}
    if rule is not None:
        columns |= {"is_ood": rule.is_ood(scores).numpy(), "p_value": rule.p_value(scores).numpy()}
    if output is None:
        sys.stdout.write(csv_text(columns))
        return
    write_columns(output, columns)
    refused = f", {int(columns['is_ood'].sum()):,} of them OOD" if "is_ood" in columns else ""
    log.info("scored %s samples%s → %s", f"{len(scores):,}", refused, output)
