"""Image data sets by name: where they may lie, and how they are downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from outfield.config import require
from outfield.errors import FileFormatError, InputError, StorageError, UnknownNameError
from outfield.files.paths import PathLike, as_path
from outfield.images.catalogue import DATASETS, NamedSet
from outfield.images.files import NPZ_ARRAYS, ImageFiles, open_images
from outfield.images.folders import image_names
from outfield.images.published import Layout
from outfield.images.source import ImageSource

SPLITS = ("train", "test")


@dataclass(frozen=True)
class _Place:
    """A path where a set may lie, how it is then read, and whether that is how the set is published."""

    path: Path
    what: str
    read: Callable[[Path], ImageSource]
    there: Callable[[Path], bool] = os.path.exists
    published: bool = False


def find(name: str, split: str, folder: PathLike, download: bool = False) -> ImageSource:
    """The images of a set, from wherever it lies in a folder.

    Looked for, in this order: ``NAME_SPLIT.npz``; ``NAME.npz`` (test only); the published set as its archive unpacks or as
    torchvision lays it out, in the folder or in its sub-folder ``NAME``; images in ``NAME/SPLIT/``; images in ``NAME/`` (test
    only, and only if no split has a folder of its own there). The same data is so never taken for both splits.

    Args:
        name: a row of :data:`outfield.images.catalogue.DATASETS`, or any name whose ``.npz`` or folder of images is there.
        split: "train" or "test".
        folder: where sets are kept.
        download: get the set, where its publisher offers it to everyone, if it is not in the folder or is damaged.

    Raises:
        UnknownNameError: neither a known set nor one that is there.
        StorageError: the set is not there (the message lists each place and what is expected there), or cannot be downloaded.
        FileFormatError: a file of it is missing, truncated or changed.
    """
    require(isinstance(split, str) and split in SPLITS, "split", split, " or ".join(SPLITS))
    plain = isinstance(name, str) and Path(name).name == name and name not in ("", "..") and "\0" not in name
    require(plain, "name", name, "the name of a set, without folders")
    folder = as_path(folder, "folder")
    if not download and not os.path.isdir(folder):
        raise StorageError(f"cannot look for {name} in {folder}: there is no such folder")
    places = list(_places(name, split, folder))
    can_download = download and name in DATASETS and split in DATASETS[name].downloads
    source = _first(places, skip_damaged=can_download)
    if source is None and can_download:
        _download(name, split, folder)
        source = _first(places)
    if source is None:
        raise _nowhere(name, split, folder, places)
    source.name = name
    return source


def _first(places: list[_Place], skip_damaged: bool = False) -> ImageSource | None:
    """What lies at the first place where something is; None also for a damaged published set, if that may be skipped."""
    for place in places:
        if place.there(place.path):
            try:
                return place.read(place.path)
            except FileFormatError:
                if not (skip_damaged and place.published):
                    raise
                return None
    return None


def _places(name: str, split: str, folder: Path) -> Iterator[_Place]:
    """Where to look, in order."""
    row = DATASETS.get(name, NamedSet(name))
    archives = [f"{name}_{split}.npz"] + [f"{name}.npz"] * (split == "test")
    for archive in archives:
        yield _Place(folder / archive, f"an .npz of {NPZ_ARRAYS}", open_images)
    for root in (folder, folder / name):
        for layout in row.layouts:
            if split in layout.places:
                read = partial(_read_whole, layout=layout, expected=row.counts.get(split))
                yield _Place(root / layout.places[split], f"{row.title}, {layout.what}", read, published=True)
    for owner in (name, *row.folders):
        yield _Place(folder / owner / split, "a folder of images", ImageFiles.of, _has_images)
        if split == "test":
            yield _Place(
                folder / owner, "a folder of images, not divided into splits", ImageFiles.of, _has_undivided_images
            )


def _read_whole(path: Path, layout: Layout, expected: int | None) -> ImageSource:
    """What a layout reads, if it is as many images as were published."""
    try:
        source = layout.read(path)
    except InputError as error:
        raise FileFormatError(f"{path} does not lead to the published set: {error}") from error
    if expected is not None and len(source) != expected:
        raise FileFormatError(f"{path} leads to {len(source):,} images, but the published set has {expected:,}")
    return source


def _has_images(path: Path) -> bool:
    return os.path.isdir(path) and next(image_names(path), None) is not None


def _has_undivided_images(path: Path) -> bool:
    return not any(os.path.isdir(path / split) for split in (*SPLITS, "val")) and _has_images(path)


def _nowhere(name: str, split: str, folder: Path, places: list[_Place]) -> InputError | StorageError:
    looked = "".join(f"\n  {place.path}: {place.what}" for place in places)
    if name not in DATASETS:
        known = ", ".join(DATASETS)
        return UnknownNameError(f"unknown set {name!r}; known: {known}. A set of your own ({split}) may lie at{looked}")
    row = DATASETS[name]
    by_itself = "\ndownload=True gets it"
    hint = by_itself if split in row.downloads else "\nit has to be got by hand"
    return StorageError(f"{row.title} ({split}) is not in {folder}; looked for{looked}{hint}{_home(row)}")


def _home(row: NamedSet) -> str:
    return f"; its home is {row.home}" if row.home else ""


def _download(name: str, split: str, folder: Path) -> None:
    row = DATASETS[name]
    try:
        for part in row.downloads[split]:
            part.fetch(folder)
    except (StorageError, FileFormatError) as error:
        raise type(error)(f"cannot get {row.title}: {error}{_home(row)}") from error
