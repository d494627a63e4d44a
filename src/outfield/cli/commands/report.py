"""outfield report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outfield.cli.app import command, write_results
from outfield.cli.options import RUN, File, Input, check_report


@command("outfield report benchmark-cifar10/run.safetensors --out elsewhere")
def report(
    run: Annotated[Path, Argument(help="A benchmark's folder, or its run.safetensors.")],
    output: Annotated[File, Option("--out", "-o", help="Folder of the report. Default: the file's own.")] = None,
) -> None:
    """Tables, figures and the page of a benchmark once more, from the results it kept."""
    run = run / RUN if os.path.isdir(run) else run
    folder = run.parent if output is None else output
    check_report([Input("the run", run)], folder)

    from outfield.benchmark import load_run

    write_results(load_run(run), folder)
