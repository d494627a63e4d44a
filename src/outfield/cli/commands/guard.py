"""outfield guard build, check and show."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outfield.cli.app import Device, command, group, log, print_groups
from outfield.cli.options import (
    Crop,
    Input,
    Interpolation,
    Mean,
    Output,
    Size,
    Std,
    Trust,
    backbone_file,
    check_places,
    feature_file,
    image_files,
    preprocessing_settings,
)
from outfield.errors import InputError, StorageError
from outfield.extras import check_installed
from outfield.progress import bar

if TYPE_CHECKING:
    from outfield.guard import Guard, Verdicts


FOUND, UNREAD = 10, 11
"""Exit codes where --fail-on-ood was given: an image is OOD; one could not be read (also without it, where none could)."""
OUTPUTS = (".csv", ".parquet", ".json", ".jsonl")
guards = group(
    "guard",
    "A verdict on an image, or on a row of a table: build a guard of what is usual, and check what comes later.",
)

OnError = Annotated[
    str, typer.Option("--on-error", help="What an image that cannot be read does: skip tells it in its row, fail ends.")
]
Workers = Annotated[int | None, typer.Option(min=0, help="Processes that decode images.")]


@command(
    "outfield guard build cifar10.safetensors --images photos/train --held-out photos/val -o my.guard",
    "outfield guard build timm:resnet18@weights.safetensors --images photos/train -o my.guard --keep 0.99 --views flip",
    of=guards,
    name="build",
)
def guard_build(
    network: Annotated[
        str,
        typer.Argument(
            help=r"A file of outfield train, timm:NAME\[@WEIGHTS.safetensors], torchvision:NAME\[@…], hf:FOLDER, FILE.onnx or "
            "FILE.pt2 (with --trust)."
        ),
    ],
    images: Annotated[str, typer.Option("--images", help="ID images, a folder (sub-folders are classes) or .npz.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="Where the guard goes (.guard).")],
    held_out: Annotated[
        str | None, typer.Option(help="ID images that the network has not seen; a fifth of --images if not given.")
    ] = None,
    keep: Annotated[float, typer.Option(help="Share of ID images that the guard accepts.")] = 0.95,
    views: Annotated[
        str | None,
        typer.Option(
            help="Average over views of each image: flip, six, how many, or auto for what stand-ins choose.",
            metavar="flip|six|N|auto",
        ),
    ] = None,
    detector: Annotated[
        str | None, typer.Option(help="Name of a detector; by itself several are chosen by stand-ins and fused.")
    ] = None,
    size: Size = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    interpolation: Interpolation = None,
    trust: Trust = False,
    float16: Annotated[
        bool, typer.Option("--float16", "--half", help="Round numbers, so that the file is half as large.")
    ] = False,
    max_train: Annotated[
        int, typer.Option("--max-train", "--most", min=1, help="Images that the detector is fitted on, at most.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of held-out images.")] = 0,
    on_error: Annotated[
        str, typer.Option("--on-error", help="What an image that cannot be read does: skip leaves it out, fail ends.")
    ] = "skip",
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Build a guard: network, preprocessing, detector and threshold in one file."""
    inputs = [
        *backbone_file(network),
        *image_files("the images", images),
        *image_files("the held-out images", held_out),
    ]
    check_places(inputs, [Output("--out", output, (".guard", ".safetensors"), "guards")])

    from outfield.backbone import Backbone
    from outfield.guard import ImagePlan

    settings = preprocessing_settings(size, crop, mean, std, interpolation)
    wanted = None if detector in (None, "auto") else detector
    plan = ImagePlan(
        detector=wanted,
        keep=keep,
        views=views,
        float16=float16,
        max_train=max_train,
        seed=seed,
        device=device,
        workers=workers,
        on_error=on_error,
    )  # which checks them before the network is loaded
    began = time.monotonic()
    source = plan.images(images)
    held = None if held_out is None else plan.images(held_out)
    with bar("opening the network"):
        backbone = Backbone.open(network, device, trust=trust, **settings)
    log.info("%s", backbone)
    made = plan.build(backbone, source, held)
    with bar("writing the guard"):
        made.save(output)
    low, high = made.threshold.kept_interval()
    log.info("%s", made)
    log.info("90 %% interval of the share of new ID images that it accepts: %.3f to %.3f", low, high)
    log.info("built in %.1f s → %s", time.monotonic() - began, output)


@command(
    "outfield guard check my.guard photo.jpg",
    "outfield guard check my.guard photos/ more/*.png --out verdicts.csv --fail-on-ood",
    "outfield guard check customers.guard new.csv --why",
    of=guards,
    name="check",
)
def guard_check(
    guard: Annotated[Path, typer.Argument(help="A guard that outfield guard build wrote.")],
    images: Annotated[
        list[str],
        typer.Argument(help="Image files, folders of them, or .npz; of a guard of rows tables or files of features."),
    ],
    json_out: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
    json_lines: Annotated[bool, typer.Option("--jsonl", help="Print a JSON object a line, as they are ready.")] = False,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write all of it here: .csv, .parquet, .json or .jsonl.")
    ] = None,
    fail_on_ood: Annotated[
        bool,
        typer.Option(
            "--fail-on-ood", help=f"Exit with {FOUND} where an image is OOD, {UNREAD} where one could not be read."
        ),
    ] = False,
    why: Annotated[
        bool, typer.Option("--why", help="Of a guard of a table: tell of each OOD row the columns that count most.")
    ] = False,
    on_error: OnError = "skip",
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Check images: for each its class, score, p-value, verdict, and the member of the detector that triggered it."""
    if json_out and json_lines:
        raise InputError("--json and --jsonl both say what is printed; give one of them")
    if output is not None:
        files = [place for image in images for place in image_files("an image", image)]
        check_places([Input("the guard", guard), *files], [Output("--out", output, OUTPUTS, "verdicts")])
        if output.suffix == ".parquet":
            check_installed("tables", "pyarrow")
    _check_images(images, on_error)

    from outfield.devices import resolve_device
    from outfield.guard import Guard, Verdicts, as_json, as_json_lines, write_verdicts

    resolve_device(device)
    model = Guard.load(guard, device)
    if why:
        _check_why(guard, model)
    found, lost, what = [], None, model.reader.unit
    stream = model.stream(images, on_error=on_error, workers=workers, why=why)
    with bar(f"checking {what}", unit=what) as advance:
        for verdict in stream:
            found.append(verdict)
            advance(len(found))
            if json_lines and lost is None:
                lost = _told(as_json_lines([verdict]), end=output is None)
    verdicts = Verdicts(found, what)
    if output is not None:
        write_verdicts(output, verdicts)
    if json_out:
        sys.stdout.write(as_json(verdicts))
    elif not json_lines and output is None:
        _print(verdicts)
    _sum_up(verdicts, output)
    if lost is not None:
        raise lost
    if fail_on_ood and verdicts.is_ood.any():
        raise typer.Exit(FOUND)
    unread = len(verdicts.failed)
    if unread and (fail_on_ood or unread == len(verdicts)):
        raise typer.Exit(UNREAD)  # what could not be checked has not passed


@command("outfield guard show my.guard", of=guards, name="show")
def guard_show(guard: Annotated[Path, typer.Argument(help="A guard that outfield guard build wrote.")]) -> None:
    """Tell what is in a guard, without building its network."""
    from outfield.guard import describe_guard

    print_groups(f"{guard}", {"A guard": list(describe_guard(guard).items())})


def _check_images(images: list[str], on_error: str) -> None:
    """Before the guard is loaded: whether images that are to be an error where they cannot be read are there at all.

    Raises:
        InputError: There is no such way to treat errors.
        StorageError: An image is not there, and that is to be an error.
    """
    from outfield.config import require_choice
    from outfield.images import ON_ERROR

    require_choice("on_error", on_error, ON_ERROR)
    for image in images if on_error == "fail" else []:
        if not os.path.lexists(image):
            raise StorageError(f"cannot read {image}: there is no such file or folder")


def _check_why(guard: Path, model: Guard) -> None:
    """Refuse --why for a guard that looks at no table."""
    if model.takes != "table":
        what = "features, whose columns mean nothing by themselves" if model.takes == "features" else model.takes
        raise InputError(
            f"--why tells the columns of a table, but {guard} looks at {what}; leave it out (triggered_by says which member of "
            "the detector counts most), or give a guard of a table: outfield guard rows TABLE -o my.guard"
        )


def _told(text: str, *, end: bool) -> SystemExit | StorageError | None:
    """Print a line at once; where nobody reads any more, end, or give what ends it once a file is written."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (SystemExit, StorageError) as error:
        if end:
            raise
        return error
    return None


def _print(verdicts: Verdicts) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # as it is: brackets in a name are no markup

    shown = Table(header_style="bold", box=None, pad_edge=False)
    names = [("file", 0), ("class", 0), ("score", 1), ("p-value", 1), ("verdict", 0), ("triggered by", 0)]
    more = [*dict.fromkeys(name for one in verdicts for name in one.more)]
    for name, right in (*names, *((name, 0) for name in more)):
        shown.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ignore")
    for one in verdicts:
        where = Text(one.file or "")
        if one.error is not None:
            shown.add_row(where, "", "", "", Text("error", "red"), Text(one.error))
            continue
        colour = "bold red" if one.is_ood else "green"
        numbers = (f"{one.score:.4g}", f"{one.p_value:.4f}")
        said = [Text(text or "") for text in (one.triggered_by, *(one.more.get(name) for name in more))]
        shown.add_row(where, Text(one.label), *numbers, Text(one.word, colour), *said)
    natural = Console(width=10_000).measure(shown).maximum
    console = Console(highlight=False, width=natural)
    with console.capture() as text:
        console.print(shown)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.get().splitlines()))


def _sum_up(verdicts: Verdicts, output: Path | None) -> None:
    failed = len(verdicts.failed)
    if failed:
        log.warning("%s of %s %s could not be read", f"{failed:,}", f"{len(verdicts):,}", verdicts.what)
    where = "" if output is None else f" → {output}"
    if len(verdicts) > 1 or output is not None:
        checked, ood = f"{len(verdicts) - failed:,}", f"{int(verdicts.is_ood.sum()):,}"
        log.info("%s %s, %s OOD%s", checked, verdicts.what, ood, where)


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
