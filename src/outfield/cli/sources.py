"""What a user names on the command line, as files: FILE#SET, NAME=FILE, timm:NAME@FILE, a set in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from outfield.cli.places import Input
from outfield.errors import InputError

FEATURES = (
    "a FeatureSet: .safetensors, .npz, .npy (features alone), .csv or .parquet; FILE.npz#SET for one set of several"
)
DATA_FOLDER = (
    "Folder that holds the data sets (NAME_train.npz, NAME_test.npz, NAME.npz, torchvision's layout, or folders of "
    "images)."
)

Download = Annotated[
    bool, typer.Option("--download", help="Get sets that are not there, where their publishers offer them to everyone.")
]


def feature_file(what: str, source: str | None) -> list[Input]:
    """The file of ``FILE`` or ``FILE#SET``."""
    from outfield.features.formats import split_source

    return [] if source is None else [Input(what, split_source(source)[0])]


def image_files(what: str, source: str | None, folder: Path | None = None) -> list[Input]:
    """The file of images, if it is one; of a set by name, those in the folder that may hold it."""
    if source is None:
        return []
    names = [source] if folder is None else [f"{source}_train.npz", f"{source}_test.npz", f"{source}.npz"]
    return [Input(what, path) for path in (Path(folder or "", name) for name in names) if os.path.isfile(path)]


def backbone_file(backbone: str) -> list[Input]:
    """The file in ``FILE`` or ``timm:NAME@FILE``."""
    path = Path(backbone.partition("@")[2] if ":" in backbone.partition("@")[0] else backbone)
    return [Input("the backbone", path)] if os.path.isfile(path) else []


def named(source: str) -> tuple[str, str]:
    """``NAME=FILE`` or ``FILE`` as name and source; a file whose own name has a = in it is found first."""
    from outfield.features.formats import split_source

    path, part = split_source(source)
    name, equals, file = source.partition("=")
    if equals and not os.path.isfile(path):
        return name, file
    return part or path.stem, source


Size = Annotated[
    str | None,
    typer.Option(help="Resize to this, N or HxW; with --crop, N is the shorter edge's.", metavar="N|HxW"),
]
Crop = Annotated[str | None, typer.Option(help="Cut this out of the middle, N or HxW.", metavar="N|HxW")]
Mean = Annotated[str | None, typer.Option(help="Of each channel in [0, 1]; one number for grey.", metavar="R,G,B")]
Std = Annotated[str | None, typer.Option(help="Of each channel; one number for grey.", metavar="R,G,B")]
Interpolation = Annotated[
    str | None, typer.Option(help="nearest, bilinear, bicubic, lanczos, box or hamming, as Pillow does it.")
]


def preprocessing_settings(
    size: str | None, crop: str | None, mean: str | None, std: str | None, interpolation: str | None
) -> dict[str, Any]:
    """Settings of a network's preprocessing as ``Backbone.open`` takes them, without those that are not given.

    Raises:
        InputError: a text that is no such setting.

    >>> preprocessing_settings("256", "224x192", "0.5,0.5,0.5", None, None)
    {'size': 256, 'crop': (224, 192), 'mean': (0.5, 0.5, 0.5)}
    """
    found = {
        "size": _sides("--size", size),
        "crop": _sides("--crop", crop),
        "mean": _numbers("--mean", mean),
        "std": _numbers("--std", std),
        "interpolation": interpolation,
    }
    return {name: value for name, value in found.items() if value is not None}


def _sides(option: str, text: str | None) -> int | tuple[int, ...] | None:
    if text is None:
        return None
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdigit() and len(side) < 6 for side in sides):
        raise InputError(f"{option} is {text!r}; it must be N or HEIGHTxWIDTH, such as 224 or 224x160")
    return int(sides[0]) if len(sides) == 1 else tuple(int(side) for side in sides)


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(number) for number in text.split(","))
    except ValueError as error:
        raise InputError(f"{option} is {text!r}; it must be a number for each channel, such as 0.5,0.5,0.5") from error


def setting_texts(items: list[str] | None) -> dict[str, str]:
    """``["NAME=VALUE", …]`` as a dictionary."""
    return dict(item.partition("=")[::2] for item in items or [])
