"""Detectors from files."""

from __future__ import annotations

from types import NoneType

import torch

from outfield.detectors.base import Detector
from outfield.detectors.registry import DETECTORS
from outfield.errors import FileFormatError
from outfield.files import storage
from outfield.files.paths import PathLike
from outfield.modes import own_modes

ENTRIES: dict[str, type | tuple[type, ...]] = {
    "detector": str,
    "settings": dict,
    "width": (int, NoneType),
    "notes": dict,
}
"""What the header of a detector's file holds."""


def load(path: PathLike) -> Detector:
    """Read a detector that ``save`` wrote: equal scores to the bit, no refit, nothing unpickled.

    Raises:
        StorageError: there is no such file.
        FileFormatError: it is truncated, changed, not a detector, or none that could have been fitted and saved.
    """
    with own_modes(torch.device("cpu")):
        header, tensors = storage.read(path, "detector", ENTRIES)
        try:
            return DETECTORS[header["detector"]]._rebuilt(header, tensors)
        except (
            Exception
        ) as error:  # classes may be anybody's: whatever they make of such a file, it is the file that is wrong
            raise FileFormatError(
                f"{path} holds a detector that this version of Outfield cannot build: {error}"
            ) from error
