"""A case: one surface, one seed, an empty folder; what it may leave behind and how long it may take."""

import contextlib
import os
import random
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from tests.fuzz import surfaces_arrays, surfaces_columns, surfaces_commands, surfaces_files, surfaces_settings

import outfield as of

SURFACES = {
    **surfaces_arrays.SURFACES,
    **surfaces_settings.SURFACES,
    **surfaces_files.SURFACES,
    **surfaces_columns.SURFACES,
    **surfaces_commands.SURFACES,
}
SECONDS = 60
"""Time after which a case counts as hanging; most take milliseconds."""


class Hang(BaseException):
    """A case took too long; not an Exception, so that no handler takes it for an error of the input."""


def run_case(surface: str, seed: int) -> str | None:
    """Put one odd input to a surface.

    Returns:
        None where all is well, else what went wrong.
    """
    state = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), os.getcwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place, _temporary(place), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(place, "work")
        folder.mkdir()
        try:
            with _at_most(SECONDS):
                SURFACES[surface](random.Random(f"{surface} {seed}"), folder)
        except of.OutfieldError as error:
            if not str(error).strip():
                return "an error without a word"
        except Hang:
            return f"no answer within {SECONDS} seconds\n{traceback.format_exc(limit=-6)}"
        except (Exception, SystemExit):
            return traceback.format_exc(limit=-6)
        left = [str(file.relative_to(place)) for file in Path(place).rglob("*") if _is_leftover(file, Path(place))]
        if left:
            return f"left behind: {', '.join(left)}"
    after = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), os.getcwd()
    return None if after == state else f"process-wide state changed from {state} to {after}"


def _is_leftover(file: Path, place: Path) -> bool:
    if file.name.startswith("torchinductor"):  # PyTorch's own
        return False
    hidden = file.name.startswith(".") or file.suffix == ".tmp"
    return hidden or (file.parent == place / "tmp")


@contextlib.contextmanager
def _temporary(place: str) -> Iterator[None]:
    """Temporary files go below ``place``, where leftovers are seen."""
    before = tempfile.tempdir
    tempfile.tempdir = os.path.join(place, "tmp")
    os.mkdir(tempfile.tempdir)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
