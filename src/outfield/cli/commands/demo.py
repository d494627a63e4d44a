"""outfield demo."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from outfield.cli.app import Device, command, say, write_results
from outfield.cli.options import check_report


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
