"""outfield toy."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outfield.cli.app import command, log, print_table, say
from outfield.cli.options import Output, check_places
from outfield.progress import bar


class Toy(StrEnum):
    """Which toys to run."""

    CROSS = "cross"
    GRID = "grid"
    BOTH = "both"


@command("outfield toy", "outfield toy grid --seeds 5 --out figures")
def toy(
    which: Annotated[Toy, Argument(help="cross, grid or both.")] = Toy.BOTH,
    output: Annotated[Path, Option("--out", "-o", help="Folder for the figures and numbers.")] = Path("toy"),
    seeds: Annotated[int, Option(min=1, help="Seeds that the table averages.")] = 1,
    jobs: Annotated[int, Option(min=1, help="Seeds run at once.")] = os.cpu_count() or 1,
) -> None:
    """The paper's 2-D experiments: energies as pictures, and exact likelihoods and mode masses as a table."""
    from outfield.extras import check_installed

    check_installed("report", "matplotlib")
    names = ["cross", "grid"] if which is Toy.BOTH else [which.value]
    files = [output / name for name in (*(f"{name}.png" for name in names), "toy.json")]
    check_places([], [Output("--out", path, makes_folder=True) for path in files])

    from outfield.files import make_folder, write_bytes
    from outfield.report import cross_figure, grid_figure, toy_json, toy_table
    from outfield.studies import ToyRun, run_toys

    make_folder(output)
    draw = {"cross": cross_figure, "grid": grid_figure}
    runs: list[ToyRun] = []
    with bar("training toys", total=seeds * len(names), unit="runs") as advance:
        for name in names:
            mine = []
            for run in run_toys(name, seeds, jobs=jobs):
                mine.append(run)
                advance(len(runs) + len(mine))
            draw[name](mine[0], output / f"{name}.png")
            runs += mine
    for name in names:
        print_table(toy_table([run for run in runs if run.data.name == name]))
        say()
    write_bytes(output / "toy.json", toy_json(runs).encode())
    log.info("wrote %s and %s", ", ".join(map(str, files[:-1])), files[-1])
