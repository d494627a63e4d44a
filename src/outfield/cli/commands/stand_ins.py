"""outfield stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outfield.cli.app import command, log
from outfield.cli.options import DataFolder, Download, Number, Split, Text
from outfield.percent import counted
from outfield.progress import bar


@command(
    "outfield stand-ins photos --out photos-ood",
    "outfield stand-ins cifar10 --data sets --out made --kinds turned90,jigsaw8 --count 1000 --seed 1",
)
def stand_ins(
    images: Annotated[str, Argument(help="ID images: a folder, .npz, or a data set's name with --data.")],
    output: Annotated[Path, Option("--out", "-o", help="A new folder, LEVEL/KIND/NUMBER.png and examples.png.")],
    kinds: Annotated[Text, Option(help="Kinds, with commas between. Default: all.")] = None,
    count: Annotated[Number, Option(min=1, help="Images of each kind. Default: one of each ID image.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of everything that is drawn.")] = 0,
    data: DataFolder = None,
    download: Download = False,
    split: Split = "test",
) -> None:
    """Make images that stand for OOD data out of ID images: turned, mixed, cut into tiles, …, with a sheet of examples."""
    from outfield.images import SHEET, check_free, find, open_images, write_stand_ins
    from outfield.images import stand_ins as make

    check_free(output)
    with bar("looking for the images"):
        source = open_images(images) if data is None else find(images, split, data, download)
    chosen = None if kinds is None else [name.strip() for name in kinds.split(",") if name.strip()]
    made = make(source, chosen, seed, count)
    write_stand_ins(made, output)
    total = sum(len(one) for one in made.values())
    log.info("%s of %s → %s; examples: %s", counted(total, "image"), counted(len(made), "kind"), output, output / SHEET)
