"""Image data sets: by name, from a folder of images, from arrays; and which of them are near, mid and far from which."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from outfield.catalogue import DATASETS, NamedSet
from outfield.config import require, require_number
from outfield.errors import FileFormatError, InputError, StorageError, UnknownNameError
from outfield.imagefiles import NPZ_ARRAYS, ImageFiles, image_names, open_images
from outfield.images import ImageSource
from outfield.layouts import Layout, torchvision_datasets
from outfield.storage import PathLike, make_folder

LEVELS = ("near", "mid", "far")
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Protocol:
    """An ID set, the OOD sets to tell it from by their distance, and the one setting that depends on the ID set.

    Args:
        id: the ID set's name.
        near: names of the OOD sets most like it.
        mid: those in between.
        far: those least like it.
        neighbours: k of KNN.

    Raises:
        InputError: no OOD set at all, or a set that is named twice.
    """

    id: str
    near: tuple[str, ...]
    mid: tuple[str, ...]
    far: tuple[str, ...]
    neighbours: int = 50

    def __post_init__(self) -> None:
        for level in LEVELS:
            names = getattr(self, level)
            require(not isinstance(names, str), level, names, "a tuple of names")
            object.__setattr__(self, level, tuple(names))  # a list, as files have it, is as good
        require_number("neighbours", self.neighbours, least=1, whole=True)
        if not self.ood:
            raise InputError(f"the protocol of {self.id} has no OOD set; name at least one in {', '.join(LEVELS)}")
        names = (self.id, *self.ood)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"the protocol of {self.id} names {', '.join(twice)} more than once; a set has one role")

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """OOD sets by level."""
        return {level: getattr(self, level) for level in LEVELS}

    @property
    def ood(self) -> tuple[str, ...]:
        """All OOD sets, nearest first."""
        return self.near + self.mid + self.far

    def level_of(self, name: str) -> str:
        """The level of an OOD set."""
        for level, names in self.levels.items():
            if name in names:
                return level
        raise UnknownNameError(f"{name!r} is no OOD set of {self.id}; it has {', '.join(self.ood)}")

    def with_ood(self, level: str, name: str) -> Protocol:
        """The same with one more OOD set.

        >>> PROTOCOLS["cifar10"].with_ood("far", "mine").far
        ('textures', 'svhn', 'mine')
        """
        if level not in LEVELS:
            raise UnknownNameError(f"there is no level {level!r}; there are {', '.join(LEVELS)}")
        more: dict[str, Any] = {level: (*self.levels[level], name)}
        return replace(self, **more)


PROTOCOLS = {
    "cifar10": Protocol(
        "cifar10", near=("cifar100", "tinyimagenet"), mid=("lsun", "places365"), far=("textures", "svhn"), neighbours=50
    ),
    "cifar100": Protocol(
        "cifar100",
        near=("cifar10", "tinyimagenet"),
        mid=("lsun", "places365"),
        far=("textures", "svhn"),
        neighbours=200,
    ),
}
"""The paper's two."""


def title(name: str) -> str:
    """How a set is called in tables; its own name where there is no better one."""
    return DATASETS[name].title if name in DATASETS else name


def class_title(name: str, label: int) -> str:
    """How a class of a set is called in figures; its number where there is no better name.

    >>> class_title("cifar10", 3), class_title("mine", 3)
    ('cat', '3')
    """
    classes = DATASETS[name].classes if name in DATASETS else ()
    return classes[label] if 0 <= label < len(classes) else str(label)


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
        name: a row of :data:`outfield.catalogue.DATASETS`, or any name whose ``.npz`` or folder of images is there.
        split: "train" or "test".
        folder: where sets are kept.
        download: get the set by torchvision, if it can, where the set is not in the folder or is damaged.

    Raises:
        UnknownNameError: neither a known set nor one that is there.
        StorageError: the set is not there (the message lists each place and what is expected there), or cannot be downloaded.
        FileFormatError: a file of it is missing, truncated or changed.
    """
    require(split in SPLITS, "split", split, " or ".join(SPLITS))
    require(Path(name).name == name and name not in ("", ".."), "name", name, "the name of a set, without folders")
    folder = Path(folder)
    if not download and not folder.is_dir():
        raise StorageError(f"cannot look for {name} in {folder}: there is no such folder")
    places = list(_places(name, split, folder))
    can_download = download and name in DATASETS and DATASETS[name].torchvision is not None
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
    return path.is_dir() and next(image_names(path), None) is not None


def _has_undivided_images(path: Path) -> bool:
    return not any((path / split).is_dir() for split in (*SPLITS, "val")) and _has_images(path)


def _nowhere(name: str, split: str, folder: Path, places: list[_Place]) -> InputError | StorageError:
    looked = "".join(f"\n  {place.path}: {place.what}" for place in places)
    if name not in DATASETS:
        known = ", ".join(DATASETS)
        return UnknownNameError(f"unknown set {name!r}; known: {known}. A set of your own ({split}) may lie at{looked}")
    row = DATASETS[name]
    hint = "\ndownload=True gets it" if row.torchvision else "\nit has to be got by hand"
    return StorageError(f"{row.title} ({split}) is not in {folder}; looked for{looked}{hint}{_home(row)}")


def _home(row: NamedSet) -> str:
    return f"; its home is {row.home}" if row.home else ""


def _download(name: str, split: str, folder: Path) -> None:
    row = DATASETS[name]
    cls = getattr(torchvision_datasets(folder), row.torchvision or "")
    make_folder(folder)
    try:
        cls(folder, download=True, **row.options[split])
    except (OSError, RuntimeError, EOFError, tarfile.TarError) as error:
        raise StorageError(f"cannot download {row.title} to {folder}: {error}{_home(row)}") from error
