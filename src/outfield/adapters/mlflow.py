"""A guard as a model of MLflow: a folder that ``mlflow.pyfunc.load_model`` opens.

Nothing in it is pickled: the folder holds the guard's own file, and MLflow asks this module to load it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outfield.adapters.graph import Written, about, new_folder, size_of
from outfield.errors import InputError
from outfield.extras import check_installed, library
from outfield.files import PathLike, as_path
from outfield.guard import COLUMNS, Guard
from outfield.version import __version__

COLUMN = "image"  # of a table with several columns, the one that holds the images
DATA = "model.guard"


def to_mlflow(path: PathLike, folder: PathLike) -> Written:
    """Write the guard of a file as an MLflow model.

    Args:
        path: a guard's file, which holds its network.
        folder: the model; it must not be there yet.

    Raises:
        InputError: the folder is there already, or the file does not hold its network.
        FileFormatError: the file is no guard.
        StorageError: it cannot be read, or the folder not written.
        MissingExtraError: mlflow or pandas are not installed.
    """
    check_installed("mlflow", "mlflow", "pandas")
    guard, source = Guard.load(path, "cpu"), as_path(path)
    mlflow = library("mlflow.pyfunc", extra="mlflow")
    with new_folder(folder) as made, tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / DATA
        shutil.copyfile(source, copy)
        mlflow.save_model(
            str(made), loader_module=__name__, data_path=str(copy),
            pip_requirements=[f"outfield[images,mlflow]=={__version__}"], metadata=about(guard, "pixels"),
        )  # fmt: skip
        size = size_of(made)
    return Written(size, None, (f"{COLUMN}: paths, bytes, or uint8 [N, H, W, 3]",), COLUMNS, None)


class GuardModel:
    """What MLflow calls."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Verdicts as a ``pandas.DataFrame``, a row for each image; one that cannot be read has its reason in ``error``.

        Args:
            model_input: a DataFrame with one column, or one called "image", of paths or bytes of encoded images; a list of them;
                or an array (N, H, W, 3), uint8.
            params: not used.

        Raises:
            InputError: it is something else.
        """
        return self.guard(images_of(model_input), on_error="skip").to_frame()  # type: ignore[union-attr]


def images_of(given: Any) -> Any:
    """What is in a table, mapping or array, as a guard takes several images."""
    if isinstance(given, Mapping) or hasattr(given, "columns"):
        names = [*given]
        if COLUMN not in names and len(names) != 1:
            raise InputError(f"there are columns {names!r:.200}; the one with the images must be called {COLUMN!r}")
        given = given[COLUMN if COLUMN in names else names[0]]
    if isinstance(given, np.ndarray) and given.dtype == np.uint8:
        return given
    if isinstance(given, str | bytes) or not hasattr(given, "__len__") or not len(given):
        raise InputError("predict takes several images: a table with a column of paths or bytes, a list, or an array")
    return [*given]


def _load_pyfunc(path: str) -> GuardModel:
    """What MLflow asks for, with the path of the guard's file."""
    return GuardModel(Guard.load(path))
