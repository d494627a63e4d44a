"""A guard of any kind from its file."""

from __future__ import annotations

import torch

from outfield.files.paths import PathLike
from outfield.files.storage import kind_of
from outfield.guard.guard import Guard
from outfield.guard.row_files import KIND
from outfield.guard.rows import RowGuard

AnyGuard = Guard | RowGuard


def open_guard(path: PathLike, device: str | torch.device = "auto") -> AnyGuard:
    """The guard in a file, of images or of rows.

    Raises:
        StorageError: There is no such file.
        FileFormatError: It is truncated, changed, no guard, or of a later version.
    """
    return RowGuard.load(path, device) if kind_of(path) == KIND else Guard.load(path, device)
