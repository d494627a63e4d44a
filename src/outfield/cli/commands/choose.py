"""outfield choose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outfield.cli.app import Device, command, log, print_table, say
from outfield.cli.options import FEATURES, Far, Near, Output, check_places, feature_file, named_sets, opened, set_files
from outfield.errors import InputError


@command(
    "outfield choose train.safetensors --held-out val.safetensors --near turned=turned.safetensors --far "
    "jigsaw=jigsaw.safetensors -o detector.safetensors",
    "outfield choose train.npz --held-out val.npz --near mixed.npz --far blocks.npz -o d.safetensors --real svhn.npz --plot "
    "choice.png --csv trials.csv",
)
def choose(
    train: Annotated[str, typer.Argument(help=f"ID training data, {FEATURES}.")],
    held_out: Annotated[str, typer.Option(help="ID data that neither the network nor a detector was trained on.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="Where the chosen detector goes (.safetensors).")],
    near: Near = None,
    far: Far = None,
    real: Annotated[
        list[str] | None,
        typer.Option(
            "--real", help="Real OOD data, looked at after the choice, FILE or NAME=FILE; any number of times."
        ),
    ] = None,
    most_members: Annotated[int, typer.Option(min=1, help="How many detectors the sum may have.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Of the split of held-out rows.")] = 0,
    csv_out: Annotated[
        Path | None, typer.Option("--csv", help="Write the figures of every sum and candidate here.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw stand-ins against real sets here (.png); needs --real.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Choose the members of a fused detector by stand-ins for OOD data, and fit it; real OOD data decides nothing."""
    sets = {option: named_sets(option, given) for option, given in (("--near", near), ("--far", far), ("--real", real))}
    if not sets["--near"] and not sets["--far"]:
        raise InputError("there are no stand-ins; name at least one set with --near or --far (see: outfield stand-ins)")
    if plot is not None and not sets["--real"]:
        raise InputError("--plot draws stand-ins against real sets; name at least one with --real")
    inputs = [*feature_file("the training data", train), *feature_file("the held-out data", held_out)]
    inputs += [place for option, found in sets.items() for place in set_files(option, found)]
    outputs = [Output("--out", output, (".safetensors",), "detectors")]
    outputs += [] if csv_out is None else [Output("--csv", csv_out)]
    outputs += [] if plot is None else [Output("--plot", plot, (".png",), "pictures")]
    check_places(inputs, outputs)

    from outfield.detectors import choose as run_choice
    from outfield.features import open_or_read
    from outfield.files import write_bytes
    from outfield.report import choice_figure, in_words, trials_csv, trials_table

    choice = run_choice(
        open_or_read(train).in_memory(),
        open_or_read(held_out).in_memory(),
        {level: opened(sets[f"--{level}"]) for level in ("near", "far") if sets[f"--{level}"]},
        most_members=most_members,
        real=opened(sets["--real"]),
        seed=seed,
        device=device,
    )
    choice.detector.save(output)
    if csv_out is not None:
        write_bytes(csv_out, trials_csv(choice).encode())
    if plot is not None:
        from outfield.report import save_figure as save

        save(choice_figure(choice), plot)
    table = trials_table(choice)
    print_table(table)
    for note in table.notes:
        say(note)
    log.info("chose %s of %s candidates → %s", in_words(choice.chosen), len(choice.singles), output)
