"""outfield demo and outfield toy: the studies that ship with the package."""

from __future__ import annotations

import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outfield.cli.app import Device, command, log, print_table, say, write_results
from outfield.cli.options import Output, check_places, check_report
from outfield.extras import check_installed
from outfield.progress import bar


@command("outfield demo --out demo", "outfield demo --live")
def demo(
    output: Annotated[Path, Option("--out", "-o", help="Folder for what the demo makes.")] = Path("demo"),
    live: Annotated[bool, Option("--live", help="Fit EBM and EnergyCorrected too: about 25 minutes.")] = False,
    device: Device = "auto",
) -> None:
    """CIFAR-10 and six OOD sets as features that ship with the package: fit, evaluate, choose thresholds, report."""
    check_report([], output)

    from outfield.report import write_overview
    from outfield.studies import run_demo

    made = run_demo(live, device)
    given = [name for name in made.detectors if name not in made.live]
    note = f"Fitted live: {', '.join(made.live)}."
    if given:
        note += f" Fitted beforehand on the same rows with the paper's settings: {', '.join(given)}."
    if made.left_out:
        left_out = ", ".join(made.left_out)
        note += f" Not shown, because it does not come fitted: {left_out}; outfield demo --live fits it."
    write_results(made.run, output, intro=made.about, notes=(note,), claims=False)
    write_overview(made.run, output / "demo.png")
    for name, model in made.detectors.items():
        model.save(output / f"{name}.safetensors")
        made.thresholds[name].save(output / f"{name}.threshold.safetensors")
    for name, data in made.sets.items():
        data.save(output / f"{name}.safetensors")
    say(note)
    say(f"Auto: {made.thresholds['Auto']}")
    say(f"Look at {output / 'report.html'} and {output / 'demo.png'}; all that was fitted lies beside. Try:")
    program = sys.argv[0] if Path(sys.argv[0]).name == "outfield" else "outfield"
    parts = ["score", output / "Auto.safetensors", output / "svhn.safetensors"]
    parts += ["--threshold", output / "Auto.threshold.safetensors", "--out", output / "scores.csv"]
    say(f"  {shlex.join([program, *map(str, parts)])}")
    say(f"And a guard of CIFAR-10 with its web page: {shlex.join([program, 'serve', '--demo'])}")


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
    check_installed("report", "matplotlib")
    names = ["cross", "grid"] if which is Toy.BOTH else [which.value]
    files = [output / name for name in (*(f"{name}.png" for name in names), "toy.json")]
    check_places([], [Output("--out", path, makes_folder=True) for path in files])

    from outfield.files import make_folder, write_bytes
    from outfield.report import toy_figure, toy_json, toy_table
    from outfield.studies import ToyRun, run_toys

    make_folder(output)
    runs: list[ToyRun] = []
    with bar("training toys", total=seeds * len(names), unit="runs") as advance:
        for name in names:
            mine = []
            for run in run_toys(name, seeds, jobs=jobs):
                mine.append(run)
                advance(len(runs) + len(mine))
            toy_figure(mine[0], output / f"{name}.png")
            runs += mine
    for name in names:
        print_table(toy_table([run for run in runs if run.data.name == name]))
        say()
    write_bytes(output / "toy.json", toy_json(runs).encode())
    log.info("wrote %s and %s", ", ".join(map(str, files[:-1])), files[-1])
