"""outfield extract."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from outfield.cli.app import Device, command, log
from outfield.cli.options import (
    DATA_FOLDER,
    Crop,
    Download,
    Interpolation,
    Mean,
    Output,
    Size,
    Std,
    Trust,
    backbone_file,
    check_places,
    image_files,
    preprocessing_settings,
)
from outfield.errors import InputError
from outfield.percent import percent
from outfield.progress import bar


@command(
    "outfield extract cifar10.safetensors photos --out photos.safetensors",
    "outfield extract timm:resnet50 images.npz --out features.safetensors --odin",
    "outfield extract cifar10.safetensors photos --out photos.safetensors --stages --views six",
)
def extract(
    backbone: Annotated[
        str,
        typer.Argument(
            help=r"A file of outfield train, timm:NAME\[@WEIGHTS.safetensors], torchvision:NAME\[@…], hf:FOLDER, FILE.onnx or "
            "FILE.pt2 (with --trust)."
        ),
    ],
    images: Annotated[str, typer.Argument(help="A folder of images, .npz, or a data set's name with --data.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="Where the features go (.safetensors or .npz).")],
    data: Annotated[Path | None, typer.Option(help=DATA_FOLDER)] = None,
    download: Download = False,
    split: Annotated[str, typer.Option(help="train or test, of a named set.")] = "test",
    stages: Annotated[bool, typer.Option("--stages", help="Also pooled outputs of blocks: stage1, stage2, ….")] = False,
    views: Annotated[
        str | None, typer.Option(help="Views of each image to average over; each costs a pass.", metavar="flip|six|N")
    ] = None,
    odin: Annotated[bool, typer.Option("--odin", help="Also the logits for ODIN (three times the work).")] = False,
    labels: Annotated[
        bool | None,
        typer.Option(
            "--labels/--no-labels",
            help="Keep labels. Default: where classes are the network's by name, or --split train.",
        ),
    ] = None,
    on_error: Annotated[
        str, typer.Option("--on-error", help="Images that cannot be read: skip leaves them out, fail ends.")
    ] = "fail",
    size: Size = None,
    crop: Crop = None,
    mean: Mean = None,
    std: Std = None,
    interpolation: Interpolation = None,
    trust: Trust = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at once; halved where memory runs out.")] = 512,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes that decode images.")] = None,
    device: Device = "auto",
) -> None:
    """Run images through a classifier once: features, spread, logits and last layer, for fit, score and evaluate."""
    check_places(
        [*backbone_file(backbone), *image_files("the images", images, data)],
        [Output("--out", output, (".safetensors", ".npz"), "features")],
    )

    from outfield.backbone import Backbone, Odin, Views, accuracy
    from outfield.config import require_choice
    from outfield.images import ON_ERROR, find, open_images

    chosen, settings = Views.of(views), preprocessing_settings(size, crop, mean, std, interpolation)
    require_choice("--on-error", on_error, ON_ERROR)
    with bar("looking for the images"):
        found_by_name = data is not None
        source = find(images, split, data, download) if data is not None else open_images(images, on_error=on_error)
    if labels and source.labels is None:
        raise InputError(f"{source.name} has no labels; leave out --labels")
    if labels is None and (source.classes is None or found_by_name):
        labels = found_by_name and split == "train"
    with bar("opening the network"):
        network = Backbone.open(backbone, device, trust=trust, **settings)
    log.info("%s", network)
    began = time.monotonic()
    found = network.extract(
        source,
        stages=stages,
        views=chosen,
        odin=Odin() if odin else None,
        batch_size=batch_size,
        workers=workers,
        labels=labels,
        on_error=on_error,
    )
    seconds = time.monotonic() - began
    if found.labels is not None:
        log.info("accuracy of the network on these images: %s", percent(accuracy(found)))
    with bar("writing the features"):
        found.save(output)
    log.info("%s images in %.1f s (%s/s) → %s", f"{len(found):,}", seconds, f"{len(found) / seconds:,.0f}", output)
