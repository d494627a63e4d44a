"""Files of an exported guard: what they say of it, how large they are, and folders that are there whole or not at all."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from outfield.errors import InputError, StorageError
from outfield.files import PathLike, as_path, make_folder, reason
from outfield.guard import Guard
from outfield.version import __version__


class Written(NamedTuple):
    """What was written.

    Attributes:
        size: bytes, of all files together.
        opset: version of ONNX's operators; None where there are none.
        inputs: what goes in: name, type and shape, in words.
        outputs: likewise, what comes out.
        apart: largest difference of a score from the guard's, where it was tried, relative to the larger of it and one; None
            where it is the guard itself.
    """

    size: int
    opset: int | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    apart: float | None

    def __str__(self) -> str:
        opset = "" if self.opset is None else f", opset {self.opset}"
        apart = "" if self.apart is None else f"; scores within {max(self.apart, 1e-9):.0e} of the guard's"
        return f"{self.size / 1e6:.2f} MB{opset}; in: {', '.join(self.inputs)}; out: {', '.join(self.outputs)}{apart}"


@contextlib.contextmanager
def new_folder(path: PathLike) -> Iterator[Path]:
    """A folder to be filled, which is put in its place once the block ends without an error.

    Raises:
        InputError: there is something at ``path`` already.
        StorageError: it cannot be made.
    """
    target = as_path(path)
    if target.exists() or target.is_symlink():
        raise InputError(f"{target} is there already; remove it, or name another folder")
    make_folder(target.parent)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".outfield-") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            yield made
            made.rename(target)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {reason(error)}") from error


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def about(guard: Guard, takes: str) -> dict[str, str]:
    """How images are made into what a graph takes, what it was made of, and the threshold.

    Args:
        guard: which.
        takes: what the graph takes, one of :data:`outfield.adapters.graph.INPUTS`.
    """
    threshold, backbone = guard.threshold, guard.backbone
    said = {
        "version": __version__,
        "takes": takes,
        "preprocessing": json.dumps(backbone.preprocessing.to_json()),
        "network": backbone.name,
        "network_fingerprint": guard.fingerprint,
        "detector": repr(guard.detector),
        "detector_fingerprint": guard.detector.fingerprint(),
        "members": json.dumps(guard.members),
        "class_names": json.dumps(guard.names),
        "views": str(guard.image_reader.views),
        "threshold": repr(threshold.value),
        "keep": repr(threshold.keep),
        "held_out": str(len(threshold.reference)),
    }
    return {f"outfield.{name}": text for name, text in said.items()}
