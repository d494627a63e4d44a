"""Where a command reads and writes, checked before any work: no output may take the place of an input or of another output."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from outfield.errors import InputError, StorageError

DATA = (".safetensors", ".npz", ".npy", ".parquet")
"""Endings of files that hold data or detectors, which no text may replace."""


@dataclass(frozen=True)
class Input:
    """A file that is read, and what it is to the user."""

    what: str
    path: Path


@dataclass(frozen=True)
class Output:
    """A file that will be written.

    Args:
        option: The option that named it.
        path: Where it goes; may hold {seed}.
        endings: One of these it must have; any but those of :data:`DATA` if empty.
        what: What is written, in the plural, for the error.
        makes_folder: Whether the folder it lies in is made where it is not there.
    """

    option: str
    path: Path
    endings: tuple[str, ...] = ()
    what: str = "results"
    makes_folder: bool = False


def check_places(inputs: Iterable[Input], outputs: Sequence[Output], seeds: Iterable[int] | None = None) -> None:
    """Find out before long work whether its results can be written after it, and would destroy nothing.

    Args:
        inputs: All files that the command reads.
        outputs: All files that it writes.
        seeds: A file of its own is written for each; None if there is one of each.

    Raises:
        InputError: An ending is wrong, {seed} is missing, or an output is the same file as an input or another output, be it by
            another name or through a link.
        StorageError: An output cannot be written where it should go.
    """
    taken = [(place.what, place.path) for place in inputs]
    for output in outputs:
        _check_ending(output)
        for path in _for_seeds(output, seeds):
            for what, other in taken:
                if same_file(path, other):
                    named = f"{what} are both {path}" if what.startswith("-") else f"would overwrite {what}, {other}"
                    raise InputError(
                        f"{output.option} {'and ' * what.startswith('-')}{named}; give it a name of its own"
                    )
            _check_writable(path, output.makes_folder)
        taken += [(output.option, path) for path in _for_seeds(output, seeds)]


def for_seed(path: Path, seed: int) -> Path:
    """The path with the seed where {seed} stands."""
    return path.with_name(path.name.replace("{seed}", str(seed)))


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same file, or would once it is there: spelled otherwise, through links, or by hard links."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them is not there, or cannot be
        return False


def _check_writable(path: Path, makes_folder: bool) -> None:
    from outfield.files.atomic import check_writable

    folder = path.parent
    if not makes_folder or os.path.isdir(folder):
        check_writable(path)
        return
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not os.path.isdir(folder):
        raise StorageError(f"cannot make the folder {path.parent}: {folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(f"cannot make the folder {path.parent}: {folder} is not writable")


def _for_seeds(output: Output, seeds: Iterable[int] | None) -> list[Path]:
    if seeds is None:
        return [output.path]
    if "{seed}" not in output.path.name:
        raise InputError(f"{output.path}: with --seeds every seed gets its own file; put {{seed}} into its name")
    return [for_seed(output.path, seed) for seed in seeds]


def _check_ending(output: Output) -> None:
    """Of the path, and of the file that it is a link to, which would be replaced."""
    for path in (output.path, Path(os.path.realpath(output.path))):
        if output.endings and path.suffix not in output.endings:
            raise InputError(f"{output.option} {path}: {output.what} are saved as {_either(output.endings)}")
        if not output.endings and path.suffix in DATA:
            raise InputError(f"{output.option} {path}: {output.what} are text; {path.suffix} is for data and detectors")


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
