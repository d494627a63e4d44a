"""outfield extract."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outfield.cli import options as opt
from outfield.cli.app import Device, command, log
from outfield.cli.options import Text
from outfield.errors import InputError
from outfield.percent import counted, percent
from outfield.progress import bar


@command(
    "outfield extract cifar10.safetensors photos --out photos.safetensors",
    "outfield extract timm:resnet50 images.npz --out features.safetensors --odin",
    "outfield extract cifar10.safetensors photos --out photos.safetensors --stages --views six",
)
def extract(
    backbone: opt.Network,
    images: Annotated[str, Argument(help="A folder of images, .npz, or a data set's name with --data.")],
    output: Annotated[Path, Option("--out", "-o", help="File of the features (.safetensors or .npz).")],
    data: opt.DataFolder = None,
    download: opt.Download = False,
    split: opt.Split = "test",
    stages: Annotated[bool, Option("--stages", help="Also pooled outputs of blocks: stage1, stage2, ….")] = False,
    views: Annotated[Text, Option(help="Average over views of each image.", metavar="flip|six|N")] = None,
    odin: Annotated[bool, Option("--odin", help="Also the logits for ODIN (three times the work).")] = False,
    labels: Annotated[bool | None, Option(help="Keep labels. Default: with --split train, or known classes.")] = None,
    on_error: opt.OnError = "fail",
    size: opt.Size = None,
    crop: opt.Crop = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    interpolation: opt.Interpolation = None,
    trust: opt.Trust = False,
    batch_size: Annotated[int, Option(min=1, help="Images at once; halved where memory runs out.")] = 512,
    workers: opt.Decoders = None,
    device: Device = "auto",
) -> None:
    """Run images through a classifier once: features, spread, logits and last layer, for fit, score and evaluate."""
    inputs = [("the backbone", backbone), ("the images", images)]
    opt.check_places(inputs, [opt.Output("--out", output, (".safetensors", ".npz"))], folder=data)

    from outfield.backbone import Backbone, Odin, Views, accuracy
    from outfield.config import require_choice
    from outfield.images import ON_ERROR, find, open_images

    chosen, settings = Views.of(views), opt.preprocessing_settings(size, crop, mean, std, interpolation)
    require_choice("--on-error", on_error, ON_ERROR)
    with bar("looking for the images"):
        source = find(images, split, data, download) if data is not None else open_images(images, on_error=on_error)
    if labels and source.labels is None:
        raise InputError(f"{source.name} has no labels; leave out --labels")
    if labels is None and (source.classes is None or data is not None):
        labels = data is not None and split == "train"
    with bar("opening the network"):
        network = Backbone.open(backbone, device, trust=trust, **settings)
    log.info("%s", network)
    began = time.monotonic()
    found = network.extract(
        source, stages=stages, views=chosen, odin=Odin() if odin else None, batch_size=batch_size, workers=workers,
        labels=labels, on_error=on_error,
    )  # fmt: skip
    seconds = time.monotonic() - began
    if found.labels is not None:
        log.info("accuracy of the network on these images: %s", percent(accuracy(found)))
    with bar("writing the features"):
        found.save(output)
    log.info("%s in %.1f s (%s/s) → %s", counted(len(found), "image"), seconds, f"{len(found) / seconds:,.0f}", output)
