"""outfield guard rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from outfield.cli.app import Device, command
from outfield.cli.commands.guard import guards
from outfield.cli.messages import log
from outfield.cli.options import Output, check_places, feature_file
from outfield.progress import bar


@command(
    "outfield guard rows customers.csv --label segment -o customers.guard",
    "outfield guard rows train.parquet --columns age,income,town --missing median --keep 0.99 -o my.guard",
    "outfield guard rows features.safetensors --held-out val.safetensors -o my.guard",
    of=guards,
    name="rows",
)
def guard_rows(
    rows: Annotated[
        str, typer.Argument(help="ID rows: a table (.csv, .parquet, one column a variable), or a file of features.")
    ],
    output: Annotated[Path, typer.Option("--out", "-o", help="Where the guard goes (.guard).")],
    held_out: Annotated[
        str | None, typer.Option(help="More ID rows, of the same kind; a fifth of the rows if not given.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column of a table that holds the class of each row.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of a table to take, with commas between; all if not given.")
    ] = None,
    missing: Annotated[
        str, typer.Option(help="What missing cells are: refuse, or median to fill them in.", metavar="refuse|median")
    ] = "refuse",
    keep: Annotated[float, typer.Option(help="Share of ID rows that the guard accepts.")] = 0.95,
    detector: Annotated[str | None, typer.Option(help="Name of a detector; Auto if not given.")] = None,
    max_train: Annotated[
        int, typer.Option("--max-train", "--most", min=1, help="Rows that the detector is fitted on, at most.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of held-out rows.")] = 0,
    device: Device = "auto",
) -> None:
    """Build a guard of the rows of a table, or of features: no network and no image is needed."""
    inputs = [*feature_file("the rows", rows), *feature_file("the held-out rows", held_out)]
    check_places(inputs, [Output("--out", output, (".guard", ".safetensors"), "guards")])

    from outfield.guard import Guard

    began = time.monotonic()
    with bar("building the guard"):
        made = Guard.build_rows(
            rows,
            held_out,
            label=label,
            columns=None if columns is None else columns.split(","),
            missing=missing,
            detector=None if detector in (None, "auto") else detector,
            keep=keep,
            seed=seed,
            max_train=max_train,
            device=device,
        )
        made.save(output)
    low, high = made.threshold.kept_interval()
    log.info("%s", made)
    log.info("90 %% interval of the share of new ID rows that it accepts: %.3f to %.3f", low, high)
    log.info("built in %.1f s → %s", time.monotonic() - began, output)
