"""outfield choose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outfield.cli import options as opt
from outfield.cli.app import Device, command, log, print_table
from outfield.cli.options import File, Texts
from outfield.errors import InputError


@command(
    "outfield choose train.safetensors --held-out val.safetensors --near turned=turned.safetensors --far "
    "jigsaw=jigsaw.safetensors -o detector.safetensors",
    "outfield choose train.npz --held-out val.npz --near mixed.npz --far blocks.npz -o d.safetensors --real svhn.npz --plot "
    "choice.png --csv trials.csv",
)
def choose(
    train: Annotated[str, Argument(help=f"ID training data, {opt.FEATURES}.")],
    held_out: Annotated[str, Option(help="ID data that neither the network nor a detector was trained on.")],
    output: Annotated[Path, Option("--out", "-o", help="File of the chosen detector (.safetensors).")],
    near: opt.Near = None,
    far: opt.Far = None,
    real: Annotated[Texts, Option(help="Real OOD data, FILE or NAME=FILE, to judge the choice.")] = None,
    most_members: Annotated[int, Option(min=1, help="Members of the sum, at most.")] = 8,
    seed: Annotated[int, Option(min=0, help="Seed of the split of held-out rows.")] = 0,
    csv_out: Annotated[File, Option("--csv", help="File for the figures of every sum and candidate.")] = None,
    plot: Annotated[File, Option(help="Picture of stand-ins against real sets (.png); needs --real.")] = None,
    device: Device = "auto",
) -> None:
    """Choose the members of a fused detector by stand-ins, made-up OOD data, and fit it; real OOD data decides nothing."""
    given = {"--near": near, "--far": far, "--real": real}
    sets = {option: opt.named_sets(option, sources) for option, sources in given.items()}
    if not sets["--near"] and not sets["--far"]:
        raise InputError("there are no stand-ins; name at least one set with --near or --far (see: outfield stand-ins)")
    if plot is not None and not sets["--real"]:
        raise InputError("--plot draws stand-ins against real sets; name at least one with --real")
    inputs: list[opt.Input] = [("the training data", train), ("the held-out data", held_out)]
    inputs += [(f"the set {name} of {option}", file) for option, named in sets.items() for name, file in named.items()]
    pictures = [opt.Output("--csv", csv_out), opt.Output("--plot", plot, (".png",))]
    opt.check_places(inputs, [opt.Output("--out", output, (".safetensors",)), *pictures])

    from outfield.detectors import choose as run_choice
    from outfield.features import open_or_read
    from outfield.files import write_bytes
    from outfield.report import choice_figure, in_words, save_figure, trials_csv, trials_table

    choice = run_choice(
        open_or_read(train).in_memory(), open_or_read(held_out).in_memory(),
        {level: opt.opened(sets[f"--{level}"]) for level in ("near", "far") if sets[f"--{level}"]},
        most_members=most_members, real=opt.opened(sets["--real"]), seed=seed, device=device,
    )  # fmt: skip
    choice.detector.save(output)
    if csv_out is not None:
        write_bytes(csv_out, trials_csv(choice).encode())
    if plot is not None:
        save_figure(choice_figure(choice), plot)
    print_table(trials_table(choice), notes=True)
    log.info("chose %s of %s candidates → %s", in_words(choice.chosen), len(choice.singles), output)
