"""Commands that show the method at work: toy, demo."""

from __future__ import annotations

import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from outfield.cli.app import Device, app
from outfield.cli.console import err, out, plain, print_table
from outfield.files import atomic


class Toy(StrEnum):
    """Which toys to run."""

    CROSS = "cross"
    GRID = "grid"
    BOTH = "both"


@app.command(epilog="Examples:\n\noutfield toy\n\noutfield toy grid --seeds 5 --out figures")
def toy(
    which: Annotated[Toy, typer.Argument(help="cross, grid or both.")] = Toy.BOTH,
    output: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figures and numbers.")] = Path("toy"),
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds the table averages; the figure shows the first.")
    ] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Seeds run at once.")] = os.cpu_count() or 1,
) -> None:
    """The paper's 2-D experiments: energies as pictures, and exact likelihoods and mode masses as a table."""
    from outfield.progress import bar
    from outfield.report import toy_figures, toys
    from outfield.studies.toy import ToyRun, run_toys

    atomic.make_folder(output)
    draw = {"cross": toy_figures.cross_figure, "grid": toy_figures.grid_figure}
    runs: list[ToyRun] = []
    names = ["cross", "grid"] if which is Toy.BOTH else [which.value]
    with bar("training toys", total=seeds * len(names), unit="runs") as advance:
        for name in names:
            mine = []
            for run in run_toys(name, seeds, jobs=jobs):
                mine.append(run)
                advance(len(runs) + len(mine))
            draw[name](mine[0], output / f"{name}.png")
            runs += mine
    for name in names:
        print_table(toys.toy_table([run for run in runs if run.data.name == name]))
        out.print()
    atomic.write_bytes(output / "toy.json", toys.toy_json(runs).encode())
    err.print(plain(f"wrote {', '.join(str(output / f'{name}.png') for name in names)} and {output / 'toy.json'}"))


@app.command(epilog="Examples:\n\noutfield demo --out demo\n\noutfield demo --live")
def demo(
    output: Annotated[Path, typer.Option("--out", "-o", help="Folder for what the demo makes.")] = Path("demo"),
    live: Annotated[
        bool, typer.Option("--live", help="Fit EBM and EnergyCorrected too: about 40 minutes on two cores.")
    ] = False,
    device: Device = "auto",
) -> None:
    """CIFAR-10 and six OOD sets as features that ship with the package: fit, evaluate, choose thresholds, report."""
    from outfield.cli.results import write_results
    from outfield.report.figures import write_overview
    from outfield.studies.demo import run_demo

    atomic.make_folder(output)
    made = run_demo(live, device, say=lambda text: err.print(plain(text)))
    given = [name for name in made.detectors if name not in made.live]
    note = f"Fitted live: {', '.join(made.live)}."
    if given:
        note += f" Fitted beforehand on the same rows with the paper's settings, on a GPU: {', '.join(given)}."
    write_results(made.run, output, intro=made.about, notes=(note,), claims=False)
    write_overview(made.run, output / "demo.png")
    for name, model in made.detectors.items():
        model.save(output / f"{name}.safetensors")
        made.thresholds[name].save(output / f"{name}.threshold.safetensors")
    for name, data in made.sets.items():
        data.save(output / f"{name}.safetensors")
    page, picture, scores = output / "report.html", output / "demo.png", output / "scores.csv"
    out.print(plain(note))
    out.print(plain(f"EnergyCorrected: {made.thresholds['EnergyCorrected']}"))
    out.print(plain(f"Look at {page} and {picture}; detectors, thresholds and features lie beside. Try:"))
    program = sys.argv[0] if Path(sys.argv[0]).name == "outfield" else "outfield"
    parts = ["score", output / "SSD.safetensors", output / "svhn.safetensors"]
    parts += ["--threshold", output / "SSD.threshold.safetensors", "--out", scores]
    out.print(plain(f"  {shlex.join([program, *map(str, parts)])}"), soft_wrap=True)
