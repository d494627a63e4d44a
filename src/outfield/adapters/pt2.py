"""A guard as a file of ``torch.export``: the graph of :mod:`outfield.adapters.onnx` for programs that run PyTorch."""

from __future__ import annotations

import json
from typing import BinaryIO

import torch

from outfield.adapters.export_files import Written, about
from outfield.adapters.graph import Traced, traced
from outfield.errors import InputError
from outfield.files import PathLike, check_output, write_atomically
from outfield.guard import Guard

ENDINGS = (".pt2",)
SAID = "outfield.json"
"""The file inside of the file that says what it is: ``torch.export.load(path, extra_files={"outfield.json": ""})``."""
TOLERANCE = 1e-4
"""How far its scores may be from the guard's where it is tried, relative to the larger of a score and one."""


def to_pt2(guard: Guard, path: PathLike, *, takes: str = "pixels") -> Written:
    """Write a guard as a ``torch.export.ExportedProgram``, atomically.

    ``torch.export.load(path).module()(pixels)`` gives score, p-value, verdict and class. PyTorch reads such files with pickle:
    load only those that you trust.

    Args:
        guard: on the CPU.
        path: ``.pt2``.
        takes: see :func:`outfield.adapters.onnx.to_onnx`.

    Raises:
        InputError: the guard cannot be exported, or the path has another ending.
        StorageError: the file could not be written; what was there stays.
    """
    checked = check_output(path, ENDINGS)
    found = traced(guard, takes)
    for node in found.program.graph.nodes:
        node.meta.pop("stack_trace", None)  # places in this machine's files
    apart = compared(found)
    said = json.dumps(about(guard, takes))

    def write(file: BinaryIO) -> None:
        torch.export.save(found.program, file, extra_files={SAID: said})

    write_atomically(checked, write)
    shown = [
        tuple(_shown(name, value) for name, value in zip(names, values, strict=True))
        for names, values in ((found.inputs, found.examples), (found.outputs, found.expected))
    ]
    return Written(checked.stat().st_size, None, shown[0], shown[1], apart)


def compared(found: Traced) -> float:
    """How far the program's scores are from the guard's, each relative to the larger of it and one.

    Raises:
        InputError: too far.
    """
    scores, wanted = found.program.module()(*found.examples)[0].double(), found.expected[0].double()
    apart = float(((scores - wanted).abs() / wanted.abs().clamp_min(1)).max())
    if not apart <= TOLERANCE:
        raise InputError(
            f"torch.export gives scores {scores.tolist()} where the guard gives {wanted.tolist()}; nothing was written"
        )
    return apart


def _shown(name: str, value: torch.Tensor) -> str:
    sides = ", ".join(["N", *map(str, value.shape[1:])])
    return f"{name} {str(value.dtype).removeprefix('torch.')} [{sides}]"
