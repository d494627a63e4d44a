"""What a user names on the command line, as files: FILE#SET, NAME=FILE, timm:NAME@FILE, a set in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from outfield.cli.places import Input

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


def setting_texts(items: list[str] | None) -> dict[str, str]:
    """``["NAME=VALUE", …]`` as a dictionary."""
    return dict(item.partition("=")[::2] for item in items or [])
