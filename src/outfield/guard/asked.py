"""What a guard is to be built of, checked before a network is loaded."""

from __future__ import annotations

import os
from typing import Any

import torch

from outfield.backbone.views import MOST_NAMED, Views
from outfield.config import require, require_choice, require_number
from outfield.detectors.auto import Auto
from outfield.detectors.base import Detector
from outfield.detectors.choosing_views import AUTO, CHOICES
from outfield.detectors.registry import DETECTORS
from outfield.devices import resolve_device
from outfield.errors import InputError, StorageError
from outfield.files.paths import PathLike, as_path
from outfield.images.files import open_images
from outfield.images.skipped import ON_ERROR
from outfield.images.source import ImageSource
from outfield.scores.threshold import check_keep


def check_asked(
    detector: Detector | str | None,
    keep: float,
    views: Any,
    seed: int,
    half: bool,
    most: int | None,
    device: str | torch.device,
    on_error: str,
) -> None:
    """Check settings of :meth:`outfield.Guard.build`.

    Raises:
        InputError: one of them cannot be.
    """
    if isinstance(detector, str):
        DETECTORS[detector]
    else:
        require(
            detector is None or isinstance(detector, Detector), "detector", detector, "a detector, its name, or None"
        )
    check_keep(keep)
    if views_of(views) is None and not (detector in (None, Auto.__name__) or isinstance(detector, Auto)):
        raise no_choice(detector if isinstance(detector, str) else type(detector).__name__)
    require_number("seed", seed, least=0, whole=True)
    require(isinstance(half, bool), "half", half, "True or False")
    if most is not None:
        require_number("most", most, least=1, whole=True)
    require_choice("on_error", on_error, ON_ERROR)
    resolve_device(device)


def no_choice(detector: str) -> InputError:
    """The error where views are to be chosen for a detector that nothing chooses for."""
    return InputError(
        f"views are chosen for Auto alone, by its stand-ins; with {detector} name them: {', '.join(CHOICES)}"
    )


def views_of(views: Any) -> Views | None:
    """The views that are averaged over; None for "auto", where stand-ins choose.

    Raises:
        InputError: there are no such views.
    """
    if isinstance(views, str) and views == AUTO:
        return None
    try:
        return Views.of(views)
    except InputError as error:
        raise InputError(
            f"views is {views!r:.100}; it must be flip, six, a number from 1 to {MOST_NAMED}, {AUTO}, for what stand-ins choose, "
            "or in Python an outfield.Views"
        ) from error


def opened_images(given: ImageSource | PathLike, on_error: str) -> ImageSource:
    """The images of a folder or an ``.npz``; a source stays what it is.

    Raises:
        OutfieldError: there is none, or nothing in it.
    """
    if isinstance(given, ImageSource):
        return given
    path = as_path(given, "images")
    if not os.path.lexists(path):
        raise StorageError(
            f"cannot read {path}: there is no such file or folder; images are a folder, whose sub-folders are the classes, or an "
            ".npz"
        )
    return open_images(path, on_error=on_error)
